"""Upper bounds of output shapes, by an op's type and inputs.

Each rule is sound: no values make an axis of an output longer than its bound. Ops
without a bound are not listed. `PARTS_OF` lists ops whose output has at most as many
elements as one of the inputs, in any shape.

Sources: the shape functions in tensorflow/core/ops.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import tensorflow as tf

from lms.tf import compat
from lms.tf.capture.bound_values import Shape, Values, attribute
from lms.tf.capture.op_facts import RESERVED, RESERVES, words
from lms.tf.nodes import full_name, index_of, source_of

__all__ = [
    "COMBINES",
    "PARTS_OF",
    "RULES",
    "SIZED",
    "Partial",
    "Shapes",
    "partial_shape",
]

Partial: TypeAlias = list[int | None] | None
"""A shape that TensorFlow inferred, None for open axes; None if the rank is open."""


class Shapes:
    """Looks up upper bounds of tensors' shapes.

    Args:
        ordered: Nodes, each after its inputs.
        specs: Types and shapes of all outputs; open shapes may be filled in.
    """

    def __init__(
        self,
        ordered: Sequence[compat.NodeDef],
        specs: Mapping[str, list[tf.TensorSpec]],
    ) -> None:
        self.specs = dict(specs)
        self.nodes = {node.name: node for node in ordered}
        self.values = Values(self.nodes, self.of)
        self.flat: set[str] = set()
        """Tensors of which only the number of elements is bounded."""

    def of(self, name: str) -> Shape | None:
        """Return a tensor's bound, or None."""
        return None if full_name(name) in self.flat else self.elements(name)

    def elements(self, name: str) -> Shape | None:
        """Return a tensor's bound; of a `flat` tensor, a shape of one axis."""
        shape = self.specs[source_of(name)][index_of(name)].shape
        return whole(shape.as_list()) if shape.is_fully_defined() else None

    def data(self, node: compat.NodeDef) -> list[str]:
        """Return the names of the tensors that an op reads."""
        return [name for name in node.input if not name.startswith("^")]


Rule: TypeAlias = Callable[[Shapes, compat.NodeDef, int], Shape | None]


def _like(index: int) -> Rule:
    """Bound an output by the shape of one input."""
    return lambda known, node, _: known.of(node.input[index])


def _given(index: int) -> Rule:
    """Bound an output by the values of the input that gives its shape."""
    return lambda known, node, _: known.values.of(node.input[index])


def _broadcast(known: Shapes, node: compat.NodeDef, _: int) -> Shape | None:
    """Return the longest of each axis: broadcast axes are equally long, or of one."""
    return _largest([known.of(name) for name in known.data(node)])


def _merge(known: Shapes, node: compat.NodeDef, index: int) -> Shape | None:
    """Return the larger of two branches' shapes; None for a loop, which may change."""
    names = known.data(node)
    sources = [known.nodes.get(source_of(name)) for name in names]
    shapes = [known.of(name) for name in names]
    ranks = {None if shape is None else len(shape) for shape in shapes}
    loops = any(s is None or s.op in ("NextIteration", "Enter") for s in sources)
    return None if index or loops or len(ranks) > 1 else _largest(shapes)


def _tile(known: Shapes, node: compat.NodeDef, _: int) -> Shape | None:
    read, times = known.of(node.input[0]), known.values.of(node.input[1])
    if read is None or times is None:
        return None
    return tuple(size * count for size, count in zip(read, times, strict=True))


def _cut(known: Shapes, node: compat.NodeDef, _: int) -> Shape | None:
    """Return the requested sizes, each at most the input's."""
    read, asked = known.of(node.input[0]), known.values.of(node.input[2])
    if read is None or asked is None:
        return read
    return tuple(min(sizes) for sizes in zip(read, asked, strict=True))


def _slice(known: Shapes, node: compat.NodeDef, _: int) -> Shape | None:
    """Return the input's shape; None if masks change the axes."""
    moved = any(attribute(node, f"{name}_mask") for name in ("new_axis", "shrink_axis"))
    return (
        None if moved or attribute(node, "ellipsis_mask") else known.of(node.input[0])
    )


def _suppressed(known: Shapes, node: compat.NodeDef, index: int) -> Shape | None:
    """Return one number for each requested box; None for outputs that count boxes."""
    asked = known.values.of(node.input[2])
    return asked[:1] if asked and index < 1 + node.op.endswith("V5") else None


def _where(known: Shapes, node: compat.NodeDef, _: int) -> Shape | None:
    read = known.of(node.input[0])
    return None if read is None else (math.prod(read), len(read))


def _unique(known: Shapes, node: compat.NodeDef, _: int) -> Shape | None:
    read = known.of(node.input[0])
    return read if read is not None and len(read) == 1 else None


def _range(known: Shapes, node: compat.NodeDef, _: int) -> Shape | None:
    """Bound a range from a start of at least 0 in steps of at least 1 by its limit."""
    start, limit, step = (known.values.of(name) for name in known.data(node))
    if start is None or limit is None:
        return None
    steps = known.values.constant(node.input[2])
    return limit if step and steps is not None and steps[0] > 0 else None


def _segments(known: Shapes, node: compat.NodeDef, _: int) -> Shape | None:
    """Return one row for each segment."""
    data, ids = known.of(node.input[0]), known.of(node.input[1])
    count = known.values.of(node.input[2])
    if data is None or ids is None or count is None or len(count) != 1:
        return None
    return (*count, *data[len(ids) :])


def _sorted_segments(known: Shapes, node: compat.NodeDef, _: int) -> Shape | None:
    """Return the data's shape: ids that `Unique` numbers give at most as many rows."""
    name = node.input[1]
    source = known.nodes.get(source_of(name))
    while source is not None and source.op in ("Identity", "Cast"):
        name = source.input[0]
        source = known.nodes.get(source_of(name))
    numbered = source is not None and source.op in ("Unique", "UniqueWithCounts")
    return known.of(node.input[0]) if numbered and name.endswith(":1") else None


def _gather(known: Shapes, node: compat.NodeDef, _: int) -> Shape | None:
    params, ids = known.of(node.input[0]), known.of(node.input[1])
    axis = known.values.constant(node.input[2])
    if params is None or ids is None or axis is None:
        return None
    at, batch = axis[0] % len(params), attribute(node, "batch_dims")
    if batch < 0:
        return None
    return (*params[:at], *ids[batch:], *params[at + 1 :])


def _rows_of(known: Shapes, node: compat.NodeDef, _: int) -> Shape | None:
    """Return a row for each index; TensorFlow inferred the row's shape."""
    ids = known.of(node.input[1])
    shape = partial_shape(known.specs[node.name][0].shape)
    if ids is None or shape is None or attribute(node, "batch_dims"):
        return None
    axes = len(ids) - (node.op in ("GatherNd", "ResourceGatherNd"))
    row = whole(shape[axes:])
    return None if row is None else (*ids[:axes], *row)


def _concat(known: Shapes, node: compat.NodeDef, _: int) -> Shape | None:
    *names, last = known.data(node)
    shapes = [known.of(name) for name in names]
    axis, largest = known.values.constant(last), _largest(shapes)
    if axis is None or not largest or len({len(s) for s in shapes if s}) > 1:
        return None
    at = axis[0] % len(largest)
    total = sum(shape[at] for shape in shapes if shape)
    return (*largest[:at], total, *largest[at + 1 :])


def _pack(known: Shapes, node: compat.NodeDef, _: int) -> Shape | None:
    names = known.data(node)
    each = _largest([known.of(name) for name in names])
    if each is None:
        return None
    at = attribute(node, "axis") % (len(each) + 1)
    return (*each[:at], len(names), *each[at:])


def _transpose(known: Shapes, node: compat.NodeDef, _: int) -> Shape | None:
    read, axes = known.of(node.input[0]), known.values.constant(node.input[1])
    return None if read is None or axes is None else tuple(read[i] for i in axes)


def _reduce(known: Shapes, node: compat.NodeDef, _: int) -> Shape | None:
    read, axes = known.of(node.input[0]), known.values.constant(node.input[1])
    if read is not None and axes is None and attribute(node, "keep_dims"):
        return tuple(max(1, size) for size in read)
    if read is None or axes is None:
        return None
    gone = {i % len(read) for i in axes}
    if attribute(node, "keep_dims"):
        return tuple(1 if i in gone else size for i, size in enumerate(read))
    return tuple(size for i, size in enumerate(read) if i not in gone)


def _product(known: Shapes, node: compat.NodeDef, _: int) -> Shape | None:
    """Return the shape of a product of two matrices, or of two batches of matrices."""
    left, right = known.of(node.input[0]), known.of(node.input[1])
    if left is None or right is None:
        return None
    stacks = _largest([left[:-2], right[:-2]])
    rows = left[-1 if attribute(node, "transpose_a", "adj_x") else -2]
    columns = right[-2 if attribute(node, "transpose_b", "adj_y") else -1]
    return None if stacks is None else (*stacks, rows, columns)


def _entropy(known: Shapes, node: compat.NodeDef, index: int) -> Shape | None:
    """Return one loss for each row, or the shape of the logits for their gradient."""
    logits = known.of(node.input[0])
    return logits if logits is None or index else logits[:1]


def _recurrent(known: Shapes, node: compat.NodeDef, index: int) -> Shape | None:
    """Bound cuDNN's reserve for gradients of recurrent layers, on device and on host.

    cuDNN says the true size when it runs; `lms.tf.measure.scratch` measures it where
    memory suffices. An LSTM keeps four gates, the state and its tangent for each unit
    and step: about half of this bound.
    """
    read, state = known.of(node.input[0]), known.of(node.input[1])
    if index < RESERVED or read is None or state is None:
        return None
    if index > RESERVED:
        return (_ALGORITHM,)
    steps = read[0 if attribute(node, "time_major") else 1]
    return (_RESERVED_EACH * steps * math.prod(state),)


# Elements kept on the device for each unit and step; bytes kept on the host.
_RESERVED_EACH, _ALGORITHM = 16, 64
_MOST_AXES = 32  # of a tensor: no kernel takes more

_ALIKE = words(
    """Identity StopGradient PreventGradient EnsureShape CheckNumerics Snapshot DeepCopy
    Switch Cast ZerosLike OnesLike Cumsum Cumprod ReverseV2 BiasAdd Neg Abs Sqrt Rsqrt
    Square Exp Expm1 Log Log1p Tanh Sigmoid Sign Floor Ceil Round Rint Reciprocal Inv
    Erf Erfc Sin Cos Relu Relu6 LeakyRelu Elu Selu Softplus Softsign Softmax LogSoftmax
    LogicalNot IsFinite IsNan IsInf ClipByValue _UnaryOpsComposition DataFormatDimMap
    DataFormatVecPermute"""
)

# Gradients that an input tells the shape of their output.
SIZED = ("Conv2DBackpropInput", "Conv3DBackpropInputV2")

# Ops whose outputs have at most as many elements as one input, and its index.
PARTS_OF = dict.fromkeys(
    _ALIKE
    | words(
        """Reshape Squeeze ExpandDims StridedSlice Slice Transpose Sum Mean Prod Max Min
        All Any ArgMax ArgMin DynamicPartition SplitV Unpack UniqueV2"""
    ),
    0,
) | {"Split": 1}

RULES: dict[str, Rule] = {
    **dict.fromkeys(PARTS_OF, lambda *_: None),
    **dict.fromkeys((*_ALIKE, "ListDiff"), _like(0)),
    **dict.fromkeys(
        words(
            """Add AddV2 Sub Mul MulNoNan RealDiv Div DivNoNan FloorDiv FloorMod Maximum
            Minimum Pow SquaredDifference Xdivy Xlogy Atan2 LogicalAnd LogicalOr Greater
            GreaterEqual Less LessEqual Equal NotEqual SelectV2 AddN TanhGrad
            SigmoidGrad SqrtGrad RsqrtGrad InvGrad ReciprocalGrad ReluGrad Relu6Grad
            LeakyReluGrad EluGrad SeluGrad SoftplusGrad SoftsignGrad"""
        ),
        _broadcast,
    ),
    **dict.fromkeys(words("Sum Mean Prod Max Min All Any"), _reduce),
    **dict.fromkeys(words("Unique UniqueWithCounts UniqueV2"), _unique),
    **dict.fromkeys(
        [f"UnsortedSegment{how}" for how in ("Sum", "Prod", "Max", "Min")], _segments
    ),
    **dict.fromkeys(
        [f"Segment{how}" for how in ("Sum", "Mean", "Prod", "Max", "Min")],
        _sorted_segments,
    ),
    **dict.fromkeys(words("ResourceGather ResourceGatherNd GatherNd Gather"), _rows_of),
    **dict.fromkeys(words("MatMul _FusedMatMul BatchMatMul BatchMatMulV2"), _product),
    **dict.fromkeys(
        words("SparseSoftmaxCrossEntropyWithLogits SoftmaxCrossEntropyWithLogits"),
        _entropy,
    ),
    **dict.fromkeys(
        words(
            "Fill RandomUniform RandomStandardNormal TruncatedNormal StridedSliceGrad"
        ),
        _given(0),
    ),
    **dict.fromkeys(SIZED, _given(0)),
    **dict.fromkeys(words("BroadcastTo Reshape"), _given(1)),
    **dict.fromkeys(RESERVES, _recurrent),
    "ScatterNd": _given(2),
    "ConcatV2": _concat,
    "GatherV2": _gather,
    "BroadcastGradientArgs": _broadcast,  # axes to sum over
    "Merge": _merge,
    **dict.fromkeys(
        [f"NonMaxSuppressionV{version}" for version in (2, 3, 4, 5)], _suppressed
    ),
    "NonMaxSuppressionWithOverlaps": _suppressed,
    "Pack": _pack,
    "Range": _range,
    "Select": _like(1),
    "Slice": _cut,
    "StridedSlice": _slice,
    "TensorListElementShape": lambda *_: (_MOST_AXES,),
    "Tile": _tile,
    "Transpose": _transpose,
    "Where": _where,
}


COMBINES = {op for op, rule in RULES.items() if rule in (_broadcast, _product)}
"""Ops whose output may have more elements than all inputs together."""


def _largest(shapes: Sequence[Shape | None]) -> Shape | None:
    """Return the longest of each axis, aligned at the last; None if a shape is None."""
    known = [shape for shape in shapes if shape is not None]
    if len(known) != len(shapes) or not known:
        return None
    rank = max(map(len, known))
    padded = [(1,) * (rank - len(shape)) + shape for shape in known]
    return tuple(max(sizes) for sizes in zip(*padded, strict=True))


def partial_shape(shape: tf.TensorShape) -> Partial:
    """Return a shape with None for open axes; None if the rank is open."""
    return None if shape.rank is None else list(shape.as_list())


def whole(sizes: Sequence[int | None]) -> Shape | None:
    """Return the sizes if all are known, else None."""
    known = tuple(size for size in sizes if size is not None)
    return known if len(known) == len(sizes) else None
