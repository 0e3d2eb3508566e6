"""Fill in shapes that TensorFlow's inference leaves open, with bounds and guesses.

    ids ──> Unique ──> Shape ──> StridedSlice ─┐ number of segments: at most len(ids)
               └ at most as long as ids        └──> UnsortedSegmentSum: as many rows

A bound is sound: no values make an axis of a tensor longer. An op without a rule has no
bound, nor has a tensor that a loop changes from round to round. In loops and branches a
tensor without a bound is taken to be as large as the largest tensor of known size in
any of them: index sets of sparse gradients are no larger. Elsewhere it is guessed to
have as many elements as its op's largest input.

Known weaknesses: a tensor smaller than its bound leaves bytes free that the plan counts
as taken, so the allocator may place other tensors elsewhere than in the plan. Sizes in
loops and branches are guesses that do not count as guessed.
"""

import math
from collections.abc import Collection, Mapping, Sequence

import tensorflow as tf

from lms.tf import compat
from lms.tf.capture.bound_rules import (
    Shapes,
)
from lms.tf.capture.bound_values import Specs, is_open, with_shapes
from lms.tf.capture.ops import BOUNDS
from lms.tf.nodes import bytes_of, data_of, index_of, source_of

__all__ = ["filled_shapes"]

# Ops that join all inputs into one tensor.
_JOINS = ("ConcatV2", "Pack")

# Ops whose output may have more elements than all inputs together.
_COMBINES = {op for op, rule in BOUNDS.items() if rule in ("broadcast", "product")}

# Ops with their first input's shape, in any layout; gradients whose first input is
# their shape.
_LIKE = ("Transpose", "_UnaryOpsComposition")
_SIZED = ("Conv2DBackpropInput", "Conv3DBackpropInputV2")


def filled_shapes(
    ordered: Sequence[compat.NodeDef],
    specs: Mapping[str, list[tf.TensorSpec]],
    branched: Collection[str],
    *,
    guesses: bool,
) -> tuple[Specs, frozenset[str], tuple[str, ...]]:
    """Fill in all open shapes.

    Args:
        ordered: Nodes after their inputs, the edge back to Merge left out.
        specs: Types and shapes of all outputs, as inferred.
        branched: Names of the ops in loops and branches.
        guesses: Whether a combination of two bounds is guessed to be as large as the
            larger one, and its readers no larger.

    Returns:
        (all specs, names of the ops with an output that may be smaller than its spec,
        names of the ops whose shapes were guessed).
    """
    shapes = Shapes(ordered, specs)
    varying = _bound(shapes, ordered)
    specs = shapes.specs
    largest = max((bytes_of(s) for name in branched for s in specs[name]), default=0)
    for name in branched:
        wanted = [s.dtype.size if is_open(s) else None for s in specs[name]]
        sizes = (each and [-(-largest // each)] for each in wanted)
        specs[name] = with_shapes(specs[name], sizes)
    guessed = _guess(ordered, specs, varying if guesses else frozenset())
    return specs, frozenset(varying | guessed.keys()), tuple(guessed)


def _bound(shapes: Shapes, ordered: Sequence[compat.NodeDef]) -> set[str]:
    """Fill in bounds; return names of ops with outputs that may be smaller."""
    varying = set[str]()
    for node in ordered:
        specs = shapes.specs[node.name]
        if any(map(is_open, specs)):
            found = [shapes.bound(node, i) for i in range(len(specs))]
            shapes.specs[node.name] = with_shapes(specs, found)
            source = _shape_of(node, shapes.nodes)
            if source is None or source in varying:
                varying.add(node.name)
    return varying


def _shape_of(node: compat.NodeDef, nodes: Mapping[str, compat.NodeDef]) -> str | None:
    """Return the op whose output has the node's shape, in any layout; or None."""
    if node.op in _LIKE:
        return source_of(node.input[0])
    if node.op not in _SIZED:
        return None
    name = node.input[0]
    size = nodes.get(source_of(name))
    if size is not None and size.op == "DataFormatVecPermute":
        name = size.input[0]
        size = nodes.get(source_of(name))
    if size is None or size.op not in ("Shape", "ShapeN"):
        return None
    return source_of(size.input[index_of(name)])


def _guess(
    ordered: Sequence[compat.NodeDef], specs: Specs, bounded: Collection[str]
) -> dict[str, None]:
    """Fill in open shapes with as many elements as the op's largest input has.

    Text has no known size: a tensor made of text alone is guessed to have one element.

    Args:
        ordered: Nodes after their inputs.
        specs: The known types and shapes, which are changed.
        bounded: Names of the ops whose sizes are bounds, where these may be too large.

    Returns:
        The names of the ops whose shapes were guessed, in order.
    """
    guessed = dict[str, None]()
    nodes = {node.name: node for node in ordered}
    for node in ordered:
        read = [_measured(name, nodes) for name in data_of(node)]
        sources = {source_of(name) for name in read}
        grows = node.op in _COMBINES and len(sources & set(bounded)) > 1
        grows = grows or not sources.isdisjoint(guessed)
        sizes = [_elements(specs[source_of(n)][index_of(n)]) for n in read]
        most = max(1, sum(sizes) if node.op in _JOINS else max(sizes, default=1))
        limit = most if node.name in bounded and grows else math.inf
        found = [is_open(one) or _elements(one) > limit for one in specs[node.name]]
        if any(found):
            guessed[node.name] = None
            shapes = ([most] if each else None for each in found)
            specs[node.name] = with_shapes(specs[node.name], shapes)
    return guessed


def _measured(name: str, nodes: Mapping[str, compat.NodeDef]) -> str:
    """Return the tensor whose shape an input is, or the input itself."""
    node = nodes.get(source_of(name))
    if node is None or node.op not in ("Shape", "ShapeN"):
        return name
    return node.input[index_of(name)]


def _elements(spec: tf.TensorSpec) -> int:
    return bytes_of(spec) // (spec.dtype.size or 1)
