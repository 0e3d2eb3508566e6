"""Second runs of ops as TensorFlow's nodes.

The copies' inputs are those of the graph's copies. Control inputs are not copied: what
an op had to wait for has ended long before its second run, and the plan's order says
when that is.
"""

from collections.abc import Sequence
from dataclasses import replace

from lms.graph import Op
from lms.recomputed import Recomputed, original_name, with_recomputed
from lms.tf import compat
from lms.tf.specialising import TracedStep

__all__ = ["with_second_runs"]


def with_second_runs(step: TracedStep, recomputed: Sequence[Recomputed]) -> TracedStep:
    """The step with ops that run a second time.

    Args:
        step: The traced step.
        recomputed: What is run again.

    Returns:
        A step whose graph is `with_recomputed` of the step's; the nodes given are not
        changed.

    Raises:
        PlanError: As `with_recomputed`.
    """
    if not recomputed:
        return step
    graph = with_recomputed(step.graph, recomputed)
    nodes = {node.name: node for node in step.nodes}
    before = step.graph.by_name
    return replace(
        step,
        graph=graph,
        nodes=tuple(
            nodes[op.name] if before.get(op.name) == op else _node(nodes, op)
            for op in graph.ops
            if original_name(op.name) in nodes
        ),
    )


def _node(nodes: dict[str, compat.NodeDef], op: Op) -> compat.NodeDef:
    """The node of an op that reads second runs, or is one."""
    node = compat.NodeDef()
    node.CopyFrom(nodes[original_name(op.name)])
    controls = [name for name in node.input if name.startswith("^")]
    is_copy = node.name != op.name
    node.name = op.name
    del node.input[:]
    node.input.extend([*op.inputs, *(() if is_copy else controls)])
    return node
