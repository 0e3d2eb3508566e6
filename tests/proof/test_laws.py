"""Every block that a law allows has the numbers of the whole op, computed for real."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lms.proof.laws import SIZES, Block, Whole, find_block
from lms.tf import compat

pytestmark = pytest.mark.tf

_RAW = tf.raw_ops

# By name: the op of its inputs, shapes of these, and blocks that its law must find.
CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], int]] = {
    "broadcast": (lambda x, y: _RAW.AddV2(x=x, y=y), [(4, 1, 6), (2, 6)], 3),
    "square": (lambda x: _RAW.Square(x=x), [(4, 6)], 2),
    "bias": (lambda x, b: _RAW.BiasAdd(value=x, bias=b), [(4, 2, 6), (6,)], 3),
    "softmax": (lambda x: _RAW.Softmax(logits=x), [(4, 6)], 1),
    "one hot": (
        lambda x: _RAW.OneHot(
            indices=tf.cast(x, tf.int32), depth=6, on_value=1.0, off_value=0.0
        ),
        [(4, 2)],
        2,
    ),
    "sum": (lambda x: _RAW.Sum(input=x, axis=[1]), [(4, 6, 2)], 2),
    "kept sum": (lambda x: _RAW.Sum(input=x, axis=[0], keep_dims=True), [(4, 6)], 1),
    "argmax": (lambda x: _RAW.ArgMax(input=x, dimension=1), [(4, 6)], 1),
    "product": (
        lambda x, y: _RAW.MatMul(a=x, b=y, transpose_a=True),
        [(4, 6), (4, 2)],
        2,
    ),
    "turned product": (
        lambda x, y: _RAW.MatMul(a=x, b=y, transpose_b=True),
        [(4, 6), (2, 6)],
        2,
    ),
    "batches": (
        lambda x, y: _RAW.BatchMatMulV2(x=x, y=y, adj_y=True),
        [(2, 4, 6), (2, 8, 6)],
        3,
    ),
    "labels": (
        lambda x, y: _RAW.Einsum(inputs=[x, y], equation="abc,cda->bad"),
        [(2, 4, 6), (6, 8, 2)],
        3,
    ),
    "convolution": (
        lambda x, k: _RAW.Conv2D(
            input=x, filter=k, strides=[1, 1, 1, 1], padding="SAME"
        ),
        [(4, 6, 6, 2), (3, 3, 2, 4)],
        1,
    ),
    "pooling": (
        lambda x: _RAW.MaxPool(
            input=x, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID"
        ),
        [(4, 6, 6, 2)],
        2,
    ),
    "transpose": (lambda x: _RAW.Transpose(x=x, perm=[2, 0, 1]), [(4, 6, 2)], 3),
    "reshape": (lambda x: _RAW.Reshape(tensor=x, shape=[8, 6]), [(4, 2, 6)], 2),
    "concatenation": (
        lambda x, y: _RAW.ConcatV2(values=[x, y], axis=1),
        [(4, 2, 6), (4, 4, 6)],
        2,
    ),
    "pack": (lambda x, y: _RAW.Pack(values=[x, y], axis=1), [(4, 6), (4, 6)], 2),
    "unpack": (lambda x: _RAW.Unpack(value=x, num=2, axis=1), [(4, 2, 6)], 2),
    "split": (lambda x: _RAW.Split(axis=1, value=x, num_split=2), [(4, 6, 2)], 2),
    "padding": (lambda x: _RAW.Pad(input=x, paddings=[[0, 0], [1, 2]]), [(4, 6)], 1),
    "tiles": (lambda x: _RAW.Tile(input=x, multiples=[1, 3]), [(4, 6)], 1),
    "roll": (lambda x: _RAW.Roll(input=x, shift=[1], axis=[1]), [(4, 6)], 1),
    "choice": (
        lambda x, y: _RAW.Select(condition=[True, False, True, True], x=x, y=y),
        [(4, 6), (4, 6)],
        1,
    ),
}


def _cut(array: np.ndarray, block: Block) -> np.ndarray:
    for axis, begin, end in block:
        array = array.take(range(begin, end), axis)
    return array


def _sides(shape: Sequence[int], block: Block) -> tuple[int, ...]:
    cut = {axis: end - begin for axis, begin, end in block}
    return tuple(cut.get(axis, size) for axis, size in enumerate(shape))


def _halves(shape: Sequence[int]) -> Iterator[Block]:
    """Yield no block, then the first and the second half along each axis."""
    yield ()
    for axis, size in enumerate(shape):
        if size % 2 == 0:
            yield from (((axis, 0, size // 2),), ((axis, size // 2, size),))


@pytest.mark.parametrize("name", CASES)
def test_a_part_has_the_numbers_of_the_whole(name: str) -> None:
    make, shapes, count = CASES[name]
    draw = np.random.default_rng(0)
    given = [draw.integers(0, 5, shape).astype("float32") for shape in shapes]
    graph = tf.function(make, jit_compile=False).get_concrete_function(*given).graph
    skipped = ("Placeholder", "Const", "Identity", "Cast", "NoOp")
    (op,) = (op for op in graph.get_operations() if op.type not in skipped)
    consts = {
        i: tf.make_ndarray(each.op.node_def.attr["value"].tensor).flatten().tolist()
        for i, each in enumerate(op.inputs)
        if each.op.type == "Const" and each.dtype in (tf.int32, tf.int64)
    }
    places = [i for i, each in enumerate(op.inputs) if each.op.type != "Const"]
    whole = Whole(
        proto=op.node_def,
        read=[tuple(each.shape) for each in op.inputs],
        made=tuple(op.outputs[0].shape),
        integers=consts,
    )
    made = np.asarray(tf.nest.flatten(make(*given))[0])
    found = set[int]()
    for blocks in product(*map(_halves, shapes)):
        every: list[Block] = [() for _ in op.inputs]
        for place, block in zip(places, blocks, strict=True):
            every[place] = block
        sides = [_sides(*pair) for pair in zip(whole.read, every, strict=True)]
        answer = find_block(whole, every, sides, None, None)
        if answer is None or not any(blocks):
            continue
        _, block = answer
        found |= {axis for axis, *_ in block}
        if op.type in SIZES or name == "choice":
            continue  # of which a part reads another constant
        parts = [_cut(each, own) for each, own in zip(given, blocks, strict=True)]
        part = np.asarray(tf.nest.flatten(make(*parts))[0])
        np.testing.assert_array_equal(part, _cut(made, block))
    assert len(found) == count, "of the output's axes"


def test_random_numbers_of_a_part_go_on_where_its_counter_says() -> None:
    def draw(rows: int, first: int) -> Any:
        counter = tf.constant([7 + first, 9], tf.uint64)
        key = tf.constant([5], tf.uint64)
        known: Any = {"shape": [rows, 6], "key": key, "counter": counter, "alg": 1}
        return _RAW.StatelessRandomUniformV2(**known)

    node = compat.NodeDef(op="StatelessRandomUniformV2")
    node.attr["dtype"].type = tf.float32.as_datatype_enum
    whole = Whole(proto=node, read=[], made=(8, 6), integers={})
    found = find_block(whole, [], [], [2, 6], 3)
    assert found == ("random numbers by counter", ((0, 2, 4),))
    np.testing.assert_array_equal(draw(2, 3), draw(8, 0)[2:4])
    assert find_block(whole, [], [], [2, 6], 1) is None, "in the middle of a row"
    assert find_block(whole, [], [], [4, 6], 9) is None, "beyond the end"
