"""Tracing: the runtime's own graph as plain data, and nothing done on the way."""

from collections import Counter
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lms import fit_in_memory
from lms.errors import UnsupportedError
from lms.ir.graph import Op
from lms.tf import compat
from lms.tf.capture.keras_step import make_slots
from lms.tf.capture.shapes import inferred_shapes
from lms.tf.capture.tracing import trace
from lms.tf.lowering import refuse_guesses, specialise
from tests.tf.steps import DEVICE, specialised

pytestmark = pytest.mark.tf


def of_type(step: Any, kind: str) -> list[Op]:
    return [op for op in step.graph.ops if op.type == kind]


def test_an_op_has_its_type_the_shape_and_bytes_of_its_output_and_flops() -> None:
    step = specialised(lambda x: tf.matmul(x, x, transpose_b=True), tf.ones([3, 4]))
    (matmul,) = of_type(step, "MatMul")
    (made,) = matmul.outputs
    assert (made.shape, made.dtype, made.size) == ((3, 3), "float32", 36)
    assert {op.type: op.flops for op in step.graph.ops if op.flops} == {"MatMul": 72}
    assert step.signature == "3x4"
    assert step.input_bytes == 48


def test_shapes_are_those_of_the_batch_that_came_though_the_data_left_it_open() -> None:
    weights = tf.Variable(tf.ones([4, 2]))

    def step(iterator: Any) -> tf.Tensor:
        x = iterator.get_next()
        return tf.nn.relu(tf.reshape(x @ weights, [-1, 1, 2]))

    batches = tf.data.Dataset.from_tensor_slices(tf.ones([5, 4])).batch(3)
    iterator: Any = iter(batches)
    assert iterator.element_spec.shape.as_list() == [None, 4]
    traced = trace(step, [], iterator=iterator)
    signatures, relus = [], []
    for batch in iterator:
        found = specialise(traced, traced.flat_inputs([batch]), device=DEVICE)
        signatures.append(found.signature)
        relus += [op.outputs[0].shape for op in of_type(found, "Relu")]
    assert signatures == ["3x4", "2x4"]
    assert relus == [(3, 1, 2), (2, 1, 2)]


def test_tracing_runs_nothing_and_changes_nothing() -> None:
    count, ran = tf.Variable(tf.ones([])), []
    generator = tf.random.Generator.from_seed(5)
    before = generator.state.numpy().tolist()
    iterator = iter(tf.data.Dataset.range(3))

    def step(iterator: Any) -> tf.Tensor:
        tf.numpy_function(lambda: ran.append(1) or np.float32(0), [], tf.float32)
        x = tf.cast(iterator.get_next(), tf.float32)
        count.assign_add(tf.reduce_sum(x + generator.normal([3])))
        return count.read_value()

    trace(step, [], iterator=iterator)
    assert float(count) == 1.0
    assert ran == []
    assert [int(element) for element in iterator] == [0, 1, 2]
    assert generator.state.numpy().tolist() == before


def test_what_is_persistent_constant_or_reads_or_replaces_a_variable() -> None:
    weights = tf.Variable(tf.ones([4, 4]))
    step = specialised(lambda x: weights.assign(x @ weights + 3.0), tf.ones([4, 4]))
    persistent = {op.type for op in step.graph.ops if op.persistent}
    assert persistent == {"Placeholder", "ReadVariableOp", "Const"}
    assert step.captured_bytes == 64
    facts = ("constant", "reads_state", "replaces_state")
    for i, kind in enumerate(("Const", "ReadVariableOp", "AssignVariableOp", "MatMul")):
        op = of_type(step, kind)[0]
        assert tuple(f for f in facts if getattr(op, f)) == facts[i : i + 1]
    constants = [t.size for op in of_type(step, "Const") for t in op.outputs]
    assert step.graph.constant_bytes == sum(constants)


def test_what_shares_its_input_s_buffer_is_an_alias() -> None:
    step = specialised(lambda x: tf.exp(tf.reshape(tf.exp(x), [4, 3])), tf.ones([3, 4]))
    (reshape,) = of_type(step, "Reshape")
    assert reshape.alias == reshape.inputs[0]
    assert step.graph.roots[f"{reshape.name}:0"] == reshape.inputs[0]


def test_nested_functions_become_part_of_the_graph() -> None:
    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.linalg.matmul(x, x)

    step = specialised(lambda x: inner(inner(x)), tf.ones([3, 3]))
    assert len(of_type(step, "MatMul")) == 2
    assert not of_type(step, "PartitionedCall")
    assert not of_type(step, "StatefulPartitionedCall")


def test_ops_of_a_conditional_are_fixed_and_those_around_it_are_not() -> None:
    def branching(x: tf.Tensor) -> tf.Tensor:
        x = tf.linalg.matmul(x, x)
        y = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.exp(x), lambda: tf.nn.softmax(x))
        return tf.linalg.inv(y)

    step = specialised(branching, tf.ones([3, 3]))
    fixed = Counter(op.type for op in step.graph.ops if op.fixed)
    assert {"Switch", "Merge", "Exp", "Softmax"} <= fixed.keys()
    assert not {"MatMul", "MatrixInverse"} & fixed.keys()


def loop(x: Any) -> Any:
    """Repeated multiplication with a matrix made before, and an op after it."""
    other = tf.linalg.inv(x)
    _, y = tf.while_loop(
        lambda i, y: i < 3,
        lambda i, y: (i + 1, tf.linalg.matmul(y, other)),
        [tf.constant(0), x],
    )
    return tf.nn.softmax(y)


def test_ops_of_a_loop_are_fixed_and_know_their_shapes() -> None:
    step = specialised(loop, 2 * tf.eye(3))
    (matmul,) = of_type(step, "MatMul")
    assert matmul.fixed
    assert matmul.outputs[0].shape == (3, 3)
    fixed = {op.type for op in step.graph.ops if op.fixed}
    assert {"Enter", "Merge", "Switch", "NextIteration", "Exit"} <= fixed
    assert not {"MatrixInverse", "Softmax"} & fixed
    # Readers of a loop's result come after all that the loop reads.
    order = [op.type for op in step.graph.ops]
    waited_for = {name for op in of_type(step, "Exit") for name in op.controls}
    assert {op.name for op in of_type(step, "NextIteration")} <= waited_for
    assert order.index("MatrixInverse") < order.index("MatMul")
    assert order.index("MatMul") < order.index("Exit") < order.index("Softmax")


def test_a_loop_and_its_gradient_know_all_shapes() -> None:
    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(loop(x))
        return tape.gradient(y, x)

    traced = specialised(step, 2 * tf.eye(4))
    matmuls = of_type(traced, "MatMul")
    assert len(matmuls) >= 3
    assert {op.outputs[0].shape for op in matmuls} == {(4, 4)}


def test_functions_that_ops_call_are_kept_in_the_library() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        data = tf.data.Dataset.range(3).map(lambda i: tf.cast(i, tf.float32))
        return tf.map_fn(tf.exp, x, parallel_iterations=1) + data.reduce(0.0, tf.add)

    traced = specialised(step, tf.ones([3]))
    called = {
        attribute.func.name
        for node in traced.nodes
        for attribute in node.attr.values()
        if attribute.HasField("func")
    }
    known = {function.signature.name for function in traced.library.function}
    assert called
    assert called <= known


@pytest.mark.parametrize("shape", [(None, None, 3), (2, None), None])
def test_dimensions_that_are_unknown_beyond_the_batch_are_refused(shape: Any) -> None:
    with pytest.raises(UnsupportedError, match="known dimensions beyond the batch"):
        fit_in_memory(lambda x: x + 1, [tf.TensorSpec(shape)], budget="1GiB")


def test_an_argument_that_the_step_does_not_read_is_taken_all_the_same() -> None:
    fitted = fit_in_memory(
        lambda unread, x: 2 * x, [tf.TensorSpec([3]), tf.TensorSpec([2])], budget="1GiB"
    )
    assert fitted(tf.ones([3]), tf.ones([2])).numpy().tolist() == [2.0, 2.0]
    assert fitted.report[0].signature == "3, 2"


def test_a_size_that_depends_on_values_is_refused_by_the_tensor_s_name() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        count = tf.cast(tf.reduce_sum(x), tf.int32)
        return tf.exp(tf.fill([count], 1.0, name="many"))

    found = specialised(step, tf.ones([3]))
    assert found.guessed == ("many", "Exp")
    assert found.graph.by_name["Exp"].varies
    with pytest.raises(UnsupportedError, match=r"outputs of op .*many.* 1 other"):
        refuse_guesses(found)


def test_a_size_that_set_shape_told_is_known_whatever_python_does() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        rows = tf.numpy_function(lambda rows: rows[:2], [x], tf.float32)
        rows.set_shape([2])
        return tf.exp(rows)

    assert specialised(step, tf.ones([3])).guessed == ()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("activation", [None, "relu", "elu"])
def test_convolutions_that_the_runtime_fuses_are_taken_back_in_half_precision(
    dtype: str, activation: str | None
) -> None:
    layer = keras.layers.Conv2D(4, 3, activation=activation, dtype=dtype)
    layer.build((2, 8, 8, 3))
    step = specialised(layer, tf.ones([2, 8, 8, 3], dtype))
    made = [t for op in step.graph.ops if not op.persistent for t in op.outputs]
    assert {t.dtype for t in made if t.shape == (2, 6, 6, 4)} == {dtype}


def test_a_graph_that_tensorflow_does_not_import_is_refused_with_a_next_step() -> None:
    node = compat.NodeDef(name="fused", op="_FusedConv2D", input=["x", "x"])
    node.attr["T"].type = tf.bfloat16.as_datatype_enum
    inputs = [("x", tf.TensorSpec([3, 3, 1, 1], tf.bfloat16), None)]
    with pytest.raises(UnsupportedError, match=r"not import .*remapping"):
        inferred_shapes([node], compat.graph_def([], None).library, inputs)


def repeated(rounds: Any) -> Any:
    """The gradient of products in a loop, each of which the loop keeps."""

    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            _, y = tf.while_loop(
                lambda i, y: i < rounds(x), lambda i, y: (i + 1, tf.tanh(y @ x)), [0, x]
            )
            loss = tf.reduce_sum(y)
        return tape.gradient(loss, x)

    return specialised(step, tf.eye(64))


def test_a_loop_holds_what_it_keeps_of_each_round_until_its_gradient_is_made() -> None:
    step = repeated(lambda x: 50)
    entries = [op for op in of_type(step, "Enter") if op.alias is None]
    sizes = [t.size for op in entries for t in op.outputs if t.size >= 50 * 64 * 64 * 4]
    assert sizes == [50 * 64 * 64 * 4]  # what tanh made; it is what y was, too
    assert step.unknown_loops == ()
    pops = [op for op in of_type(step, "TensorListPopBack") if op.outputs[1].size]
    assert {step.graph.roots[t.name] for op in pops for t in op.outputs} & {
        t.name for op in entries for t in op.outputs
    }


def test_a_loop_whose_rounds_depend_on_values_is_named() -> None:
    step = repeated(lambda x: tf.cast(tf.reduce_sum(x), tf.int32))
    assert len(step.unknown_loops) == 1


def test_an_optimizer_whose_slots_found_no_memory_makes_them_later() -> None:
    class Full(keras.optimizers.Adam):
        left = 3

        def add_variable_from_reference(self, *args: Any, **how: Any) -> Any:
            self.left -= 1
            if not self.left:
                raise MemoryError
            return super().add_variable_from_reference(*args, **how)

    names: list[list[str]] = []
    for optimizer in (Full(), keras.optimizers.Adam()):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(optimizer, "mse")
        if isinstance(optimizer, Full):
            with pytest.raises(MemoryError):
                make_slots(model)
        make_slots(model)
        names.append([v.name.split("_")[-2:] for v in optimizer.variables])
        model.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0)  # pyright: ignore[reportArgumentType]
        assert len(optimizer.variables) == len(names[-1])
    assert names[0] == names[1]
