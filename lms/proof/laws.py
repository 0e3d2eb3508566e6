"""Laws of ops in parts: which block of its output an op makes of blocks of its inputs.

    y = op(x, w)        op(x[block], w) == y[block']

A block is a range along some axes of a whole tensor. A law maps axes of each input to
axes of the output, and the output's block has the ranges of all mapped axes. No range
may lie on another axis: an op that adds over an axis reads all of it. Tensors of equal
elements are blocks of any tensor of these.

The laws hold for real numbers. A kernel may add in another order for a part; whether
bits are equal is measured before a step is split, and not proved here.

Sources: op definitions in tensorflow/core/ops; `FillPhiloxRandom` in random_op_cpu.h (a
count of the counter gives four numbers, or two of 64 bits).
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, TypeAlias

__all__ = ["SIZES", "Block", "Whole", "find_block"]

# (axis, begin, end) of each axis that is not whole, ascending.
Block: TypeAlias = tuple[tuple[int, int, int], ...]
_Maps: TypeAlias = Sequence[Mapping[int, int]]  # by input: its axes to the output's

SIZES = {"Reshape": 1, "BroadcastTo": 1, "Fill": 0, "Slice": 2, "AvgPoolGrad": 0}
SIZES |= {"StatelessRandomUniformV2": 0, "AvgPool3DGrad": 0, "Conv2DBackpropInput": 0}
SIZES |= {"Conv3DBackpropInputV2": 0, "DepthwiseConv2dNativeBackpropInput": 0}
"""Position of the input that says the output's shape, by type of op."""

_FLOAT64 = 2  # TensorFlow's number of the type


class Whole(NamedTuple):
    """An op before: node, shapes of inputs and output, integers of constant inputs."""

    proto: Any
    read: Sequence[tuple[int, ...]]
    made: tuple[int, ...]
    integers: Mapping[int, list[int]]

    @property
    def rank(self) -> int:
        """Number of axes of the output."""
        return len(self.made)

    @property
    def channels(self) -> int:
        """The output's axis of channels."""
        first = self.proto.attr["data_format"].s.startswith(b"NC")
        return 1 if first else self.rank - 1

    def said(self, *keys: str, default: int = 0) -> int:
        """Return the first attribute that there is."""
        found = (self.proto.attr[key] for key in keys if key in self.proto.attr)
        return next((value.i or value.b for value in found), default)

    def kept(self, *left_out: int) -> dict[int, int]:
        """Map axes of the first input to themselves where the sizes are equal."""
        pairs = enumerate(zip(self.read[0], self.made, strict=False))
        return {a: a for a, (n, m) in pairs if n == m and a not in left_out}


def find_block(
    whole: Whole,
    blocks: Sequence[Block],
    shapes: Sequence[tuple[int, ...]],
    sizes: list[int] | None,
    count: int | None,
) -> tuple[str, Block] | None:
    """Return (law, the block of the output that a part makes); None if no law says.

    Args:
        whole: The op of which the other is a part.
        blocks: What the part reads of each input; empty for all, and for elements that
            are equal.
        shapes: Shapes of what the part reads.
        sizes: The constant that says the shape of the part's output, if one does.
        count: Where the part's random numbers begin; None without random numbers.
    """
    law = _LAWS.get(whole.proto.op, "")
    try:
        if count is not None:
            found = _drawn(whole, sizes or [], count)
        else:
            found = _joined(whole, [*_MAPS[law](whole)], blocks, shapes)
    except (LookupError, ValueError, ZeroDivisionError):  # a shape is not known
        return None
    says_so = sizes is None or (found and _has_shape(whole, found, sizes))
    return (law, found) if found and says_so else None


def _joined(
    whole: Whole, maps: _Maps, blocks: Sequence[Block], shapes: Sequence[Sequence[int]]
) -> Block | None:
    ranges = dict[int, tuple[int, int]]()
    for block, axes, sides in zip(blocks, maps, whole.read, strict=False):
        for axis, begin, end in block:
            size, own = sides[axis], whole.made[axes[axis]]
            made = begin * own // size, end * own // size
            is_whole = begin * own % size == end * own % size == 0
            if not is_whole or ranges.setdefault(axes[axis], made) != made:
                return None
    for i, (sides, shape) in enumerate(zip(whole.read, shapes, strict=True)):
        read = [*sides]
        for axis, to in maps[i].items() if i < len(maps) else ():
            begin, end = ranges.get(to, (0, whole.made[to]))
            read[axis] = (end - begin) * sides[axis] // whole.made[to]
        is_told = i == SIZES.get(whole.proto.op)
        if not is_told and (read != [*shape] or (i >= len(maps) and blocks[i])):
            return None
    return tuple((axis, *ranges[axis]) for axis in sorted(ranges))


def _has_shape(whole: Whole, block: Block, sizes: list[int]) -> bool:
    cut = {axis: end - begin for axis, begin, end in block}
    shape = [cut.get(axis, size) for axis, size in enumerate(whole.made)]
    is_told = whole.proto.op == "Slice" or sizes.count(-1) <= 1
    pairs = zip(shape, sizes, strict=True)
    return is_told and all(size in (own, -1) for own, size in pairs)


def _drawn(whole: Whole, sizes: list[int], count: int) -> Block | None:
    """Numbers are drawn in the order of memory: a part goes on where another ends."""
    pairs = enumerate(zip(whole.made, sizes, strict=True))
    (axis,) = (axis for axis, (own, size) in pairs if own != size)
    numbers = count * (2 if whole.proto.attr["dtype"].type == _FLOAT64 else 4)
    inner = prod(whole.made[axis + 1 :])
    begin, end = numbers // inner, numbers // inner + sizes[axis]
    fits = numbers % inner == 0 and 0 <= begin < end <= whole.made[axis]
    return ((axis, begin, end),) if fits and prod(whole.made[:axis]) == 1 else None


def _align(w: Whole) -> _Maps:
    """Align axes from the right, as broadcasts do."""
    read = [(shape, w.rank - len(shape)) for shape in w.read]
    read = read[: 1 if w.proto.op == "BroadcastTo" else None]
    return [{a: a + k for a, n in enumerate(s) if n == w.made[a + k]} for s, k in read]


def _reduce(w: Whole) -> _Maps:
    over = {axis % len(w.read[0]) for axis in w.integers[1]}
    left = [axis for axis in range(len(w.read[0])) if axis not in over]
    return [{a: a if w.said("keep_dims") else i for i, a in enumerate(left)}]


def _multiply(w: Whole) -> _Maps:
    maps = list[dict[int, int]]()
    rows = w.said("adj_x", "transpose_a"), not w.said("adj_y", "transpose_b")
    for i, (shape, last) in enumerate(zip(w.read[:2], rows, strict=True)):
        n = len(shape)
        maps.append({a: a + w.rank - n for a in range(n - 2) if shape[a] > 1})
        maps[i][n - 1 if last else n - 2] = w.rank - 2 + i
    return [*maps, *({0: w.rank - 1} for _ in w.read[2:])]


def _label(w: Whole) -> _Maps:
    said = w.proto.attr["equation"].s.decode().replace(" ", "")
    told, _, made = said.partition("->")
    read = told.split(",")
    if "." in said or any(len({*x}) < len(x) for x in (*read, made)):
        return []
    return [{i: made.index(x) for i, x in enumerate(xs) if x in made} for xs in read]


def _pool(w: Whole) -> _Maps:
    own = {0: 0, w.channels: w.channels}
    return [{}, own] if w.proto.op in SIZES else [own for _ in w.read]


def _reshape(w: Whole) -> _Maps:
    """Map axes with equally many elements before them, to the longest of several."""
    found = dict[int, int]()
    for axis, size in enumerate(w.read[0]):
        before = prod(w.read[0][:axis])
        same = [o for o in range(w.rank) if prod(w.made[:o]) == before]
        if size > 1 and same:
            found[axis] = max(same, key=lambda o: w.made[o])
    return [found]


def _stay(w: Whole) -> _Maps:
    """Map all axes but the one along which an op splits or concatenates."""
    op, given = w.proto.op, len(w.read[0])
    if op in ("Pack", "Unpack"):
        at = w.said("axis") % max(w.rank, given)
        pairs = [(a + (a >= at), a) for a in range(max(w.rank, given) - 1)]
        return [{x: y for y, x in pairs} if op == "Pack" else dict(pairs)] * len(w.read)
    place = {"Split": 0, "SplitV": 2}.get(op, len(w.read) - 1)
    at = w.integers[place][0] % w.rank
    own = {a: a for a in range(w.rank) if a != at}
    return [{} if i == place else own for i in range(len(w.read))]


_MAPS: Mapping[str, Callable[[Whole], _Maps]] = {
    "element by element": _align,
    "bias by channel": lambda w: [w.kept(), {0: w.channels}],
    "row by row": lambda w: [w.kept(w.rank - 1)] * (w.said("axis", default=-1) < 0),
    "loss by row": lambda w: [{0: 0} for shape in w.read if shape[0] == w.made[0]],
    "choice by row": lambda w: [
        {a: a for a in range(len(shape))} for shape in (w.read[0], w.made, w.made)
    ],
    "sum over other axes": _reduce,
    "product by row, column and batch": _multiply,
    "product by label": _label,
    "convolution by example": lambda w: [{0: 0}],  # noqa: ARG005
    "gradient by example": lambda w: [{}, {}, {0: 0}],  # noqa: ARG005
    "pooling by example and channel": _pool,
    "resize by example and channel": lambda w: [{0: 0, w.rank - 1: w.rank - 1}] * 2,
    "permuted axes": lambda w: [{axis: i for i, axis in enumerate(w.integers[1])}],
    "elements in the order of memory": _reshape,
    "other axes stay": _stay,
    "axes of equal size stay": lambda w: [w.kept()],
    "rolled along other axes": lambda w: [w.kept(*(a % w.rank for a in w.integers[2]))],
}

_TABLE = """
element by element: Neg Abs Sqrt Rsqrt Square Exp Expm1 Log Log1p Tanh Sigmoid Sign
    Floor Round Reciprocal Inv Erf Erfc Relu Relu6 LeakyRelu Elu Selu Softplus Softsign
    Cast LogicalNot ClipByValue _UnaryOpsComposition Add AddV2 Sub Mul MulNoNan RealDiv
    Div DivNoNan Maximum Minimum Pow SquaredDifference Xdivy Xlogy LogicalAnd LogicalOr
    SelectV2 TanhGrad SigmoidGrad SqrtGrad RsqrtGrad InvGrad ReluGrad Relu6Grad
    LeakyReluGrad EluGrad SeluGrad SoftplusGrad SoftsignGrad BitwiseAnd BitwiseOr
    BitwiseXor Invert LeftShift RightShift AddN Greater GreaterEqual Less LessEqual
    Equal NotEqual ZerosLike OnesLike Sin Cos Ceil Rint IsNan IsInf IsFinite FloorDiv
    FloorMod Erfinv Tan Atan Sinh Cosh Asinh Acosh Xlog1py BroadcastTo
bias by channel: BiasAdd
row by row: Softmax LogSoftmax TopKV2 OneHot
loss by row: SparseSoftmaxCrossEntropyWithLogits SoftmaxCrossEntropyWithLogits
choice by row: Select
sum over other axes: Sum Mean Prod Max Min All Any ArgMax ArgMin
product by row, column and batch: MatMul _FusedMatMul BatchMatMul BatchMatMulV2
    BatchMatMulV3
product by label: Einsum
convolution by example: Conv2D Conv3D DepthwiseConv2dNative _FusedConv2D _FusedConv3D
gradient by example: Conv2DBackpropInput Conv3DBackpropInputV2
    DepthwiseConv2dNativeBackpropInput
pooling by example and channel: AvgPool AvgPool3D MaxPool MaxPool3D AvgPoolGrad
    AvgPool3DGrad MaxPoolGrad MaxPool3DGrad
resize by example and channel: ResizeNearestNeighbor ResizeBilinear ResizeBilinearGrad
permuted axes: Transpose
elements in the order of memory: Reshape ExpandDims Squeeze
other axes stay: ConcatV2 Pack Unpack Split SplitV
axes of equal size stay: Slice Pad PadV2 MirrorPad Tile
rolled along other axes: Roll
random numbers by counter: StatelessRandomUniformV2
"""
_ROWS = [row.split(": ") for row in _TABLE.strip().replace("\n    ", " ").splitlines()]
_LAWS = {op: law for law, ops in _ROWS for op in ops.split()}
