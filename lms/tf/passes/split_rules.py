"""Rules to split an op: the axes along which chunks of inputs give chunks of outputs.

    y = op(x, w)    y[rows of part p] == op(x[rows of part p], w)

A rule maps an axis of the output to the axis of each input, or says that the op reads
an input whole. A part has the whole op's bits where one kernel computes each number of
the same inputs in the same order: element-wise ops, ops that move elements, and sums of
rows. The axis of a sum is never split.

Libraries compute products, convolutions, averages and sums of columns. For a smaller
batch, or fewer rows or columns, they may choose an algorithm that adds in another
order, so the last bits may differ: `sums` and `rows` allow such parts.

Sources: op definitions in tensorflow/core/ops; `FillPhiloxRandom` in random_op_cpu.h
and random_op_gpu.h: four numbers for each count of the counter, or two of 64 bits.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import tensorflow as tf

from lms.tf import compat
from lms.tf.capture.ops import PRODUCTS, SPLITS

__all__ = ["NAMED", "Cut", "Shaped", "counted", "cuts"]

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaped:
    """An op with the shapes of its inputs and outputs.

    Args:
        node: TensorFlow's node.
        inputs: Shapes of the inputs.
        outputs: Shapes of the outputs.
        constants: Values of inputs that are small constants, by their positions.
        sums: Whether parts may add in another order than the whole op.
        rows: Whether products may also be split along rows and columns.
    """

    node: compat.NodeDef
    inputs: Sequence[Shape]
    outputs: Sequence[Shape]
    constants: Mapping[int, Any]
    sums: bool = True
    rows: bool = False

    @property
    def rank(self) -> int:
        """Number of axes of the first output."""
        return len(self.outputs[0])

    def integers(self, position: int) -> list[int] | None:
        """Return a constant input as a list; None for other inputs."""
        value = self.constants.get(position)
        return None if value is None else [int(each) for each in value.flatten()]

    def flag(self, key: str) -> bool:
        """Return a boolean attribute."""
        return compat.attribute(self.node, key).b

    def number(self, key: str) -> int:
        """Return an integer attribute."""
        return compat.attribute(self.node, key).i

    def text(self, key: str) -> str:
        """Return a text attribute."""
        return compat.attribute(self.node, key).s.decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Axes along which an op is split.

    Args:
        inputs: The axis of each input; None for an input that is read whole.
        outputs: The axis of each output.
        constants: New values of constant inputs, by their positions.
        counter: Position of the input that counts random numbers, which parts advance.
    """

    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    constants: Mapping[int, Sequence[int]] = field(default_factory=dict)
    counter: int | None = None


# Reductions with equal bits in any order.
_ANY_ORDER = {"Max", "Min", "All", "Any"}

# Elements in the largest SIMD packet: in an unfilled packet the last bits may differ.
_PACKET = 32

# (axes of the inputs for an axis of the first output, new constants by position).
_Found: TypeAlias = tuple[list[int | None], dict[int, list[int]]] | None
_Rule: TypeAlias = Callable[[Shaped, int, int], _Found]


def cuts(op: Shaped, parts: int) -> list[Cut]:
    """Return all ways to split an op into equal parts.

    Args:
        op: The op.
        parts: Number of parts, at least 2.
    """
    name = SPLITS.get(op.node.op)
    if name is None or not op.outputs or (op.node.op in PRODUCTS and not op.sums):
        return []
    found = (_cut(op, NAMED[name], axis, parts) for axis in range(op.rank))
    return [cut for cut in found if cut is not None]


def _cut(op: Shaped, rule: _Rule, axis: int, parts: int) -> Cut | None:
    size = op.outputs[0][axis]
    if size % parts or any(s[axis : axis + 1] != (size,) for s in op.outputs):
        return None
    if not op.sums and math.prod(op.outputs[0]) // parts % _PACKET:
        return None
    told = rule(op, axis, parts)
    if told is None:
        return None
    axes, constants = told
    axes += [None] * (len(op.inputs) - len(axes))
    pairs = zip(axes, op.inputs, strict=True)
    if any(a is not None and (len(s) <= a or s[a] % parts) for a, s in pairs):
        return None
    if all(a is None for a in axes) and rule not in (_filled, _random):
        return None
    return Cut(
        inputs=tuple(axes),
        outputs=(axis,) * len(op.outputs),
        constants=constants,
        counter=_COUNTER if rule is _random else None,
    )


def _part(sizes: Sequence[int], axis: int, parts: int) -> list[int]:
    return [s // parts if i == axis and s > 0 else s for i, s in enumerate(sizes)]


def _element_wise(op: Shaped, axis: int, _: int) -> _Found:
    """Align the inputs from the right, as broadcasts do."""
    from_right = op.rank - axis
    axes: list[int | None] = []
    for shape in op.inputs:
        own = len(shape) - from_right
        axes.append(own if own >= 0 and shape[own] > 1 else None)
    return axes, {}


def _added(op: Shaped, axis: int, parts: int) -> _Found:
    """Split two inputs; the order of more depends on readers (aggregate_ops.cc)."""
    return None if op.inputs[2:] and not op.sums else _element_wise(op, axis, parts)


def _with_bias(op: Shaped, axis: int, _: int) -> _Found:
    return [axis, 0 if axis == _channels(op) else None], {}


def _chosen(op: Shaped, axis: int, _: int) -> _Found:
    """Split `Select`, whose condition chooses elements, whole rows, or all."""
    is_chosen = op.inputs[0][axis : axis + 1] == op.outputs[0][axis : axis + 1]
    return [axis if is_chosen else None, axis, axis], {}


def _by_rows(op: Shaped, axis: int, _: int) -> _Found:
    """Split along an axis before the last, along which the op works."""
    is_last = op.node.op != "OneHot" or op.number("axis") == -1
    return ([axis], {}) if axis < op.rank - 1 and is_last else None


def _loss(op: Shaped, axis: int, _: int) -> _Found:
    """Split a loss and its gradient by rows."""
    pair = [shape[:1] == op.inputs[0][:1] for shape in op.inputs]
    return ([0, 0], {}) if axis == 0 and all(pair) else None


def _reduced(op: Shaped, axis: int, _: int) -> _Found:
    given = op.integers(1)
    if given is None:
        return None
    rank = len(op.inputs[0])
    over = {a % rank for a in given} if rank else set[int]()
    left = [a for a in range(rank) if a not in over]
    of_rows = left == list(range(len(left)))
    if not (of_rows or op.sums or op.node.op in _ANY_ORDER):
        return None
    if op.flag("keep_dims"):
        return None if axis in over else ([axis], {})
    return [left[axis]], {}


def _einsum(op: Shaped, axis: int, _: int) -> _Found:
    """Split along a label of all inputs, a batch axis; with `rows`, along any label."""
    equation = op.text("equation").replace(" ", "")
    told, arrow, made = equation.partition("->")
    if not arrow or "." in equation or _repeats(f"{told},{made}"):
        return None
    axes = [_index(each, made[axis]) for each in told.split(",")]
    return (axes, {}) if op.rows or None not in axes else None


def _repeats(told: str) -> bool:
    """Tell whether a tensor has a label twice, which means its diagonal."""
    return any(len(set(each)) < len(each) for each in told.split(","))


def _index(labels: str, label: str) -> int | None:
    return labels.index(label) if label in labels else None


def _product(op: Shaped, axis: int, _: int) -> _Found:
    """Split products along batch axes; with `rows`, along rows and columns too."""
    left = op.flag("adj_x") or op.flag("transpose_a")
    right = op.flag("adj_y") or op.flag("transpose_b")
    if axis < op.rank - 2:
        found = (_element_wise(op, axis, 0) or ([],))[0]
        return None if None in found else (found, {})
    if not op.rows:
        return None
    if axis == op.rank - 2:
        return [len(op.inputs[0]) - (1 if left else 2), None], {}
    added = [0] * (len(op.inputs) - 2)  # a fused product adds vectors to its columns
    return [None, len(op.inputs[1]) - (2 if right else 1), *added], {}


def _transposed(op: Shaped, axis: int, _: int) -> _Found:
    order = op.integers(1)
    return None if order is None else ([order[axis]], {})


def _reshaped(op: Shaped, axis: int, parts: int) -> _Found:
    """Split where input and output have equally many elements before the axis."""
    made, given = op.outputs[0], op.inputs[0]
    before = math.prod(made[:axis])
    same = [a for a in range(len(given)) if math.prod(given[:a]) == before]
    whole = [a for a in same if given[a] % parts == 0 and given[a] > 1]
    if not whole:
        return None
    sizes = {1: _part(made, axis, parts)} if op.node.op == "Reshape" else {}
    if op.node.op == "Squeeze" and not compat.attribute(op.node, "squeeze_dims").list.i:
        return None  # a part of size 1 would lose its axis
    return [whole[0]], sizes


def _joined(op: Shaped, axis: int, _: int) -> _Found:
    given = op.integers(len(op.inputs) - 1)
    if given is None or axis == given[0] % op.rank:
        return None
    return [axis] * (len(op.inputs) - 1), {}


def _packed(op: Shaped, axis: int, _: int) -> _Found:
    new = op.number("axis") % op.rank
    if axis == new:
        return None
    return [axis - (axis > new)] * len(op.inputs), {}


def _unpacked(op: Shaped, axis: int, _: int) -> _Found:
    gone = op.number("axis") % len(op.inputs[0])
    return [axis + (axis >= gone)], {}


def _split(op: Shaped, axis: int, _: int) -> _Found:
    position = 0 if op.node.op == "Split" else 2
    given = op.integers(position)
    if given is None or axis == given[0] % op.rank:
        return None
    return ([axis] if position else [None, axis]), {}


def _sliced(op: Shaped, axis: int, parts: int) -> _Found:
    begins, sizes = op.integers(1), op.integers(2)
    if begins is None or sizes is None or op.outputs[0][axis] != op.inputs[0][axis]:
        return None
    return [axis], {2: _part(sizes, axis, parts)}


def _rolled(op: Shaped, axis: int, _: int) -> _Found:
    given = op.integers(2)
    if given is None or axis in {a % op.rank for a in given}:
        return None
    return [axis], {}


def _padded(op: Shaped, axis: int, _: int) -> _Found:
    return ([axis], {}) if op.outputs[0][axis] == op.inputs[0][axis] else None


def _broadcast(op: Shaped, axis: int, parts: int) -> _Found:
    found = _element_wise(op, axis, parts)
    if found is None or op.integers(1) is None:
        return None
    return [found[0][0]], {1: _part(op.outputs[0], axis, parts)}


def _filled(op: Shaped, axis: int, parts: int) -> _Found:
    if op.integers(0) is None:
        return None
    return [], {0: _part(op.outputs[0], axis, parts)}


def _random(op: Shaped, axis: int, parts: int) -> _Found:
    """Split random numbers: a part's counter begins where the previous part's ends."""
    shape = op.outputs[0]
    is_first = math.prod(shape[:axis]) == 1
    made = math.prod(shape) // parts
    if op.integers(0) is None or not is_first or made % counted(op.node):
        return None
    return [], {0: _part(shape, axis, parts)}


def counted(node: compat.NodeDef) -> int:
    """Return how many random numbers one count of the counter gives."""
    dtype = tf.as_dtype(compat.attribute(node, "dtype").type)
    return 2 if dtype == tf.float64 else 4


def _channels(op: Shaped) -> int:
    return 1 if op.text("data_format").startswith("NC") else op.rank - 1


def _pooled(op: Shaped, axis: int, _: int) -> _Found:
    """Split poolings and their gradients by examples or channels."""
    return ([axis] * len(op.inputs), {}) if axis in (0, _channels(op)) else None


def _average_gradient(op: Shaped, axis: int, parts: int) -> _Found:
    if axis not in (0, _channels(op)) or op.integers(0) is None:
        return None
    return [None, axis], {0: _part(op.outputs[0], axis, parts)}


def _convolved(op: Shaped, axis: int, _: int) -> _Found:
    """Split convolutions by examples, unless a fused `Add` may read examples too."""
    is_added = b"Add" in compat.attribute(op.node, "fused_ops").list.s
    return ([0], {}) if axis == 0 and not is_added else None


def _gradient_of_input(op: Shaped, axis: int, parts: int) -> _Found:
    if axis != 0 or op.integers(0) is None:
        return None
    return [None, None, 0], {0: _part(op.outputs[0], axis, parts)}


def _resized(op: Shaped, axis: int, _: int) -> _Found:
    count = 1 + (op.node.op == "ResizeBilinearGrad")
    return ([axis] * count, {}) if axis in (0, op.rank - 1) else None


_COUNTER = 2

NAMED: Mapping[str, _Rule] = {
    rule.__name__[1:]: rule
    for rule in (
        *(_added, _average_gradient, _broadcast, _by_rows, _chosen, _convolved),
        *(_einsum, _element_wise, _filled, _gradient_of_input, _joined, _loss),
        *(_packed, _padded, _pooled, _product, _random, _reduced, _reshaped),
        *(_resized, _rolled, _sliced, _split, _transposed, _unpacked, _with_bias),
    )
}
