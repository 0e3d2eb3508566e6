"""Functions that XLA compiles: ops that leave the function, and its scratch."""

from typing import Any

import pytest
import tensorflow as tf

import lms
from lms.errors import UnsupportedError
from lms.tf.capture.tracing import trace
from lms.tf.lowering import specialise
from lms.tf.passes.compiled import OPEN_COMPILED
from lms.tf.rewriting import rebuild
from tests.room import above_what_is_held
from tests.tf.steps import DEVICE, changed, grouped, specialised

pytestmark = pytest.mark.tf


def calls(step: Any) -> list[Any]:
    return [op for op in step.graph.ops if "Call" in op.type]


@pytest.fixture(scope="module")
def step() -> Any:
    return specialised(
        grouped(tf.Variable(tf.ones([3, 3, 1, 8]))), tf.ones([2, 5, 5, 8])
    )


def test_a_compiled_function_gets_a_variable_s_value_and_not_the_variable(
    step: Any,
) -> None:
    given = {op.type for op in calls(step.own)}
    assert given == {"StatefulPartitionedCall", "PartitionedCall"}
    assert {op.type for op in calls(step)} == {"PartitionedCall"}
    read = {step.graph.tensors[name].dtype for op in calls(step) for name in op.inputs}
    assert read == {"float32"}


def test_what_a_compiled_function_hands_on_is_what_it_was_given(step: Any) -> None:
    forward, backward = calls(step)
    assert len(calls(step.own)[0].outputs) == 3
    assert len(forward.outputs) == 1
    assert set(forward.inputs) < set(backward.inputs)


def test_a_function_that_writes_a_variable_stays_as_it_is() -> None:
    count = tf.Variable(tf.zeros([]))

    @tf.function(jit_compile=True)
    def counted(x: tf.Tensor) -> tf.Tensor:
        count.assign_add(1.0)
        return x * 2.0

    step = specialised(lambda x: counted(x) + 1.0, tf.ones([4]))
    (call,) = calls(step)
    assert call.type == "StatefulPartitionedCall"


def test_a_function_that_is_not_inlined_is_called_as_it_is() -> None:
    @tf.function(experimental_attributes={"_noinline": True})
    def doubled(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(x) * 2.0

    budget = above_what_is_held(1 << 20)
    fitted = lms.fit_in_memory(
        lambda x: doubled(x) + 1.0, [tf.ones([4])], budget=budget
    )
    assert fitted(tf.ones([4])).numpy().tolist() == [3.0] * 4


def test_a_gradient_that_tensorflow_keeps_to_itself_is_refused() -> None:
    @tf.function(experimental_attributes={"_noinline": True})
    def squared(x: tf.Tensor) -> tf.Tensor:
        return tf.square(tf.nn.relu(x))

    def gradient(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(squared(x))
        return tape.gradient(loss, x)

    with pytest.raises(UnsupportedError, match="not read function"):
        specialised(gradient, tf.ones([4]))


@pytest.mark.parametrize("where", ["returned", "in a loop"])
def test_a_call_that_is_returned_or_in_a_loop_stays_as_it_is(
    step: Any, where: str
) -> None:
    names = [op.name for op in calls(step.own)]
    fixed, outputs = (names, []) if where == "in a loop" else ([], names)
    known = {"fixed": frozenset(fixed), "outputs": outputs}
    assert changed(OPEN_COMPILED, step.own, **known) == list(step.own.nodes)


def test_a_call_of_which_nothing_is_left_is_no_longer_there() -> None:
    weights = tf.Variable(tf.constant([1.0, 2.0]))

    @tf.function(jit_compile=True)
    def both(x: tf.Tensor) -> Any:
        return x, weights.read_value()

    def step(x: tf.Tensor) -> Any:
        one, other = both(x + 1.0)
        with tf.control_dependencies([one]):
            return one * other

    args = [tf.constant([3.0, 4.0])]
    traced = trace(step, args)
    found = specialise(traced, args, device=DEVICE)
    assert calls(found.own) != []
    assert calls(found) == []
    rebuilt = rebuild(traced, found, found.nodes)
    assert rebuilt(args).numpy().tolist() == [4.0, 10.0]
