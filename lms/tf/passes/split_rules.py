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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import tensorflow as tf

from lms.tf import compat
from lms.tf.capture.bound_values import Shape, attribute
from lms.tf.capture.ops import PRODUCTS, SPLITS

__all__ = ["Cut", "Shaped", "counted", "cuts", "divided"]

# (axes of the inputs for an axis of the first output, new constants by position).
_Found: TypeAlias = tuple[list[int | None], dict[int, list[int]]] | None

# Reductions with equal bits in any order.
_ANY_ORDER = {"Max", "Min", "All", "Any"}

# The input of random ops that counts the numbers.
_COUNTER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaped:
    """An op with the shapes of its inputs and outputs, and rules to split it.

    Rules are methods with the names that `ops.SPLITS` gives. A rule gets an axis of the
    first output and the number of parts. It returns an axis of each input and new
    values of constants, or None.

    Args:
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

    def integers(self, position: int) -> list[int]:
        """Return a constant input as a list; raise `KeyError` for other inputs."""
        return [int(each) for each in self.constants[position].flatten()]

    def sizes(self, position: int, axis: int, parts: int) -> dict[int, list[int]]:
        """Return a part's shape for the constant input that gives the op's shape."""
        self.integers(position)
        return {position: divided(self.outputs[0], axis, parts)}

    def text(self, key: str) -> str:
        """Return a text attribute."""
        return compat.attribute(self.node, key).s.decode()

    def _element_wise(self, axis: int, _: int) -> _Found:
        """Align the inputs from the right, as broadcasts do."""
        from_right = self.rank - axis
        axes: list[int | None] = []
        for shape in self.inputs:
            own = len(shape) - from_right
            axes.append(own if own >= 0 and shape[own] > 1 else None)
        return axes, {}

    def _added(self, axis: int, parts: int) -> _Found:
        """Split two inputs; the order of more depends on readers (aggregate_ops.cc)."""
        several = self.inputs[2:] and not self.sums
        return None if several else self._element_wise(axis, parts)

    def _with_bias(self, axis: int, _: int) -> _Found:
        return [axis, 0 if axis == self._channels else None], {}

    def _chosen(self, axis: int, _: int) -> _Found:
        """Split `Select`, whose condition chooses elements, whole rows, or all."""
        is_chosen = self.inputs[0][axis : axis + 1] == self.outputs[0][axis : axis + 1]
        return [axis if is_chosen else None, axis, axis], {}

    def _by_rows(self, axis: int, _: int) -> _Found:
        """Split along an axis before the last, along which the op works."""
        is_last = self.node.op != "OneHot" or attribute(self.node, "axis") == -1
        return ([axis], {}) if axis < self.rank - 1 and is_last else None

    def _loss(self, axis: int, _: int) -> _Found:
        """Split a loss and its gradient by rows."""
        pair = [shape[:1] == self.inputs[0][:1] for shape in self.inputs]
        return ([0, 0], {}) if axis == 0 and all(pair) else None

    def _reduced(self, axis: int, _: int) -> _Found:
        rank, given = len(self.inputs[0]), self.integers(1)
        over = {a % rank for a in given} if rank else set[int]()
        left = [a for a in range(rank) if a not in over]
        of_rows = left == list(range(len(left)))
        if not (of_rows or self.sums or self.node.op in _ANY_ORDER):
            return None
        if attribute(self.node, "keep_dims"):
            return None if axis in over else ([axis], {})
        return [left[axis]], {}

    def _einsum(self, axis: int, _: int) -> _Found:
        """Split along a label of all inputs; with `rows`, along any label."""
        equation = self.text("equation").replace(" ", "")
        told, arrow, made = equation.partition("->")
        read = told.split(",")
        diagonal = any(len(set(labels)) < len(labels) for labels in (*read, made))
        if not arrow or "." in equation or diagonal:
            return None
        at = (labels.find(made[axis]) for labels in read)
        axes = [i if i >= 0 else None for i in at]
        return (axes, {}) if self.rows or None not in axes else None

    def _product(self, axis: int, _: int) -> _Found:
        """Split products along batch axes; with `rows`, along rows and columns too."""
        left = attribute(self.node, "adj_x", "transpose_a")
        right = attribute(self.node, "adj_y", "transpose_b")
        if axis < self.rank - 2:
            found = (self._element_wise(axis, 0) or ([],))[0]
            return None if None in found else (found, {})
        if not self.rows:
            return None
        if axis == self.rank - 2:
            return [len(self.inputs[0]) - (1 if left else 2), None], {}
        added = [0] * (len(self.inputs) - 2)  # fused: vectors added to the columns
        return [None, len(self.inputs[1]) - (2 if right else 1), *added], {}

    def _transposed(self, axis: int, _: int) -> _Found:
        return [self.integers(1)[axis]], {}

    def _reshaped(self, axis: int, parts: int) -> _Found:
        """Split where input and output have equally many elements before the axis."""
        made, given = self.outputs[0], self.inputs[0]
        before = math.prod(made[:axis])
        same = [a for a in range(len(given)) if math.prod(given[:a]) == before]
        whole = [a for a in same if given[a] % parts == 0 and given[a] > 1]
        if not whole:
            return None
        sizes = {1: divided(made, axis, parts)} if self.node.op == "Reshape" else {}
        gone = compat.attribute(self.node, "squeeze_dims").list.i
        if self.node.op == "Squeeze" and not gone:
            return None  # a part of size 1 would lose its axis
        return [whole[0]], sizes

    def _joined(self, axis: int, _: int) -> _Found:
        count = len(self.inputs) - 1
        along = self.integers(count)[0] % self.rank
        return None if axis == along else ([axis] * count, {})

    def _packed(self, axis: int, _: int) -> _Found:
        new = attribute(self.node, "axis") % self.rank
        if axis == new:
            return None
        return [axis - (axis > new)] * len(self.inputs), {}

    def _unpacked(self, axis: int, _: int) -> _Found:
        gone = attribute(self.node, "axis") % len(self.inputs[0])
        return [axis + (axis >= gone)], {}

    def _split(self, axis: int, _: int) -> _Found:
        position = 0 if self.node.op == "Split" else 2
        if axis == self.integers(position)[0] % self.rank:
            return None
        return ([axis] if position else [None, axis]), {}

    def _sliced(self, axis: int, parts: int) -> _Found:
        _, sizes = self.integers(1), self.integers(2)
        whole = self.outputs[0][axis] == self.inputs[0][axis]
        return ([axis], {2: divided(sizes, axis, parts)}) if whole else None

    def _rolled(self, axis: int, _: int) -> _Found:
        over = {a % self.rank for a in self.integers(2)}
        return None if axis in over else ([axis], {})

    def _padded(self, axis: int, _: int) -> _Found:
        return ([axis], {}) if self.outputs[0][axis] == self.inputs[0][axis] else None

    def _broadcast(self, axis: int, parts: int) -> _Found:
        axes, _ = self._element_wise(axis, parts) or ([None], {})
        return axes[:1], self.sizes(1, axis, parts)

    def _filled(self, axis: int, parts: int) -> _Found:
        return [], self.sizes(0, axis, parts)

    def _random(self, axis: int, parts: int) -> _Found:
        """Split random numbers: each part's counter goes on from the one before."""
        shape = self.outputs[0]
        is_first = math.prod(shape[:axis]) == 1
        made = math.prod(shape) // parts
        splits = is_first and not made % counted(self.node)
        return ([], self.sizes(0, axis, parts)) if splits else None

    @property
    def _channels(self) -> int:
        return 1 if self.text("data_format").startswith("NC") else self.rank - 1

    def _pooled(self, axis: int, _: int) -> _Found:
        """Split poolings and their gradients by examples or channels."""
        return ([axis] * len(self.inputs), {}) if axis in (0, self._channels) else None

    def _average_gradient(self, axis: int, parts: int) -> _Found:
        if axis not in (0, self._channels):
            return None
        return [None, axis], self.sizes(0, axis, parts)

    def _convolved(self, axis: int, _: int) -> _Found:
        """Split convolutions by examples, unless a fused `Add` reads some too."""
        is_added = b"Add" in compat.attribute(self.node, "fused_ops").list.s
        return ([0], {}) if axis == 0 and not is_added else None

    def _gradient_of_input(self, axis: int, parts: int) -> _Found:
        return ([None, None, 0], self.sizes(0, axis, parts)) if axis == 0 else None

    def _resized(self, axis: int, _: int) -> _Found:
        count = 1 + (self.node.op == "ResizeBilinearGrad")
        return ([axis] * count, {}) if axis in (0, self.rank - 1) else None


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


# Elements in the largest SIMD packet: in an unfilled packet the last bits may differ.
_PACKET = 32


def cuts(op: Shaped, parts: int) -> list[Cut]:
    """Return all ways to split an op into `parts` equal parts, at least 2."""
    name = SPLITS.get(op.node.op)
    if name is None or not op.outputs or (op.node.op in PRODUCTS and not op.sums):
        return []
    found = (_cut(op, name, axis, parts) for axis in range(op.rank))
    return [cut for cut in found if cut is not None]


def _cut(op: Shaped, rule: str, axis: int, parts: int) -> Cut | None:
    size = op.outputs[0][axis]
    if size % parts or any(s[axis : axis + 1] != (size,) for s in op.outputs):
        return None
    if not op.sums and math.prod(op.outputs[0]) // parts % _PACKET:
        return None
    try:
        told: _Found = getattr(op, f"_{rule}")(axis, parts)
    except KeyError:  # an axis or a shape is no constant
        return None
    if told is None:
        return None
    axes, constants = told
    axes += [None] * (len(op.inputs) - len(axes))
    pairs = zip(axes, op.inputs, strict=True)
    if any(a is not None and (len(s) <= a or s[a] % parts) for a, s in pairs):
        return None
    if all(a is None for a in axes) and rule not in ("filled", "random"):
        return None
    return Cut(
        inputs=tuple(axes),
        outputs=(axis,) * len(op.outputs),
        constants=constants,
        counter=_COUNTER if rule == "random" else None,
    )


def divided(sizes: Sequence[int], axis: int, parts: int) -> list[int]:
    """Return the sizes of a part; -1, which asks for all that is left, stays."""
    return [s // parts if i == axis and s > 0 else s for i, s in enumerate(sizes)]


def counted(node: compat.NodeDef) -> int:
    """Return how many random numbers one count of the counter gives."""
    dtype = tf.as_dtype(compat.attribute(node, "dtype").type)
    return 2 if dtype == tf.float64 else 4
