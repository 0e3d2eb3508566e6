"""Shapes of all tensors of a step, loops and branches included.

TensorFlow's inference leaves shapes open that change, or could change, in a step:

    loop variables            the shape of the first round: loops keep their shapes
                              unless they were given shape invariants
    elements of lists         the largest shape that ops put in (a loop's lists hold
                              tensors for its gradient)
    shapes that depend        the bound, where there is a rule (`bounds.py`); else, in
    on values                 loops and branches, the largest tensor of known size in
                              any of them: index sets of sparse gradients are no larger

Known weakness: the last size is a guess. Outside of loops and branches, a shape without
a bound stays open, or is guessed where a plan is made by guesses.

Sources: `Enter`, `Merge` in control_flow_ops.cc and `TensorListPopBack` in list_ops.cc,
tensorflow/core/ops.
"""

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any, TypeAlias

import tensorflow as tf

from lms.errors import UnsupportedError
from lms.tf import compat
from lms.tf.capture.bound_rules import COMBINES
from lms.tf.capture.bound_values import Values
from lms.tf.capture.loops import HANDS_ON, put_into
from lms.tf.capture.op_facts import LOOPS
from lms.tf.nodes import index_of, source_of

__all__ = ["guessed_by_inputs", "guessed_shapes", "inferred_shapes", "told_shapes"]

Specs: TypeAlias = dict[str, list[tf.TensorSpec]]
"""Types and shapes of an op's outputs, by op name."""

# Shapes are inferred at most 33 times: a gradient's lists depend on its loop's, and a
# layer's lists on those of the layer before.
_ROUNDS = 32

# Ops that pass a list on with as many elements.
_KEEPS_LENGTH = HANDS_ON | {"TensorListSetItem", "ZerosLike", "AddN"}

# Ops that join all inputs into one tensor.
_JOINS = frozenset({"ConcatV2", "Pack"})

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
    straight = _first_round(nodes)
    try:
        specs = compat.infer_shapes(compat.graph_def(straight, library), inputs)
    except ValueError as error:
        raise UnsupportedError(_not_imported(error)) from error
    by_name = {node.name: node for node in nodes}
    told, known = set[str](), dict[str, int]()
    read = _OF_LISTS if stacked else {"TensorListPopBack": 1}
    for _ in range(_ROUNDS):
        elements = {
            node.name: shape
            for node in nodes
            if node.op in read
            and node.name not in told
            and not specs[node.name][read[node.op]].shape.is_fully_defined()
            and (shape := _element_shape(node, by_name, specs)) is not None
        }
        lengths = _lengths(by_name, specs) if stacked else {}
        if not elements and lengths == known:
            break
        told |= elements.keys()
        known = lengths
        straight = _with_lengths(_with_element_shapes(straight, elements), lengths)
        try:
            specs = compat.infer_shapes(compat.graph_def(straight, library), inputs)
        except ValueError:  # elements of one list differ in shape
            break
    return specs


def told_shapes(specs: Specs, traced: tf.Graph) -> Specs:
    """Fill in open shapes from `set_shape` calls in the traced function.

    Args:
        specs: The inferred types and shapes.
        traced: The graph before it was optimised.
    """
    filled = dict(specs)
    names: dict[str, list[tf.TensorShape]] = {}
    for op in compat.operations(traced):  # several ops may have one name
        told = [tensor.shape for tensor in op.outputs]
        names[op.name] = told if names.get(op.name, told) == told else []
    for name in filled.keys() & names.keys():
        told = names[name]
        if any(map(_is_open, filled[name])) and len(told) == len(filled[name]):
            filled[name] = [
                tf.TensorSpec(shape, spec.dtype)
                if _is_open(spec) and shape.is_fully_defined()
                else spec
                for spec, shape in zip(filled[name], told, strict=True)
            ]
    return filled


def guessed_shapes(
    specs: Mapping[str, list[tf.TensorSpec]], branched: Set[str]
) -> Specs:
    """Fill in open shapes in loops and branches with their largest known size.

    Args:
        specs: The inferred types and shapes.
        branched: Names of the ops in loops and branches.
    """
    known = [
        _bytes(spec)
        for name in branched
        for spec in specs[name]
        if spec.shape.is_fully_defined() and not _opaque(spec)
    ]
    largest = max(known, default=0)
    filled = dict(specs)
    for name in branched:
        filled[name] = [
            tf.TensorSpec([-(-largest // spec.dtype.size)], spec.dtype)
            if _is_open(spec)
            else spec
            for spec in specs[name]
        ]
    return filled


def guessed_by_inputs(
    ordered: Sequence[compat.NodeDef],
    specs: Mapping[str, list[tf.TensorSpec]],
    bounded: Set[str] = frozenset(),
) -> tuple[Specs, tuple[str, ...]]:
    """Fill in open shapes with as many elements as the op's largest input has.

    Text has no known size: a tensor made of text alone is guessed to have one element.

    Args:
        ordered: Nodes after their inputs.
        specs: The known types and shapes.
        bounded: Names of the ops whose sizes are bounds. A combination of two bounds is
            guessed to be as large as the larger one, and its readers no larger.

    Returns:
        (all specs, names of the ops whose shapes were guessed).
    """
    filled, guessed = dict(specs), dict[str, None]()
    by_name = {node.name: node for node in ordered}
    for node in ordered:
        read = [_measured(name, by_name) for name in node.input if name[0] != "^"]
        sources = {source_of(name) for name in read}
        grows = node.op in COMBINES and len(sources & bounded) > 1
        grows = grows or not sources.isdisjoint(guessed)
        sizes = [_elements(filled[source_of(n)][index_of(n)]) for n in read]
        most = max(1, sum(sizes) if node.op in _JOINS else max(sizes, default=1))
        limit = most if node.name in bounded and grows else math.inf
        found = [_is_open(one) or _elements(one) > limit for one in filled[node.name]]
        if any(found):
            guessed[node.name] = None
            filled[node.name] = [
                tf.TensorSpec([most], spec.dtype) if each else spec
                for spec, each in zip(filled[node.name], found, strict=True)
            ]
    return filled, tuple(guessed)


def _measured(name: str, nodes: Mapping[str, compat.NodeDef]) -> str:
    """Return the tensor whose shape an input is, or the input itself."""
    node = nodes.get(source_of(name))
    if node is None or node.op not in ("Shape", "ShapeN"):
        return name
    return node.input[index_of(name)]


def _is_open(spec: tf.TensorSpec) -> bool:
    return not (_opaque(spec) or spec.shape.is_fully_defined())


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
        if node.op in LOOPS:  # without `output_shapes` its inputs' shapes are taken
            copy = compat.copied(node)
            copy.attr["output_shapes"].Clear()
            straight.append(copy)
            continue
        if node.op not in ("Enter", "Merge"):
            straight.append(node)
            continue
        entered = [name for name in node.input if source_of(name) not in back_edges]
        copy = compat.NodeDef(name=node.name, op=node.op, input=entered)
        copy.attr["T"].CopyFrom(compat.attribute(node, "T"))
        if node.op == "Enter":
            copy.op = "Identity"
        else:
            copy.attr["N"].i = sum(not name.startswith("^") for name in entered)
        straight.append(copy)
    return straight


def _element_shape(
    pop: compat.NodeDef, by_name: Mapping[str, compat.NodeDef], specs: Specs
) -> tuple[int, ...] | None:
    """Return the largest known shape of the elements that `pop` may read."""
    shapes: list[tuple[int, ...]] = []
    for node, given in put_into(pop, by_name):
        if not given:
            continue
        put = specs[source_of(given)][index_of(given)]
        if put.shape.is_fully_defined() and put.dtype != tf.variant:  # no list of lists
            shape = tuple(int(size or 0) for size in put.shape)
            shapes.append(shape[node.op == "TensorListFromTensor" :])
    return max(shapes, key=math.prod, default=None)


def _lengths(by_name: Mapping[str, compat.NodeDef], specs: Specs) -> dict[str, int]:
    """Return the lengths of stacked lists that inference left open, by op name."""

    def shape_of(name: str) -> tuple[int, ...] | None:
        shape = specs[source_of(name)][index_of(name)].shape
        known = shape.is_fully_defined()
        return tuple(int(size or 0) for size in shape) if known else None

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
    nodes: Sequence[compat.NodeDef], elements: Mapping[str, tuple[int, ...]]
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


def _opaque(spec: tf.TensorSpec) -> bool:
    return spec.dtype in (tf.resource, tf.variant, tf.string)


def _elements(spec: tf.TensorSpec) -> int:
    return 0 if _opaque(spec) else int(spec.shape.num_elements() or 0)


def _bytes(spec: tf.TensorSpec) -> int:
    return spec.dtype.size * _elements(spec)
