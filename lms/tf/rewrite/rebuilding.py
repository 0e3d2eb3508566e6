"""Build a callable from nodes, with the traced step's inputs, captures and outputs.

A recomputed op reads the inputs of its op in the planned graph. Control inputs are not
copied: the ops that the first run waited for have ended long before, and the plan's
order says when the op is recomputed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from lms.ir.graph import GraphView, Op
from lms.ir.recompute import original_name
from lms.simulation.allocator import SmallPool
from lms.tf import compat
from lms.tf.capture.tracing import TracedFunction, input_specs
from lms.tf.lowering import TracedStep
from lms.tf.nodes import source_of, waits_of

__all__ = ["RebuiltStep", "planned_step", "rebuild", "run_without_inputs"]
__all__ += ["with_constants"]


def planned_step(step: TracedStep, graph: GraphView) -> TracedStep:
    """The step with `graph`, to which a plan has added ops; its nodes stay as given.

    Nodes that other devices' plans have added stay too.
    """
    if graph is step.graph:
        return step
    given = {node.name: node for node in step.nodes}
    before = step.graph.by_name
    nodes = tuple(
        given[op.name] if before.get(op.name) == op else _reading(given, op)
        for op in graph.ops
        if op.name in given or before.get(op.name) != op  # arguments have no nodes
    )
    others = (node for node in step.nodes if node.name not in graph.by_name)
    return replace(step, graph=graph, nodes=(*nodes, *others))


def _reading(given: Mapping[str, compat.NodeDef], op: Op) -> compat.NodeDef:
    """The node of an op that is recomputed, or that reads a recomputed tensor."""
    own = given[original_name(op.name)]
    is_copy = own.name != op.name
    node = compat.copied(own, [*op.inputs, *(() if is_copy else waits_of(own))])
    node.name = op.name
    return node


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltStep:
    """A step that runs exactly the nodes it was built from.

    Args:
        function: The runtime's function of flat tensors.
        captures: Tensors that every call passes after its inputs.
        concrete: The traced function, whose output structure is given back.
    """

    function: Any
    captures: tuple[tf.Tensor, ...]
    concrete: Any

    def __call__(self, inputs: Sequence[tf.Tensor]) -> Any:
        """Run the step on flat inputs; return results structured as traced."""
        with compat.planned_as_is():
            outputs = self.function.call_flat(*inputs, *self.captures)
        return compat.pack_outputs(self.concrete, outputs)


def rebuild(
    traced: TracedFunction,
    step: TracedStep,
    nodes: Sequence[compat.NodeDef],
    *,
    as_traced: bool = False,
) -> RebuiltStep:
    """Make rewritten nodes of a traced step callable.

    With `as_traced` the callable takes all shapes of the trace, not only the step's.
    """
    graph_def = compat.graph_def(nodes, step.library)
    opened = input_specs(traced) if as_traced else []
    specs = [*opened, *(a.spec for a in step.arguments[len(opened) :])]
    pairs = zip(step.arguments, specs, strict=True)
    arguments = [(a.name, spec, a.variable) for a, spec in pairs]
    return RebuiltStep(
        function=compat.build_function(graph_def, arguments, step.outputs),
        captures=traced.captures,
        concrete=traced.concrete,
    )


def run_without_inputs(step: TracedStep) -> None:
    """Run all ops of a step that depend on no input, for their writes."""
    reached = {a.name for a in step.arguments if a.captured is None}
    rest, before = list(step.nodes), -1
    while len(rest) != before:  # loops have edges back
        before = len(rest)
        for node in rest:
            if not reached.isdisjoint(map(source_of, node.input)):
                reached.add(node.name)
        rest = [node for node in rest if node.name not in reached]
    captured = [a for a in step.arguments if a.captured is not None]
    arguments = [(a.name, a.spec, a.variable) for a in captured]
    graph_def = compat.graph_def(rest, step.library)
    function = compat.build_function(graph_def, arguments, ())
    function.call_flat(*(a.captured for a in captured))


def with_constants(pool: SmallPool, added: Sequence[compat.NodeDef]) -> SmallPool:
    """The pool with a chunk for each constant among the nodes that a plan adds."""
    if not pool.sizes:
        return pool
    count = sum(node.op == "Const" for node in added)
    return replace(pool, sizes=pool.sizes + (1,) * count)
