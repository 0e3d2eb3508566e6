"""Upper bounds of the integers that give other tensors their shapes.

Shapes, parts of shapes and products of sizes are small integer tensors. Where a shape
depends on values (`lms.tf.capture.bounds`), these integers have bounds too. All rules
are for numbers of at least 0; a number that may be negative has no bound.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TypeAlias

import tensorflow as tf

from lms.tf import compat
from lms.tf.capture.loops import put_into
from lms.tf.nodes import index_of, source_of

__all__ = ["Shape", "Values", "attribute"]

Shape: TypeAlias = tuple[int, ...]

_MOST = 64  # numbers of a constant that is looked at; shapes have fewer

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


class Values:
    """Looks up upper bounds of the numbers in a tensor.

    Args:
        nodes: The step's nodes by name.
        bound: Gives a tensor's bound, None if the tensor has none.
    """

    def __init__(
        self,
        nodes: Mapping[str, compat.NodeDef],
        bound: Callable[[str], Shape | None],
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
        node, shape = self._nodes.get(source_of(name)), self._bound(name)
        if node is None or shape is None or len(shape) > 1:
            return None
        if node.op in _HANDS_ON:
            whole = node.op != "Cast" or compat.attribute(node, "SrcT").type in _WHOLE
            return self.of(node.input[0]) if whole else None
        if node.op in _COMBINES:
            return self._combined(node)
        rule = _RULES.get(node.op)
        return None if rule is None else rule(self, node, index_of(name))

    def constants(self, node: compat.NodeDef, _: int) -> Shape | None:
        """Return the numbers of a constant; None if one is negative."""
        found = _numbers(node)
        return found if found is not None and min(found, default=0) >= 0 else None

    def shape(self, node: compat.NodeDef, index: int) -> Shape | None:
        """Return the bound of an input's shape."""
        return self._bound(node.input[index])

    def size(self, node: compat.NodeDef, _: int) -> Shape | None:
        """Bound the number of elements of the first input."""
        shape = self._bound(node.input[0])
        return None if shape is None else (math.prod(shape),)

    def product(self, node: compat.NodeDef, _: int) -> Shape | None:
        """Bound the product of a vector."""
        factors = self.of(node.input[0])
        return None if factors is None else (math.prod(factors),)

    def joined(self, node: compat.NodeDef, _: int) -> Shape | None:
        """Concatenate the bounds of scalars or vectors."""
        names = [name for name in node.input if not name.startswith("^")]
        parts = [self.of(name) for name in names[: compat.attribute(node, "N").i]]
        if any(part is None for part in parts):
            return None
        return tuple(number for part in parts for number in part or ())

    def picked(self, node: compat.NodeDef, _: int) -> Shape | None:
        """Pick bounds of a vector by constant indices."""
        numbers, indices = self.of(node.input[0]), self.constant(node.input[1])
        if numbers is None or indices is None or attribute(node, "batch_dims"):
            return None
        inside = all(-len(numbers) <= i < len(numbers) for i in indices)
        return tuple(numbers[i] for i in indices) if inside else None

    def sliced(self, node: compat.NodeDef, _: int) -> Shape | None:
        """Slice the bounds of a vector."""
        numbers = self.of(node.input[0])
        limits = [self.constant(name) for name in node.input[1:4]]
        if numbers is None or any(limit is None or len(limit) != 1 for limit in limits):
            return None
        if attribute(node, "ellipsis_mask", "new_axis_mask"):
            return None
        begin, end, step = (limit[0] for limit in limits if limit)
        if attribute(node, "shrink_axis_mask"):
            return (numbers[begin],) if -len(numbers) <= begin < len(numbers) else None
        first = None if attribute(node, "begin_mask") else begin
        last = None if attribute(node, "end_mask") else end
        return numbers[first:last:step]

    def permuted(self, node: compat.NodeDef, _: int) -> Shape | None:
        """Permute one number for each axis into another layout."""
        numbers = self.of(node.input[0])
        before, after = (node.attr[f"{at}_format"].s.decode() for at in ("src", "dst"))
        if numbers is None or len(numbers) != len(before):
            return None
        return tuple(numbers[before.index(axis)] for axis in after)

    def stitched(self, node: compat.NodeDef, _: int) -> Shape | None:
        """Put each number of the vectors at its index; later numbers win."""
        count = compat.attribute(node, "N").i
        placed: dict[int, int] = {}
        for at, name in zip(node.input[:count], node.input[count:], strict=False):
            places, numbers = self.constant(at), self.of(name)
            if places is None or numbers is None or len(places) != len(numbers):
                return None
            placed |= dict(zip(places, numbers, strict=True))
        return tuple(placed.get(i, 0) for i in range(max(placed, default=-1) + 1))

    def divided(self, node: compat.NodeDef, _: int) -> Shape | None:
        """Bound a quotient by the dividend: divisors are integers of at least 1."""
        numbers, divisor = self.of(node.input[0]), self.of(node.input[1])
        if numbers is None or divisor is None or len(divisor) not in (1, len(numbers)):
            return None
        return numbers

    def merged(self, node: compat.NodeDef, index: int) -> Shape | None:
        """Return the larger numbers of two branches; None for loops, which may grow."""
        names = [name for name in node.input if not name.startswith("^")]
        sources = [self._nodes.get(source_of(name)) for name in names]
        if index or any(s is None or s.op in _OF_LOOPS for s in sources):
            return None
        return _pairwise(max, [self.of(name) for name in names])

    def popped(self, node: compat.NodeDef, _: int) -> Shape | None:
        """Return the largest numbers that ops put into the list."""
        if node.name in self._popping:  # the list's elements depend on this pop
            return None
        self._popping.add(node.name)
        names = [name for _, name in put_into(node, self._nodes)]
        found = [self.of(name) if name else None for name in names]
        self._popping.remove(node.name)
        return _pairwise(max, found)

    def _combined(self, node: compat.NodeDef) -> Shape | None:
        if compat.attribute(node, "T").type not in _WHOLE:
            return None
        return _pairwise(_COMBINES[node.op], [self.of(name) for name in node.input[:2]])


_Rule: TypeAlias = Callable[[Values, compat.NodeDef, int], Shape | None]

_WHOLE = frozenset({tf.int32.as_datatype_enum, tf.int64.as_datatype_enum})
_OF_LOOPS = frozenset({"NextIteration", "Enter"})

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


def attribute(node: compat.NodeDef, *names: str) -> int:
    """Return the first attribute of the names that is present and not 0; else 0."""
    given = (node.attr[name] for name in names if name in node.attr)
    return next((value.i or int(value.b) for value in given if value.i or value.b), 0)


def _numbers(node: compat.NodeDef) -> Shape | None:
    proto = compat.attribute(node, "value").tensor
    size = math.prod(dim.size for dim in proto.tensor_shape.dim)
    if size > _MOST or proto.dtype not in _WHOLE:
        return None
    return tuple(int(number) for number in tf.make_ndarray(proto).ravel())


def _pairwise(
    combine: Callable[[int, int], int], parts: Sequence[Shape | None]
) -> Shape | None:
    known = [part for part in parts if part is not None]
    if len(known) != len(parts) or not known:
        return None
    length = max(map(len, known))
    if any(len(part) not in (1, length) for part in known):
        return None
    columns = [part * (length // len(part)) for part in known]
    return tuple(reduce(combine, numbers) for numbers in zip(*columns, strict=True))
