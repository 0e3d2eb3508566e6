"""Proofs of plans for graphs that TensorFlow did not trace: drawn and recorded ones."""

from lms.ir.graph import GraphView, Op
from lms.ir.plan import SwapPlan, planned_graph
from lms.proof.memory import Footprint
from lms.proof.nodes import Step
from lms.proof.prove import Promise, Proof, prove
from lms.tf import compat
from lms.tf.lowering import TracedStep
from lms.tf.rewriting import planned_step, rewrite

__all__ = ["proof_of"]

_DEVICE = "/device:GPU:0"


def proof_of(graph: GraphView, plan: SwapPlan, most: int) -> Proof:
    """Rewrite a graph's nodes by a plan for it, and prove them within `most` bytes."""
    nodes = tuple(_node(op) for op in graph.ops if op.type != "Placeholder")
    step = TracedStep(
        graph=graph,
        nodes=nodes,
        library=None,
        arguments=(),
        outputs=graph.results,
        device=_DEVICE,
    )
    planned = planned_graph(graph, plan)
    after = rewrite(planned_step(step, planned), plan)
    footprints = {op.name: _footprint(op) for op in planned.ops}
    swaps = [(each.tensor, each.release) for each in plan.swaps]
    promise = Promise(
        releases=[(tensor, name) for tensor, name in swaps if name is not None],
        footprints={"gpu": footprints},
        most={"gpu": most},
    )
    return prove(_step(graph, nodes), _step(graph, after), promise)


def _node(op: Op) -> compat.NodeDef:
    # A loop's exit waits for its body, though the graph has no such edge.
    controls = () if op.type == "Exit" else op.controls
    inputs = [*op.inputs, *(f"^{name}" for name in controls)]
    return compat.NodeDef(name=op.name, op=op.type, input=inputs, device=_DEVICE)


def _step(graph: GraphView, nodes: object) -> Step:
    given = [op for op in graph.ops if op.type == "Placeholder"]
    handles = (i for i, op in enumerate(given) if op.outputs[0].dtype == "resource")
    return Step(
        nodes=nodes,  # pyright: ignore[reportArgumentType]
        functions={},
        arguments={op.outputs[0].name: i for i, op in enumerate(given)},
        handles=frozenset(handles),
        results=graph.results,
        effects=frozenset(op.type for op in graph.ops if "Variable" in op.type),
    )


def _footprint(op: Op) -> Footprint:
    return Footprint(
        outputs=[0 if op.persistent else tensor.size for tensor in op.outputs],
        scratch=op.scratch,
        shares=None if op.alias is None else op.inputs.index(op.alias),
        reuses=None if op.reusing is None else op.outputs.index(op.reusing),
        stays=op.to_host,
    )
