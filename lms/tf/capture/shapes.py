"""Shapes of all tensors of a step: as TensorFlow infers them, bounded, or guessed.

TensorFlow's inference leaves shapes open that change, or could change, in a step. Some
are closed by what the graph tells:

    loop variables            the shape of the first round: loops keep their shapes
                              unless they were given shape invariants
    elements of lists         the largest shape that ops put in (a loop's lists hold
                              tensors for its gradient)

Others depend on values, and get a bound:

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

Sources: `Enter`, `Merge` in control_flow_ops.cc and `TensorListPopBack` in list_ops.cc,
tensorflow/core/ops.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

from lms.errors import UnsupportedError
from lms.tf import compat
from lms.tf.capture.bound_rules import Shapes
from lms.tf.capture.bound_values import (
    Shape,
    Specs,
    Values,
    is_open,
    known_shape,
    with_shapes,
)
from lms.tf.capture.loops import HANDS_ON, put_into
from lms.tf.capture.ops import BOUNDS, LOOPS
from lms.tf.nodes import bytes_of, data_of, index_of, source_of, with_numbers

__all__ = ["filled_shapes", "inferred_shapes", "told_shapes"]

# Shapes are inferred at most 33 times: a gradient's lists depend on its loop's, and a
# layer's lists on those of the layer before.
_ROUNDS = 33

# Ops that pass a list on with as many elements.
_KEEPS_LENGTH = HANDS_ON | {"TensorListSetItem", "ZerosLike", "AddN"}

# Ops that read a list: the output with the elements, and the input with their shape.
_OF_LISTS = {"TensorListPopBack": 1, "TensorListGetItem": 0, "TensorListStack": 0}
_ASKED = {"TensorListGetItem": 2, "TensorListStack": 1}

# Ops that join all inputs into one tensor.
_JOINS = ("ConcatV2", "Pack")

# Ops whose output may have more elements than all inputs together.
_COMBINES = {op for op, rule in BOUNDS.items() if rule in ("broadcast", "product")}

# Ops with their first input's shape, in any layout; gradients whose first input is
# their shape.
_LIKE = ("Transpose", "_UnaryOpsComposition")
_SIZED = ("Conv2DBackpropInput", "Conv3DBackpropInputV2")


def inferred_shapes(
    nodes: Sequence[compat.NodeDef],
    library: Any,
    inputs: Sequence[compat.Input],
    *,
    stacked: bool = False,
) -> Specs:
    """Infer all shapes from the shapes of the inputs.

    With `stacked`, stacked lists are followed too, from loop to loop.

    Raises:
        UnsupportedError: If TensorFlow does not import its own graph, or does not hand
            over a function that a node calls.
    """
    _check_called(nodes, library)
    straight, by_name = _first_round(nodes), {node.name: node for node in nodes}
    read = _OF_LISTS if stacked else {"TensorListPopBack": 1}
    specs, told = Specs(), set[str]()
    elements, lengths = dict[str, Shape](), dict[str, int]()
    for _ in range(_ROUNDS):
        straight = _with_element_shapes(straight, elements)
        straight = with_numbers(straight, "num_elements", lengths)
        try:
            specs = compat.infer_shapes(compat.graph_def(straight, library), inputs)
        except ValueError as error:
            if specs:  # elements of one list differ in shape
                break
            raise UnsupportedError(
                "Could not import the step's graph into TensorFlow: "
                f"{' '.join(str(error).split())[:300]}. Turn off the pass that fuses "
                "ops, tf.config.optimizer.set_experimental_options({'remapping': "
                "False}), or train without large model support."
            ) from error
        told |= elements.keys()
        elements = {
            node.name: shape
            for node in nodes
            if node.op in read
            and node.name not in told
            and not specs[node.name][read[node.op]].shape.is_fully_defined()
            and (shape := _element_shape(node, by_name, specs)) is not None
        }
        known, lengths = lengths, _lengths(by_name, specs) if stacked else {}
        if not elements and lengths == known:
            break
    return specs


def told_shapes(inferred: Specs, traced: tf.Graph) -> Specs:
    """Fill in open shapes from `set_shape` calls in the graph as it was traced."""
    filled = dict(inferred)
    left = {name for name, specs in filled.items() if any(map(is_open, specs))}
    names: dict[str, list[tf.TensorShape]] = {}
    ops = compat.operations(traced) if left else ()
    for op in ops:  # several ops may have one name
        told = [tensor.shape for tensor in op.outputs]
        names[op.name] = told if names.get(op.name, told) == told else []
    for name in left & names.keys():
        specs, told = filled[name], names[name]
        if len(specs) == len(told):
            shapes = (
                shape if is_open(spec) and shape.is_fully_defined() else None
                for spec, shape in zip(specs, told, strict=True)
            )
            filled[name] = with_shapes(specs, shapes)
    return filled


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
        own = specs[name]
        sizes = ([-(-largest // s.dtype.size)] if is_open(s) else None for s in own)
        specs[name] = with_shapes(own, sizes)
    guessed = _guess(ordered, specs, varying if guesses else frozenset())
    return specs, frozenset(varying | guessed.keys()), tuple(guessed)


def _check_called(nodes: Sequence[compat.NodeDef], library: Any) -> None:
    """Refuse calls of functions that TensorFlow made but does not hand over."""
    known = {function.signature.name for function in library.function}
    for node in nodes:
        name = compat.attribute(node, "f").func.name
        if name and name not in known:
            raise UnsupportedError(
                f"Could not read function {name!r} of op {node.name!r}: TensorFlow "
                "keeps gradients of `_noinline` functions to itself. Remove the "
                "attribute `_noinline`, or train without large model support."
            )


def _first_round(nodes: Sequence[compat.NodeDef]) -> list[compat.NodeDef]:
    """Return the nodes without loops, for shape inference only."""
    back_edges = {node.name for node in nodes if node.op == "NextIteration"}
    straight: list[compat.NodeDef] = []
    for node in nodes:
        copy = node
        if node.op in LOOPS:  # without `output_shapes` its inputs' shapes are taken
            copy = compat.copied(node)
            copy.attr["output_shapes"].Clear()
        elif node.op in ("Enter", "Merge"):
            entered = [name for name in node.input if source_of(name) not in back_edges]
            kind = "Identity" if node.op == "Enter" else node.op
            dtype = compat.attribute(node, "T").type
            copy = compat.made_node(node.name, kind, entered, T=dtype)
            if node.op == "Merge":
                copy.attr["N"].i = len(data_of(copy))
        straight.append(copy)
    return straight


def _element_shape(
    pop: compat.NodeDef, by_name: Mapping[str, compat.NodeDef], specs: Specs
) -> Shape | None:
    """Return the largest known shape of the elements that `pop` may read."""
    shapes: list[Shape] = []
    for node, given in put_into(pop, by_name):
        if not given:
            continue
        put = specs[source_of(given)][index_of(given)]
        shape = known_shape(put)
        if shape is not None and put.dtype != tf.variant:  # no list of lists
            shapes.append(shape[node.op == "TensorListFromTensor" :])
    return max(shapes, key=math.prod, default=None)


def _lengths(by_name: Mapping[str, compat.NodeDef], specs: Specs) -> dict[str, int]:
    """Return the lengths of stacked lists that inference left open, by op name."""

    def shape_of(name: str) -> Shape | None:
        return known_shape(specs[source_of(name)][index_of(name)])

    values = Values(by_name, shape_of)

    def length(name: str) -> int | None:
        """Return the length of a list that was made at its full length, or None."""
        node, seen = by_name.get(source_of(name)), set[str]()
        while node and node.op in _KEEPS_LENGTH and node.name not in seen:
            seen.add(node.name)
            node = by_name.get(source_of(node.input[0]))
        if node and node.op == "TensorListFromTensor":
            return (shape_of(node.input[0]) or (None,))[0]
        if not node or node.op != "TensorListReserve":
            return None
        counted = by_name.get(source_of(node.input[1]))
        if counted and counted.op == "TensorListLength":
            return length(counted.input[0])
        return (values.of(node.input[1]) or (None,))[0]

    found: dict[str, int] = {}
    for node in by_name.values():
        if node.op == "TensorListStack":
            shape = specs[node.name][0].shape
            is_open = shape.rank is None or shape.rank == 0 or shape[0] is None
            if is_open and (known := length(node.input[0])) is not None:
                found[node.name] = known
    return found


def _with_element_shapes(
    nodes: Sequence[compat.NodeDef], elements: Mapping[str, Shape]
) -> list[compat.NodeDef]:
    """Return nodes that read elements of the given shapes, for shape inference only.

    `TensorListPopBack` reads a new list, as its shape comes from its list alone.
    """
    popped: list[compat.NodeDef] = []
    for node in nodes:
        if node.name not in elements:
            popped.append(node)
            continue
        copy = compat.copied(node)
        name = f"lms/{node.name}"
        shape = compat.constant(f"{name}/shape", elements[node.name], tf.int32)
        if node.op != "TensorListPopBack":
            copy.input[_ASKED[node.op]] = shape.name
            popped += [shape, copy]
            continue
        limit = compat.constant(f"{name}/limit", -1, tf.int32)
        inputs, kind = [shape.name, limit.name], node.attr["element_dtype"].type
        types = {"element_dtype": kind, "shape_type": tf.int32}
        made = compat.made_node(name, "EmptyTensorList", inputs, **types)
        copy.input[0] = name
        popped += [shape, limit, made, copy]
    return popped


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
    measured = _measured(name, nodes)
    return None if measured == name else source_of(measured)


def _guess(
    ordered: Sequence[compat.NodeDef], specs: Specs, bounded: Collection[str]
) -> dict[str, None]:
    """Fill in open shapes with as many elements as the op's largest input has.

    Text has no known size: a tensor made of text alone is guessed to have one element.
    `bounded` names ops whose sizes are bounds, where these may be too large. Return the
    names of the ops whose shapes were guessed, in order.
    """
    guessed = dict[str, None]()
    nodes = {node.name: node for node in ordered}
    for node in ordered:
        if node.name not in bounded and not any(map(is_open, specs[node.name])):
            continue
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
