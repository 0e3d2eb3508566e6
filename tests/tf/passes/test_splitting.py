"""Parts of ops make the same bits as whole ops, op by op and in regions."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from lms.ir.liveness import working_sets
from lms.tf.capture.tracing import TracedFunction, trace
from lms.tf.lowering import TracedStep, specialise
from lms.tf.measure.same_bits import keeps_bits
from lms.tf.passes.splitting import Cuts, OpSize, Region, regions, with_slices
from lms.tf.rewriting import rebuild
from tests.tf.steps import DEVICE

pytestmark = pytest.mark.tf


class Case(NamedTuple):
    """An op, shapes of what it reads, and whether its products are cut by rows."""

    op: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    rows: bool = False


def gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Its gradient of what it reads first."""

    def found(*x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x[0])
            y: Any = function(*x)
        return tape.gradient(y, x[0], y * y)

    return found


def sparse_loss(x: Any) -> Any:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.argmax(x, -1), x)


def noise(x: Any, dtype: tf.DType = tf.float32) -> Any:
    seed = tf.cast(x[0, 0, :2], tf.int32)
    drawn = tf.random.stateless_uniform([8, 32, 32], seed, dtype=dtype)
    return x * tf.cast(drawn, tf.float32)


def shared(*given: Any, first: bool = True) -> Any:
    """A sum of three tensors, of which two have readers that come later."""
    x, y, z = (tf.tanh(each) for each in given)
    made = tf.add_n([x, y, z])
    with tf.control_dependencies([made]):
        return made + 1e-30 * (tf.cumsum(x if first else z) - tf.cumsum(y))


def views(x: Any, y: Any) -> Any:
    """A sum that begins with views of one tensor, so with the last input."""
    return tf.add_n([*tf.unstack(tf.tanh(x))[:2], tf.tanh(y, name="z")])  # by names


def scores(x: Any, y: Any) -> Any:
    return tf.einsum("bqhd,bkhd->bhqk", x, y)


CUBE, IMAGE = ((8, 32, 32),), ((8, 12, 12, 16),)

CASES = {
    "Tanh": Case(tf.tanh, CUBE),
    "SelectV2": Case(lambda x: tf.where(x > 0, x, 2.0), CUBE),
    "Maximum": Case(tf.maximum, (*CUBE, (32, 1))),
    "Cast": Case(lambda x: tf.cast(x, tf.float16), CUBE),
    "Softmax": Case(lambda x: tf.nn.softmax(x, -1), CUBE),
    "LogSoftmax": Case(lambda x: tf.nn.log_softmax(x, -1), CUBE),
    "Sum": Case(lambda x: tf.reduce_sum(x, [-1]), ((8, 2, 64, 32),)),
    "Sum, columns": Case(lambda x: tf.reduce_sum(x, [0]), ((64, 12, 20),)),
    "Mean": Case(lambda x: tf.reduce_mean(x, [2]), ((4, 4, 32, 33),)),
    "AddN": Case(shared, CUBE * 3),
    "AddN, views": Case(views, ((3, 6, 40), (6, 40))),
    "AddN, in order": Case(partial(shared, first=False), CUBE * 3),
    "Sigmoid": Case(tf.sigmoid, ((4, 6, 33),)),
    "Max": Case(lambda x: tf.reduce_max(x, -1, keepdims=True), CUBE),
    "ArgMax": Case(lambda x: tf.argmax(x, 1), CUBE),
    "TopKV2": Case(lambda x: tf.math.top_k(x, 4).values, CUBE),
    "OneHot": Case(lambda x: tf.one_hot(tf.cast(x, tf.int32), 8), CUBE),
    "Transpose": Case(lambda x: tf.transpose(x, [2, 0, 1]), CUBE),
    "Reshape": Case(lambda x: tf.reshape(x, [64, 4, 32]), CUBE),
    "Squeeze": Case(lambda x: tf.squeeze(x, 1), ((8, 1, 32, 32),)),
    "ExpandDims": Case(lambda x: tf.expand_dims(x, 1), CUBE),
    "ConcatV2": Case(lambda x, y: tf.concat([x, y], -1), (*CUBE, (8, 32, 4))),
    "Pack": Case(lambda x, y: tf.stack([x, y], 1), CUBE * 2),
    "Unpack": Case(lambda x: tf.unstack(x, axis=1)[3], ((8, 4, 64, 32),)),
    "Split": Case(lambda x: tf.split(x, 2, axis=1)[1], CUBE),
    "SplitV": Case(lambda x: tf.split(x, [8, 24], axis=1)[1], CUBE),
    "Slice": Case(lambda x: tf.slice(x, [0, 2, 0], [8, 24, 32]), CUBE),
    "Roll": Case(lambda x: tf.roll(x, [3], [1]), CUBE),
    "Pad": Case(lambda x: tf.pad(x, [[0, 0], [1, 2], [0, 0]]), CUBE),
    "MirrorPad": Case(lambda x: tf.pad(x, [[0, 0], [1, 2], [0, 0]], "REFLECT"), CUBE),
    "Tile": Case(lambda x: tf.tile(x, [1, 2, 1]), CUBE),
    "BroadcastTo": Case(lambda x: tf.broadcast_to(x, [8, 32, 32]), ((32, 1),)),
    "BiasAdd": Case(tf.nn.bias_add, (*CUBE, (32,))),
    "StatelessRandomUniformV2": Case(noise, CUBE),
    "StatelessRandomUniformV2, double": Case(lambda x: noise(x, tf.float64), CUBE),
    "SparseSoftmaxCrossEntropyWithLogits": Case(gradient(sparse_loss), ((64, 96),)),
    "SoftmaxCrossEntropyWithLogits": Case(
        gradient(lambda x, y: tf.nn.softmax_cross_entropy_with_logits(y, x)),
        ((64, 96), (64, 96)),
    ),
    "Einsum": Case(scores, ((2, 48, 4, 8), (2, 48, 4, 8))),
    "Einsum, rows": Case(scores, ((1, 48, 1, 8), (1, 48, 1, 8)), rows=True),
    "BatchMatMulV2": Case(tf.matmul, ((8, 32, 16), (8, 16, 32))),
    "BatchMatMulV2, rows": Case(
        lambda x, y: tf.matmul(x, y, transpose_a=True),
        ((1, 16, 64), (1, 16, 64)),
        rows=True,
    ),
    "MatMul, rows": Case(
        lambda x, y: tf.matmul(x, y, transpose_b=True), ((96, 16), (64, 16)), rows=True
    ),
    "Conv3D": Case(
        lambda x, w: tf.nn.conv3d(x, w, [1] * 5, "SAME"),
        ((4, 6, 6, 6, 16), (3, 3, 3, 16, 16)),
    ),
    "Conv2D Conv2DBackpropInput": Case(
        gradient(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME")), (*IMAGE, (3, 3, 16, 16))
    ),
    "DepthwiseConv2dNative": Case(
        lambda x, w: tf.nn.depthwise_conv2d(x, w, [1] * 4, "SAME"),
        (*IMAGE, (3, 3, 16, 1)),
    ),
    "MaxPool MaxPoolGrad": Case(
        gradient(lambda x: tf.nn.max_pool2d(x, 3, 2, "SAME")), IMAGE
    ),
    "AvgPool AvgPoolGrad": Case(
        gradient(lambda x: tf.nn.avg_pool2d(x, 3, 2, "SAME")), IMAGE
    ),
    "ResizeBilinear ResizeBilinearGrad": Case(
        gradient(lambda x: tf.raw_ops.ResizeBilinear(images=x, size=[16, 16])), IMAGE
    ),
}


def arrays(shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    draw = np.random.default_rng(0)
    return [tf.constant(draw.standard_normal(s), tf.float32) for s in shapes]


def traced_with(
    function: Callable[..., Any], given: Sequence[Any]
) -> tuple[TracedFunction, TracedStep]:
    """A step that reads what was made on the device, and makes more of the result."""

    def step(*x: Any) -> Any:
        y: Any = function(*(each * 1.25 for each in x))
        return tf.cast(y, tf.float32) * 3.0

    traced = trace(tf.function(step, autograph=False, jit_compile=False), given)
    return traced, specialise(traced, traced.flat_inputs(given), device=DEVICE)


@pytest.mark.parametrize("name", CASES)
def test_parts_make_the_bits_of_the_whole(name: str) -> None:
    case, kinds = CASES[name], name.partition(",")[0].split()
    given = arrays(case.shapes)
    traced, step = traced_with(case.op, given)
    inputs = traced.flat_inputs(given)
    whole = rebuild(traced, step, step.nodes)(inputs).numpy()
    known = Cuts(step.graph, step.nodes, OpSize(most=0, rows=case.rows))
    size = OpSize(most=0, sums=False, proved=keeps_bits)
    exact = Cuts(step.graph, step.nodes, size)
    found = [
        Region(cuts={op.name: cut}, parts=parts)
        for kind in kinds
        for op in step.graph.ops
        if op.type.endswith(kind)
        for parts in (2, 4)
        for cut in known.of(op, parts)
    ]
    assert found, [op.type for op in step.graph.ops]
    for region in found:
        cut = with_slices(step.nodes, step.graph, [region], 0)
        parts = rebuild(traced, step, cut)(inputs).numpy()
        ((name, own),) = region.cuts.items()
        if exact.holds(step.graph.by_name[name], own, region.parts):
            assert whole.tobytes() == parts.tobytes(), region
        else:
            np.testing.assert_allclose(parts, whole, rtol=1e-4, atol=1e-4)


def test_a_sum_is_cut_whose_first_input_nobody_else_reads() -> None:
    exact = OpSize(most=0, sums=False, proved=keeps_bits)
    cases = {False: CUBE * 3, True: CUBE * 3, None: ((3, 6, 40), (6, 40))}
    for first, shapes in cases.items():
        sum_of = views if first is None else partial(shared, first=first)
        _, step = traced_with(sum_of, arrays(shapes))
        (op,) = (op for op in step.graph.ops if op.type == "AddN")
        known = Cuts(step.graph, step.nodes, exact)
        held = any(known.holds(op, cut, 2) for cut in known.of(op, 2))
        assert held is (first is False)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_parts_that_are_not_the_op_s_or_are_rounded_have_other_bits(dtype: str) -> None:
    given = [tf.cast(each, dtype) for each in arrays(((8, 8),))]
    _, step = traced_with(tf.transpose, given)
    (op,) = (op for op in step.graph.ops if op.type == "Transpose")
    (cut, *_) = Cuts(step.graph, step.nodes, OpSize(most=0)).of(op, 2)
    nodes = {node.name: node for node in step.nodes}
    assert keeps_bits(step.graph, nodes, op, cut, 2) is (dtype == "float32")
    wrong = replace(cut, inputs=(0, None), outputs=(0,))
    assert not keeps_bits(step.graph, nodes, op, wrong, 2)


def test_a_region_ends_at_small_tensors_and_at_what_cannot_be_cut() -> None:
    """Scores are cut with what follows them; a sum over the batch is not."""

    def step(x: Any, y: Any) -> Any:
        made = tf.nn.softmax(scores(x, y))
        return tf.reduce_sum(tf.einsum("bhqk,bkhd->bqhd", made, y), 0)

    _, known = traced_with(step, arrays(((2, 64, 4, 4),) * 2))
    most = 64 * 64 * 4 * 4
    (region,) = regions(known.graph, known.nodes, OpSize(most=most))
    types = {known.graph.by_name[name].type for name in region.cuts}
    assert types == {"Einsum", "Softmax"}
    assert region.parts == 4
    assert not regions(known.graph, known.nodes, OpSize(most=most, sums=False))
    assert not regions(known.graph, known.nodes, OpSize(most=16 * most))


def test_attention_is_cut_by_queries_and_by_keys() -> None:
    """Its scores are never joined; its mask is compared on the host, and sliced.

    The mask is made of constants: TensorFlow would keep each of its parts.
    """
    length = 2048

    def attention(x: Any, y: Any) -> Any:
        places = tf.range(length)
        causal = tf.cast(places[:, None] >= places, tf.int32)
        mask = causal * tf.cast(y[0, 0, 0, 0], tf.int32) > 0
        made = tf.nn.softmax(tf.where(mask, scores(x, y), -1e9))
        return tf.einsum("bhqk,bkhd->bqhd", made, y)

    given = arrays(((1, length, 2, 8),) * 2)
    traced, step = traced_with(gradient(attention), given)
    whole = max(working_sets(step.graph))
    size = OpSize(most=whole // 16, rows=True)
    cut = specialise(
        traced, traced.flat_inputs(given), device=DEVICE, sizes=[(DEVICE, size)]
    )
    assert max(working_sets(cut.graph)) < whole / 4
    kept = [t.size for op in cut.graph.ops if op.constant for t in op.outputs]
    assert sum(kept) < length * length


def test_what_is_drawn_in_each_step_is_no_constant() -> None:
    _, known = traced_with(
        lambda x: x + tf.exp(tf.random.normal([8, 32])), arrays(((8, 32),))
    )
    (op,) = (op for op in known.graph.ops if op.type == "Exp")
    assert Cuts(known.graph, known.nodes, OpSize(most=0)).of(op, 2)


def test_an_op_whose_parts_are_joined_at_once_stays_whole() -> None:
    _, known = traced_with(lambda x: tf.cumsum(tf.tanh(x)), arrays(((4, 64, 64),)))
    assert not regions(known.graph, known.nodes, OpSize(most=1 << 14))


def test_an_op_that_reads_what_varies_in_size_stays_whole() -> None:
    """A slice of its input would have a size that the input may not have."""

    def masked(x: Any) -> Any:
        return tf.boolean_mask(x, x[:, 0] > 0)

    def step(x: Any) -> Any:
        kept = masked(x)
        some = tf.cond(x[0, 0] > 0, lambda: masked(x), lambda: x)
        product: Any = tf.linalg.matmul(kept, kept, transpose_a=True)
        return product + tf.reduce_sum(some, 0)

    _, known = traced_with(step, arrays(((64, 32),)))
    found = [op for op in known.graph.ops if op.type in ("MatMul", "Sum")]
    assert len(found) == 2
    cuts = Cuts(known.graph, known.nodes, OpSize(most=0, rows=True))
    assert not any(op.varies or cuts.of(op, 2) for op in found)


def test_parts_that_follow_each_other_are_written_into_one_memory() -> None:
    """Not where other axes come before, and not numbers that no kernel writes so."""

    def step(x: Any) -> Any:
        rows, columns = tf.tanh(x), tf.sin(x)
        numbers = tf.cast(tf.cos(x), tf.int64)
        found = (tf.cumsum(each) for each in (rows, columns, numbers))
        return tf.add_n([tf.cast(each, tf.float32) for each in found])

    given = arrays(CUBE)
    traced, known = traced_with(step, given)
    cuts = Cuts(known.graph, known.nodes, OpSize(most=0))
    made = {op.type: op for op in known.graph.ops}
    found = [
        Region(cuts={made[kind].name: cuts.of(made[kind], 4)[axis]}, parts=4)
        for kind, axis in (("Tanh", 0), ("Sin", 1))
    ]
    number = next(op for op in known.graph.ops if op.outputs[0].dtype == "int64")
    found.append(Region(cuts={number.name: cuts.of(number, 4)[0]}, parts=4))
    nodes = with_slices(known.nodes, known.graph, found, 0)
    written = [n.name.split("/")[0] for n in nodes if "Update" in n.op]
    assert written == ["Tanh"] * 4
    whole, parts = (
        rebuild(traced, known, each)(traced.flat_inputs(given)).numpy()
        for each in (known.nodes, nodes)
    )
    assert whole.tobytes() == parts.tobytes()
    small = [replace(each, most=2 * number.outputs[0].size) for each in found]
    assert not any(
        "Update" in n.op for n in with_slices(known.nodes, known.graph, small, 0)
    )


def test_a_cut_op_whose_parts_are_read_whole_needs_the_whole_and_one_part() -> None:
    def step(x: Any) -> Any:
        return tf.cumsum(tf.concat([tf.sin(x), tf.cos(x)], -1))

    _, known = traced_with(step, arrays(((16, 64, 64),)))
    (whole,) = (op.outputs[0].size for op in known.graph.ops if op.type == "ConcatV2")
    found = regions(known.graph, known.nodes, OpSize(most=whole))
    assert [region.parts for region in found] == [2]
    nodes = with_slices(known.nodes, known.graph, found, 0)
    assert sum(node.op == "_ParallelConcatUpdate" for node in nodes) == 2
