"""Which ops write which variables, as TensorFlow's own graphs have them."""

from typing import Any

import pytest
import tensorflow as tf

from lms.tf.capture.ops import with_writes
from tests.graphs import graph_of, make_op
from tests.tf.steps import specialised

pytestmark = pytest.mark.tf


def writers(step: Any, variable: Any) -> list[Any]:
    """The ops that write a variable."""
    named = {
        name
        for name, (handle, _) in step.variables.items()
        if handle is variable.handle
    }
    return [op for op in step.graph.ops if named & {*op.writes}]


def vector() -> Any:
    return tf.Variable(tf.ones([4]))


def test_an_assignment_writes_and_a_read_does_not() -> None:
    read, added, gathered = vector(), vector(), vector()
    count = tf.Variable(tf.constant(0))  # on the host: GPUs have no kernels for it

    def step(x: tf.Tensor) -> tf.Tensor:
        count.assign_add(1)
        added.assign_add(x * read)
        return tf.gather(gathered, [0, 1])

    traced = specialised(step, tf.ones([4]))
    for written in (added, count):
        assert [op.type for op in writers(traced, written)] == ["AssignAddVariableOp"]
    assert writers(traced, read) == writers(traced, gathered) == []


def test_a_random_generator_writes_its_state() -> None:
    generator = tf.random.Generator.from_seed(1)
    traced = specialised(lambda: generator.normal([4]))
    assert len(writers(traced, generator.state)) == 1


def test_the_op_that_decides_on_a_branch_stands_for_what_the_branch_writes() -> None:
    variable, count = vector(), tf.Variable(tf.constant(0))

    def step(x: tf.Tensor) -> None:
        if tf.reduce_sum(x) > 0:
            variable.assign_add(x)
            count.assign_add(1)

    traced = specialised(step, tf.ones([4]))
    assert writers(traced, count)
    (gate,) = writers(traced, variable)
    assert gate.type == "Greater"
    assert not gate.fixed


def test_a_loop_s_start_stands_for_what_the_loop_writes() -> None:
    variable = vector()

    def step(x: tf.Tensor) -> None:
        start = tf.reduce_sum(x)
        while start < 10:
            variable.assign_add(x)
            start += 1.0

    (gate,) = writers(specialised(step, tf.ones([4])), variable)
    assert not gate.fixed


def test_a_write_in_a_branch_that_an_argument_decides_stays_where_it_is() -> None:
    variable = vector()

    def step(x: tf.Tensor, write: tf.Tensor) -> tf.Tensor:
        return tf.cond(write, lambda: variable.assign_add(x) + 1, lambda: x)

    (inside,) = writers(
        specialised(step, tf.ones([4]), tf.constant(value=True)), variable
    )
    assert inside.fixed


def test_a_merge_of_branches_is_no_gate() -> None:
    # `value` reaches the write by one branch or by the other: it waits for neither.
    graph = graph_of(
        make_op("handle", 0, type="Placeholder", persistent=True),
        make_op("one", 4),
        make_op("other", 4),
        make_op("enter", 4, "one", type="Switch", fixed=True),
        make_op("merge", 4, "enter", "other", type="Merge", fixed=True),
        make_op("write", 0, "handle", "merge", type="Assign", fixed=True),
    )
    written = [op.name for op in with_writes(graph, ["handle:0"]).ops if op.writes]
    assert written == ["write"]
