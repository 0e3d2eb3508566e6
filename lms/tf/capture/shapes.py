"""Shapes of all tensors of a step, loops and branches included.

TensorFlow's inference leaves open what changes, or could change, while a step runs:

    what enters a loop        the shape of the first round: loops keep their shapes
                              unless they were given shape invariants
    elements of a list        the shape of what is pushed onto it (a loop keeps what
                              its gradient needs in such lists)
    what depends on values    its bound, where there is a rule (`bounds.py`);
                              else, in a loop or branch, the largest tensor of known
                              size in any: index sets of sparse gradients are no larger

Known weakness: the last is a guess. Outside of loops and branches, a shape without a
bound stays open.

Sources: `Enter`, `Merge` in control_flow_ops.cc and `TensorListPopBack` in list_ops.cc,
tensorflow/core/ops.
"""

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any, TypeAlias

import tensorflow as tf

from lms.errors import UnsupportedError
from lms.tf import compat
from lms.tf.capture.loops import index_of, source_of
from lms.tf.capture.op_facts import LOOPS

__all__ = ["guessed_by_inputs", "guessed_shapes", "inferred_shapes", "told_shapes"]

Specs: TypeAlias = dict[str, list[tf.TensorSpec]]
"""Types and shapes of an op's outputs, by op name."""

# How deep lists may depend on each other: a gradient's lists on its loop's.
_ROUNDS = 4

# Ops that hand a list on; `Merge` from either input.
_HANDS_ON = frozenset({"Identity", "Enter", "Exit", "NextIteration", "Switch", "Merge"})
_LIST_IS_INPUT = _HANDS_ON | {
    "TensorListPushBack",
    "TensorListPopBack",
    "TensorListSetItem",
}


def inferred_shapes(
    nodes: Sequence[compat.NodeDef], library: Any, inputs: Sequence[compat.Input]
) -> Specs:
    """Infer all shapes from the inputs'.

    Args:
        nodes: The step's nodes.
        library: The functions that they call.
        inputs: The arguments, as `compat.build_function` takes them.

    Raises:
        UnsupportedError: If TensorFlow does not import what it made itself, or keeps
            a function to itself that is called.
    """
    _check_called(nodes, library)
    straight = _first_round(nodes)
    try:
        specs = compat.infer_shapes(compat.graph_def(straight, library), inputs)
    except ValueError as error:
        raise UnsupportedError(_not_imported(error)) from error
    by_name = {node.name: node for node in nodes}
    for _ in range(_ROUNDS):
        elements = {
            node.name: shape
            for node in nodes
            if node.op == "TensorListPopBack"
            and not specs[node.name][1].shape.is_fully_defined()
            and (shape := _element_shape(node, by_name, specs)) is not None
        }
        if not elements:
            break
        straight = _with_element_shapes(straight, elements)
        specs = compat.infer_shapes(compat.graph_def(straight, library), inputs)
    return specs


def told_shapes(specs: Specs, traced: tf.Graph) -> Specs:
    """The same, with open shapes as `set_shape` told them while the step was traced.

    Args:
        specs: What was inferred.
        traced: The graph before it was optimised.
    """
    filled = dict(specs)
    names = {op.name: op for op in compat.operations(traced)}
    for name in filled.keys() & names.keys():
        told = [tensor.shape for tensor in names[name].outputs]
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
    """The same, with open shapes in loops and branches filled in.

    Args:
        specs: What was inferred.
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
    ordered: Sequence[compat.NodeDef], specs: Mapping[str, list[tf.TensorSpec]]
) -> tuple[Specs, tuple[str, ...]]:
    """Open shapes filled in: as many elements as the largest of an op's inputs has.

    Text has no size that is known. Numbers that are made of nothing else are taken to
    be few.

    Args:
        ordered: Nodes after their inputs.
        specs: What is known.

    Returns:
        All specs, and the names of the ops whose shapes were guessed.
    """
    filled, guessed = dict(specs), list[str]()
    for node in ordered:
        if not any(_is_open(spec) for spec in filled[node.name]):
            continue
        guessed.append(node.name)
        names = (name for name in node.input if not name.startswith("^"))
        read = (filled[source_of(name)][index_of(name)] for name in names)
        most = max((int(spec.shape.num_elements() or 0) for spec in read), default=1)
        filled[node.name] = [
            tf.TensorSpec([max(1, most)], spec.dtype) if _is_open(spec) else spec
            for spec in filled[node.name]
        ]
    return filled, tuple(guessed)


def _is_open(spec: tf.TensorSpec) -> bool:
    return not (_opaque(spec) or spec.shape.is_fully_defined())


def _check_called(nodes: Sequence[compat.NodeDef], library: Any) -> None:
    """Refuse calls of functions that TensorFlow specialised and does not hand over."""
    known = {function.signature.name for function in library.function}
    for node in nodes:
        name = compat.attribute(node, "f").func.name
        if name and name not in known:
            raise UnsupportedError(
                "a function that the step takes the gradient of must be inlined or "
                f"compiled, got {name!r} for op {node.name!r}. Take `_noinline` from "
                "its attributes, or train without large model support."
            )


def _not_imported(error: ValueError) -> str:
    return (
        "the step's graph must be made of ops that TensorFlow imports again, got "
        f"{' '.join(str(error).split())[:300]}. Turn off the pass that fuses ops, "
        "tf.config.optimizer.set_experimental_options({'remapping': False}), or "
        "train without large model support."
    )


def _first_round(nodes: Sequence[compat.NodeDef]) -> list[compat.NodeDef]:
    """The nodes without loops, only for inference."""
    back_edges = {node.name for node in nodes if node.op == "NextIteration"}
    straight: list[compat.NodeDef] = []
    for node in nodes:
        if node.op in LOOPS:  # one told no shapes has those that enter it
            copy = compat.NodeDef()
            copy.CopyFrom(node)
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
    """The largest shape of what is pushed onto the list that is popped from."""
    shapes: list[tuple[int, ...]] = []
    pending, seen = [pop.name], {pop.name}
    while pending:
        node = by_name[pending.pop()]
        if node.op == "TensorListPushBack":
            pushed = specs[source_of(node.input[1])][index_of(node.input[1])].shape
            if pushed.is_fully_defined():
                shapes.append(tuple(int(size or 0) for size in pushed))
        sources = node.input if node.op == "Merge" else node.input[:1]
        for name in map(source_of, sources):
            source = by_name.get(name)
            if source is None or name in seen or source.op not in _LIST_IS_INPUT:
                continue
            seen.add(name)
            pending.append(name)
    return max(shapes, key=math.prod, default=None)


def _with_element_shapes(
    nodes: Sequence[compat.NodeDef], elements: Mapping[str, tuple[int, ...]]
) -> list[compat.NodeDef]:
    """Let `TensorListPopBack` pop from new lists of such elements.

    It looks at its list, not at the shape that it is asked for.
    """
    popped: list[compat.NodeDef] = []
    for node in nodes:
        if node.name not in elements:
            popped.append(node)
            continue
        copy = compat.NodeDef()
        copy.CopyFrom(node)
        name = f"lms/{node.name}"
        shape = compat.constant(f"{name}/shape", elements[node.name], tf.int32)
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


def _bytes(spec: tf.TensorSpec) -> int:
    return spec.dtype.size * (spec.shape.num_elements() or 0)
