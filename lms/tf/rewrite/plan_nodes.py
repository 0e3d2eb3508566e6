"""The ops that a plan adds to a step, as TensorFlow's nodes: recomputed ops, and casts.

A second run's inputs are those of the graph's copy. Control inputs are not copied: what
an op had to wait for has ended long before its second run, and the plan's order says
when that is.
"""

from collections.abc import Mapping
from dataclasses import replace

import tensorflow as tf

from lms.ir.graph import GraphView, Op, op_of
from lms.ir.recompute import original_name
from lms.tf import compat
from lms.tf.capture.specialising import TracedStep

__all__ = ["planned_step"]


def planned_step(step: TracedStep, graph: GraphView) -> TracedStep:
    """The step with what a plan adds to it.

    Args:
        step: The traced step.
        graph: What `planned_graph(step.graph, plan)` returns.

    Returns:
        A step with that graph; the nodes given are not changed.
    """
    if graph is step.graph:
        return step
    given = {node.name: node for node in step.nodes}
    before = step.graph.by_name
    nodes: dict[str, compat.NodeDef] = {}
    for op in graph.ops:
        if before.get(op.name) == op:
            if op.name in given:  # arguments have no nodes
                nodes[op.name] = given[op.name]
        elif original_name(op.name) in given:
            nodes[op.name] = _reading(given, op)
        else:
            device = nodes[op_of(op.inputs[0])].device
            nodes[op.name] = _cast(graph, op, device)
    return replace(step, graph=graph, nodes=tuple(nodes.values()))


def _reading(given: Mapping[str, compat.NodeDef], op: Op) -> compat.NodeDef:
    """The node of an op that reads what a plan adds, or of a second run."""
    node = compat.NodeDef()
    node.CopyFrom(given[original_name(op.name)])
    controls = [name for name in node.input if name.startswith("^")]
    is_copy = node.name != op.name
    node.name = op.name
    del node.input[:]
    node.input.extend([*op.inputs, *(() if is_copy else controls)])
    return node


def _cast(graph: GraphView, op: Op, device: str) -> compat.NodeDef:
    node = compat.NodeDef(name=op.name, op="Cast", device=device)
    node.input.append(op.inputs[0])
    source, made = graph.tensors[op.inputs[0]], op.outputs[0]
    node.attr["SrcT"].type = tf.as_dtype(source.dtype).as_datatype_enum
    node.attr["DstT"].type = tf.as_dtype(made.dtype).as_datatype_enum
    return node
