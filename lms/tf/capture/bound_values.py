"""Upper bounds of the integers that give other tensors their shapes.

Shapes, parts of shapes and products of sizes are small integer tensors. Where a shape
depends on values (`lms.tf.capture.shapes`), these integers have bounds too. All rules
are for numbers of at least 0; a number that may be negative has no bound.

Beside them stand helpers for specs of tensors, which all rules of shapes use.
"""

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any, TypeAlias

import tensorflow as tf

from lms.tf import compat
from lms.tf.capture.loops import put_into
from lms.tf.nodes import OPAQUE, data_of, index_of, source_of

__all__ = ["Shape", "Specs", "UnboundedError", "Values", "attribute", "is_open"]
__all__ += ["known", "known_shape", "pairwise", "with_shapes"]

Shape: TypeAlias = tuple[int, ...]

Specs: TypeAlias = dict[str, list[tf.TensorSpec]]
"""Types and shapes of an op's outputs, by op name."""

_MOST = 64  # numbers of a constant that is looked at; shapes have fewer
_WHOLE = frozenset({tf.int32.as_datatype_enum, tf.int64.as_datatype_enum})

_COMBINES: dict[str, Callable[[int, int], int]] = {
    "Mul": operator.mul,
    "Add": operator.add,
    "AddV2": operator.add,
    "Maximum": max,
    "Minimum": min,
}

_HANDS_ON = frozenset(
    {"Identity", "Cast", "Reshape", "Squeeze", "ExpandDims", "Switch", "Snapshot"}
)


class UnboundedError(Exception):
    """A tensor has no bound."""


class Values:
    """Looks up upper bounds of the numbers in a tensor.

    Args:
        nodes: The step's nodes by name.
        bound: Gives a tensor's bound, None if the tensor has none.
    """

    def __init__(
        self, nodes: Mapping[str, compat.NodeDef], bound: Callable[[str], Shape | None]
    ) -> None:
        self._nodes = nodes
        self._bound = bound
        self._popping: set[str] = set()

    def constant(self, name: str) -> Shape | None:
        """Return the numbers of a small integer constant, row by row; or None."""
        node = self._nodes.get(source_of(name))
        return None if node is None or node.op != "Const" else _numbers(node)

    def of(self, name: str) -> Shape | None:
        """Return a bound for each number of a vector, one for a scalar; or None."""
        try:
            return self.most(name)
        except UnboundedError:
            return None

    def most(self, name: str) -> Shape:
        """Return the bound of each number; raise `UnboundedError` if there is none."""
        node = self._nodes.get(source_of(name))
        if node is None or len(known(self._bound(name))) > 1:
            raise UnboundedError
        if node.op in _HANDS_ON:
            whole = node.op != "Cast" or compat.attribute(node, "SrcT").type in _WHOLE
            return self.most(node.input[0]) if whole else known(None)
        if node.op in _COMBINES and compat.attribute(node, "T").type in _WHOLE:
            return pairwise(_COMBINES[node.op], map(self.most, node.input[:2]))
        rule = _RULES.get(node.op)
        return known(rule and rule(self, node, index_of(name)))

    def constants(self, node: compat.NodeDef, _: int) -> Shape | None:
        """Return the numbers of a constant; None if one is negative."""
        found = known(_numbers(node))
        return found if min(found, default=0) >= 0 else None

    def shape(self, node: compat.NodeDef, index: int) -> Shape | None:
        """Return the bound of an input's shape."""
        return self._bound(node.input[index])

    def size(self, node: compat.NodeDef, _: int) -> Shape | None:
        """Bound the number of elements of the first input."""
        return (math.prod(known(self._bound(node.input[0]))),)

    def product(self, node: compat.NodeDef, _: int) -> Shape | None:
        """Bound the product of a vector."""
        return (math.prod(self.most(node.input[0])),)

    def joined(self, node: compat.NodeDef, _: int) -> Shape | None:
        """Concatenate the bounds of scalars or vectors."""
        names = data_of(node)[: compat.attribute(node, "N").i]
        return tuple(number for name in names for number in self.most(name))

    def picked(self, node: compat.NodeDef, _: int) -> Shape | None:
        """Pick bounds of a vector by constant indices."""
        numbers, indices = self.most(node.input[0]), self.constant(node.input[1])
        if indices is None or attribute(node, "batch_dims"):
            return None
        inside = all(-len(numbers) <= i < len(numbers) for i in indices)
        return tuple(numbers[i] for i in indices) if inside else None

    def sliced(self, node: compat.NodeDef, _: int) -> Shape | None:
        """Slice the bounds of a vector."""
        numbers = self.most(node.input[0])
        limits = [known(self.constant(name)) for name in node.input[1:4]]
        several = any(len(limit) != 1 for limit in limits)
        if several or attribute(node, "ellipsis_mask", "new_axis_mask"):
            return None
        ((begin,), (end,), (step,)) = limits
        if attribute(node, "shrink_axis_mask"):
            return (numbers[begin],) if -len(numbers) <= begin < len(numbers) else None
        first = None if attribute(node, "begin_mask") else begin
        last = None if attribute(node, "end_mask") else end
        return numbers[first:last:step]

    def permuted(self, node: compat.NodeDef, _: int) -> Shape | None:
        """Permute one number for each axis into another layout."""
        numbers = self.most(node.input[0])
        before, after = (node.attr[f"{at}_format"].s.decode() for at in ("src", "dst"))
        if len(numbers) != len(before):
            return None
        return tuple(numbers[before.index(axis)] for axis in after)

    def stitched(self, node: compat.NodeDef, _: int) -> Shape | None:
        """Put each number of the vectors at its index; later numbers win."""
        count = compat.attribute(node, "N").i
        placed: dict[int, int] = {}
        for at, name in zip(node.input[:count], node.input[count:], strict=False):
            places, numbers = known(self.constant(at)), self.most(name)
            if len(places) != len(numbers):
                return None
            placed |= dict(zip(places, numbers, strict=True))
        return tuple(placed.get(i, 0) for i in range(max(placed, default=-1) + 1))

    def divided(self, node: compat.NodeDef, _: int) -> Shape | None:
        """Bound a quotient by the dividend: divisors are integers of at least 1."""
        numbers, divisor = map(self.most, node.input[:2])
        return numbers if len(divisor) in (1, len(numbers)) else None

    def merged(self, node: compat.NodeDef, index: int) -> Shape | None:
        """Return the larger numbers of two branches; None for loops, which may grow."""
        return None if index else pairwise(max, map(self.most, self.branches(node)))

    def branches(self, merge: compat.NodeDef) -> list[str]:
        """Return the tensors that a branch's end merges; raise for a loop's Merge."""
        names = data_of(merge)
        sources = [self._nodes.get(source_of(name)) for name in names]
        if any(s is None or s.op in ("NextIteration", "Enter") for s in sources):
            raise UnboundedError
        return names

    def popped(self, node: compat.NodeDef, _: int) -> Shape | None:
        """Return the largest numbers that ops put into the list."""
        if node.name in self._popping:  # the list's elements depend on this pop
            return None
        self._popping.add(node.name)
        try:
            names = [name for _, name in put_into(node, self._nodes)]
            return pairwise(max, map(self.most, names))
        finally:
            self._popping.remove(node.name)


_Rule: TypeAlias = Callable[[Values, compat.NodeDef, int], Shape | None]

_RULES: dict[str, _Rule] = {
    "Const": Values.constants,
    "Shape": Values.shape,
    "ShapeN": Values.shape,
    "Size": Values.size,
    "Prod": Values.product,
    "Pack": Values.joined,
    "ConcatV2": Values.joined,
    "DynamicStitch": Values.stitched,
    "DataFormatVecPermute": Values.permuted,
    "FloorDiv": Values.divided,
    "GatherV2": Values.picked,
    "StridedSlice": Values.sliced,
    "Merge": Values.merged,
    "TensorListPopBack": Values.popped,
}


def known(found: Shape | None) -> Shape:
    """Return a bound; raise `UnboundedError` if there is none."""
    if found is None:
        raise UnboundedError
    return found


def is_open(spec: tf.TensorSpec) -> bool:
    """Tell whether a tensor has bytes on the device, and their number is not known."""
    return not (spec.dtype.name in OPAQUE or spec.shape.is_fully_defined())


def known_shape(spec: tf.TensorSpec) -> Shape | None:
    """Return a tensor's shape if all axes are known, else None."""
    known = spec.shape.is_fully_defined()
    return tuple(int(size or 0) for size in spec.shape) if known else None


def with_shapes(
    specs: Iterable[tf.TensorSpec], shapes: Iterable[Any]
) -> list[tf.TensorSpec]:
    """Return specs with other shapes; None keeps the shape of a spec."""
    pairs = zip(specs, shapes, strict=True)
    return [s if new is None else tf.TensorSpec(new, s.dtype) for s, new in pairs]


def attribute(node: compat.NodeDef, *names: str) -> int:
    """Return the first attribute of the names that is present and not 0; else 0."""
    given = (node.attr[name] for name in names if name in node.attr)
    return next((value.i or int(value.b) for value in given if value.i or value.b), 0)


def pairwise(combine: Callable[[int, int], int], parts: Iterable[Shape]) -> Shape:
    """Combine vectors number by number; a scalar is combined with each number."""
    known = list(parts)
    length = max(map(len, known), default=0)
    if not known or any(len(part) not in (1, length) for part in known):
        raise UnboundedError
    columns = [part * length if len(part) == 1 else part for part in known]
    return tuple(reduce(combine, numbers) for numbers in zip(*columns, strict=True))


def _numbers(node: compat.NodeDef) -> Shape | None:
    proto = compat.attribute(node, "value").tensor
    size = math.prod(dim.size for dim in proto.tensor_shape.dim)
    if size > _MOST or proto.dtype not in _WHOLE:
        return None
    return tuple(int(number) for number in tf.make_ndarray(proto).ravel())
