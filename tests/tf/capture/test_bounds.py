"""Bounds of shapes that depend on values: what runs is never larger than is counted."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lms.tf import compat
from lms.tf.capture.tracing import trace
from lms.tf.lowering import specialise
from tests.tf.steps import DEVICE, specialised

pytestmark = pytest.mark.tf

_ROWS = 8

Step = Callable[[Any, Any], Any]


def _masked(x: Any, ids: Any) -> Any:
    """Return the chosen rows, and the gradient of a loss that reads these rows."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        chosen = tf.boolean_mask(tf.sin(x), ids > 3)
        loss = tf.reduce_sum(tf.nn.softmax(chosen) * tf.exp(chosen)[:, :1])
    return chosen, tape.gradient(loss, x)


def _labelled(x: Any, ids: Any) -> Any:
    """A loss of the rows that have a label, as of words that are not padding."""
    weights = tf.ones([4, 5])
    with tf.GradientTape() as tape:
        tape.watch(x)
        logits = tf.boolean_mask(x, ids > 3) @ weights
        labels = tf.boolean_mask(ids % 5, ids > 3)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = tf.reduce_mean(losses)
    return losses, tape.gradient(loss, x)


def _deduplicated(x: Any, ids: Any) -> Any:
    """Rows of equal ids added up, as optimizers do with sparse gradients."""
    unique, where = tf.unique(ids)
    count = tf.shape(unique)[0]
    sums = tf.math.unsorted_segment_sum(x, where, count)
    means = sums / tf.math.rsqrt(tf.reduce_mean(tf.square(sums), 1, keepdims=True))
    back = tf.gather(means, where)
    return unique, sums, means, back, tf.zeros([2 * count, 3]), tf.range(count)


def _branched(x: Any, ids: Any) -> Any:
    rows = tf.cond(
        tf.reduce_sum(x) > 0,
        lambda: tf.boolean_mask(x, ids > 3),
        lambda: tf.boolean_mask(x, ids > 5) + tf.constant(1.0),
    )
    return tf.square(rows) * 2.0


def _shaped(x: Any, ids: Any) -> Any:
    rows = tf.boolean_mask(x, ids > 3)
    two = tf.concat([rows, x, rows], 0)
    flat = tf.reshape(rows, [-1])
    square = tf.matmul(rows, rows, transpose_b=True)
    size = tf.shape(rows)
    some = tf.reshape(tf.stack([rows, rows], 1), tf.stack([size[0] * 2, size[1]]))
    wide = tf.broadcast_to(rows[:, 1], [3, size[0]])
    others = tf.where(rows > 0), wide, square + rows[:, 1]
    return two, flat, tf.transpose(square)[1:], some, rows[::2], *others


def _run(step: Any, names: list[str], *args: Any) -> Any:
    """Tensors of a step."""
    nodes = compat.graph_def(step.nodes, step.library)
    given = [(a.name, a.spec, a.variable) for a in step.arguments]
    function = compat.build_function(nodes, given, names)
    captured = [a.captured for a in step.arguments if a.captured is not None]
    with compat.planned_as_is():
        return function.call_flat(*args, *captured)


def _arguments(seed: int) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    highest = (1, 3, 6, 9)[seed % 4]
    values = random.standard_normal((_ROWS, 4)).astype("float32")
    return tf.constant(values), tf.constant(random.integers(0, highest, _ROWS))


@pytest.mark.parametrize(
    "step", [_masked, _labelled, _deduplicated, _branched, _shaped]
)
def test_no_values_make_a_tensor_larger_than_it_is_counted(step: Step) -> None:
    traced = specialised(step, *_arguments(0))
    graph = traced.graph
    names = [
        tensor.name
        for op in graph.ops
        if not op.persistent and (not op.fixed or op.type == "Merge")
        for tensor in op.outputs
        if tensor.dtype not in ("resource", "variant", "string")
    ]
    smaller: set[str] = set()
    for seed in range(12):
        made = _run(traced, names, *_arguments(seed))
        for name, value in zip(names, made, strict=True):
            most = graph.tensors[name].shape
            assert len(value.shape) == len(most), name
            assert all(a <= b for a, b in zip(value.shape, most, strict=True)), name
            if tuple(value.shape) != most:
                smaller.add(name)
    varying = {t.name for op in graph.ops if op.varies or op.fixed for t in op.outputs}
    assert smaller
    assert smaller <= varying


def test_rows_of_equal_ids_are_at_most_as_many_as_all() -> None:
    graph = specialised(_deduplicated, *_arguments(0)).graph
    shapes = {op.type: op.outputs[0].shape for op in graph.ops if op.varies}
    assert shapes["Unique"] == (_ROWS,)
    assert shapes["UnsortedSegmentSum"] == (_ROWS, 4)
    assert shapes["Fill"] == (2 * _ROWS, 3)


def test_of_boxes_there_are_as_many_as_are_asked_for() -> None:
    def step(x: Any, ids: Any) -> Any:
        kept = tf.image.non_max_suppression(x, x[:, 0], 5)
        soft = tf.image.non_max_suppression_with_scores(x, x[:, 0], 3)
        return tf.gather(x, kept), soft, ids

    graph = specialised(step, *_arguments(0)).graph
    shapes = {op.type: [t.shape for t in op.outputs] for op in graph.ops if op.varies}
    assert shapes["NonMaxSuppressionV3"] == [(5,)]
    assert shapes["NonMaxSuppressionV5"] == [(3,), (3,), ()]
    assert shapes["GatherV2"] == [(5, 4)]


def test_what_depends_on_values_is_not_made_again() -> None:
    graph = specialised(_masked, *_arguments(0)).graph
    varying = [op for op in graph.ops if op.varies]
    assert {"GatherV2", "Exp", "Mul"} <= {op.type for op in varying}
    assert not any(op.repeatable or op.inplace for op in varying)


def test_lists_of_a_loop_have_the_shapes_that_the_batch_tells() -> None:
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            count = tf.shape(x)[0]
            rows = tf.TensorArray(tf.float32, count, element_shape=[None])
            for i in tf.range(count):
                rows = rows.write(i, tf.square(x[i]))
            loss = tf.reduce_sum(tf.exp(rows.stack()))
        return tape.gradient(loss, x)

    traced, given = trace(step, [tf.TensorSpec([None, 4])]), [tf.TensorSpec([6, 4])]
    assert specialise(traced, given, device=DEVICE).guessed
    found = specialise(traced, given, device=DEVICE, guesses=True)
    stacked = [op for op in found.graph.ops if op.type == "TensorListStack"]
    assert {op.outputs[0].shape for op in stacked} == {(6, 4)}
    assert not found.unknown_loops
    assert not found.guessed


def test_a_loop_may_be_told_its_end_by_a_tensor_of_any_shape() -> None:
    def step(x: Any) -> Any:
        rows: Any = tf.numpy_function(lambda a: a, [x], tf.float32)
        rows.set_shape([None, None])
        y = x
        with tf.GradientTape() as tape:
            tape.watch(x)
            for _ in tf.range(tf.shape(rows)[1]):
                y = tf.tanh(y)
        return tape.gradient(y, x)

    given = [tf.TensorSpec([6, 4])]
    traced = trace(tf.function(step), given)
    for guesses in (False, True):
        found = specialise(traced, given, device=DEVICE, guesses=guesses)
        assert found.unknown_memory


def test_a_bound_that_is_too_large_to_be_likely_is_a_guess() -> None:
    def step(x: Any) -> Any:
        kept = tf.boolean_mask(x, x > 0)
        return tf.reduce_sum(tf.abs(kept[:, None] - kept), -1)

    given = [tf.TensorSpec([64])]
    traced = trace(step, given)

    def pairs(*, guesses: bool) -> list[int]:
        found = specialise(traced, given, device=DEVICE, guesses=guesses)
        made = (op for op in found.graph.ops if op.type in ("Sub", "Abs"))
        return [op.outputs[0].size for op in made]

    assert set(pairs(guesses=False)) == {64 * 64 * 4}
    assert set(pairs(guesses=True)) == {64 * 4}
