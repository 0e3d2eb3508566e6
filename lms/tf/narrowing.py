"""Casts as TensorFlow's nodes, for tensors that wait in fewer bytes."""

from collections.abc import Sequence
from dataclasses import replace

import tensorflow as tf

from lms.graph import GraphView, Op, op_of
from lms.narrowed import Narrowed, with_narrowed
from lms.tf import compat
from lms.tf.specialising import TracedStep

__all__ = ["with_casts"]


def with_casts(step: TracedStep, narrowed: Sequence[Narrowed]) -> TracedStep:
    """The step in which tensors become narrow, and wide again.

    Args:
        step: The traced step.
        narrowed: Which tensors.

    Returns:
        A step whose graph is `with_narrowed` of the step's.

    Raises:
        PlanError: As `with_narrowed`.
    """
    if not narrowed:
        return step
    graph = with_narrowed(step.graph, narrowed)
    before = step.graph.by_name
    nodes = {node.name: node for node in step.nodes}
    made: dict[str, compat.NodeDef] = {}
    for op in graph.ops:
        if op.name in nodes:
            same = before[op.name] == op
            made[op.name] = nodes[op.name] if same else _reading(nodes[op.name], op)
        elif op.name not in before:  # arguments have no nodes
            made[op.name] = _cast(graph, op, made[op_of(op.inputs[0])].device)
    return replace(step, graph=graph, nodes=tuple(made.values()))


def _reading(node: compat.NodeDef, op: Op) -> compat.NodeDef:
    """A copy of a node that reads what its op reads now."""
    copy = compat.NodeDef()
    copy.CopyFrom(node)
    controls = [name for name in node.input if name.startswith("^")]
    del copy.input[:]
    copy.input.extend([*op.inputs, *controls])
    return copy


def _cast(graph: GraphView, op: Op, device: str) -> compat.NodeDef:
    node = compat.NodeDef(name=op.name, op="Cast", device=device)
    node.input.append(op.inputs[0])
    source, made = graph.tensors[op.inputs[0]], op.outputs[0]
    node.attr["SrcT"].type = tf.as_dtype(source.dtype).as_datatype_enum
    node.attr["DstT"].type = tf.as_dtype(made.dtype).as_datatype_enum
    return node
