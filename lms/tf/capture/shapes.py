"""Shapes of all tensors of a step, as TensorFlow infers them.

TensorFlow's inference leaves shapes open that change, or could change, in a step. Some
are closed here, and `bounds.py` fills in the others:

    loop variables            the shape of the first round: loops keep their shapes
                              unless they were given shape invariants
    elements of lists         the largest shape that ops put in (a loop's lists hold
                              tensors for its gradient)

Sources: `Enter`, `Merge` in control_flow_ops.cc and `TensorListPopBack` in list_ops.cc,
tensorflow/core/ops.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from lms.errors import UnsupportedError
from lms.tf import compat
from lms.tf.capture.bound_values import (
    Shape,
    Specs,
    Values,
    is_open,
    known_shape,
    with_shapes,
)
from lms.tf.capture.loops import HANDS_ON, put_into
from lms.tf.capture.ops import LOOPS
from lms.tf.nodes import data_of, index_of, source_of

__all__ = ["inferred_shapes", "told_shapes"]

# Shapes are inferred at most 33 times: a gradient's lists depend on its loop's, and a
# layer's lists on those of the layer before.
_ROUNDS = 33

# Ops that pass a list on with as many elements.
_KEEPS_LENGTH = HANDS_ON | {"TensorListSetItem", "ZerosLike", "AddN"}

# Ops that read a list: the output with the elements, and the input with their shape.
_OF_LISTS = {"TensorListPopBack": 1, "TensorListGetItem": 0, "TensorListStack": 0}
_ASKED = {"TensorListGetItem": 2, "TensorListStack": 1}


def inferred_shapes(
    nodes: Sequence[compat.NodeDef],
    library: Any,
    inputs: Sequence[compat.Input],
    *,
    stacked: bool = False,
) -> Specs:
    """Infer all shapes from the shapes of the inputs.

    Args:
        nodes: The step's nodes.
        library: The functions that the nodes call.
        inputs: The arguments, as `compat.build_function` takes them.
        stacked: Whether to follow stacked lists too, from loop to loop.

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
        straight = _with_lengths(_with_element_shapes(straight, elements), lengths)
        try:
            specs = compat.infer_shapes(compat.graph_def(straight, library), inputs)
        except ValueError as error:
            if specs:  # elements of one list differ in shape
                break
            raise UnsupportedError(_not_imported(error)) from error
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
    """Fill in open shapes from `set_shape` calls in the traced function.

    Args:
        inferred: Types and shapes, as inferred.
        traced: The graph before it was optimised.
    """
    filled = dict(inferred)
    names: dict[str, list[tf.TensorShape]] = {}
    for op in compat.operations(traced):  # several ops may have one name
        told = [tensor.shape for tensor in op.outputs]
        names[op.name] = told if names.get(op.name, told) == told else []
    for name in filled.keys() & names.keys():
        specs, told = filled[name], names[name]
        if len(specs) == len(told):
            shapes = (
                shape if is_open(spec) and shape.is_fully_defined() else None
                for spec, shape in zip(specs, told, strict=True)
            )
            filled[name] = with_shapes(specs, shapes)
    return filled


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


def _not_imported(error: ValueError) -> str:
    return (
        "Could not import the step's graph into TensorFlow: "
        f"{' '.join(str(error).split())[:300]}. Turn off the pass that fuses ops, "
        "tf.config.optimizer.set_experimental_options({'remapping': False}), or "
        "train without large model support."
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


def _with_lengths(
    nodes: Sequence[compat.NodeDef], lengths: Mapping[str, int]
) -> list[compat.NodeDef]:
    stacked = [compat.copied(n) if n.name in lengths else n for n in nodes]
    for node in stacked:
        if node.name in lengths:
            node.attr["num_elements"].i = lengths[node.name]
    return stacked


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
        made = compat.NodeDef(
            name=name, op="EmptyTensorList", input=[shape.name, limit.name]
        )
        made.attr["element_dtype"].CopyFrom(compat.attribute(node, "element_dtype"))
        made.attr["shape_type"].type = tf.int32.as_datatype_enum
        copy.input[0] = name
        popped += [shape, limit, made, copy]
    return popped
