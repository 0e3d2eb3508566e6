"""Upper bounds for shapes that depend on values.

    ids ──> Unique ──> Shape ──> StridedSlice ─┐ number of segments: at most len(ids)
               └ at most as long as ids        └──> UnsortedSegmentSum: as many rows

TensorFlow's inference leaves such shapes open. Each rule here is sound: no values make
an axis of a tensor longer than its bound. An op without a rule has no bound, nor has a
tensor that a loop changes from round to round.

Known weakness: a tensor smaller than its bound leaves bytes free that the plan counts
as taken, so the allocator may place other tensors elsewhere than in the plan.

Sources: the shape functions in tensorflow/core/ops.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import tensorflow as tf

from lms.tf import compat
from lms.tf.capture.bound_rules import (
    PARTS_OF,
    RULES,
    SIZED,
    Partial,
    Shapes,
    partial_shape,
)
from lms.tf.capture.bound_values import Shape
from lms.tf.nodes import index_of, source_of

__all__ = ["bounded_shapes"]

Specs: TypeAlias = dict[str, list[tf.TensorSpec]]


def bounded_shapes(
    ordered: Sequence[compat.NodeDef], specs: Mapping[str, list[tf.TensorSpec]]
) -> tuple[Specs, frozenset[str]]:
    """Fill in open shapes with their bounds, where a rule gives one.

    Args:
        ordered: Nodes after their inputs, the edge back to Merge left out.
        specs: Types and shapes of all outputs, as inferred.

    Returns:
        (specs, names of the ops with an output that may be smaller than its spec).
    """
    bounds = _Bounds(ordered, specs)
    varying: set[str] = set()
    for node in ordered:
        if bounds.fill(node) and bounds.shape_of(node) in {None, *varying}:
            varying.add(node.name)
    return bounds.specs, frozenset(varying)


class _Bounds(Shapes):
    """Fills in shapes, one op after the other."""

    def shape_of(self, node: compat.NodeDef) -> str | None:
        """Return the op whose output has the node's shape, in any layout; or None."""
        if node.op == "Transpose":
            return source_of(node.input[0])
        if node.op not in SIZED:
            return None
        name = node.input[0]
        size = self.nodes.get(source_of(name))
        if size is not None and size.op == "DataFormatVecPermute":
            name = size.input[0]
            size = self.nodes.get(source_of(name))
        if size is None or size.op not in ("Shape", "ShapeN"):
            return None
        return source_of(size.input[index_of(name)])

    def fill(self, node: compat.NodeDef) -> bool:
        """Bound an op's open outputs; return whether the op has any."""
        specs = self.specs[node.name]
        wanted = [i for i, spec in enumerate(specs) if _is_open(spec)]
        if not wanted:
            return False
        filled = list(specs)
        for i in wanted:
            partial = partial_shape(specs[i].shape)
            bound = self._bound(node, i, partial)
            if bound is not None:
                filled[i] = tf.TensorSpec(bound, specs[i].dtype)
        self.specs[node.name] = filled
        return True

    def _bound(self, node: compat.NodeDef, i: int, partial: Partial) -> Shape | None:
        rule = RULES.get(node.op)
        if rule is None:
            return None
        found = rule(self, node, i)
        if found is None:
            return self._by_elements(node, i, partial)
        if partial is None:
            return found
        if len(found) != len(partial):
            return None
        return tuple(b if p is None else p for p, b in zip(partial, found, strict=True))

    def _by_elements(
        self, node: compat.NodeDef, i: int, partial: Partial
    ) -> Shape | None:
        """Bound the one open axis, or all axes as one, by the elements of an input."""
        part = PARTS_OF.get(node.op)
        read = None if part is None else self.elements(node.input[part])
        if read is None:
            return None
        most = math.prod(max(1, size) for size in read)
        if partial is None:
            self.flat.add(f"{node.name}:{i}")
            return (most,)
        if partial.count(None) != 1:
            return None
        known = math.prod(size for size in partial if size is not None)
        rows = most // known if known else 0
        return tuple(rows if size is None else size for size in partial)


def _is_open(spec: tf.TensorSpec) -> bool:
    opaque = spec.dtype in (tf.resource, tf.variant, tf.string)
    return not (opaque or spec.shape.is_fully_defined())
