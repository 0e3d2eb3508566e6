"""Hand a rewritten step to `lms.proof`: the graph before, the graph after, the promise.

The graph before is TensorFlow's own, before any pass. It draws its batch from an
iterator, whose outputs are arguments after.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from lms.ir.graph import Op
from lms.planning.problem import PlannedStep
from lms.proof.memory import Footprint
from lms.proof.nodes import Step
from lms.proof.prove import Promise, Proof, prove
from lms.simulation.allocator import rounded_up
from lms.tf import compat
from lms.tf.capture.device_orders import numbers_in
from lms.tf.capture.tracing import TracedFunction
from lms.tf.lowering import TracedStep
from lms.tf.nodes import full_name, source_of

__all__ = ["prove_step"]

_NO_CALL = compat.made_node("none", "NoOp", ())


def prove_step(
    traced: TracedFunction,
    step: TracedStep,
    nodes: Sequence[compat.NodeDef],
    plans: Sequence[PlannedStep],
    hosts: Iterable[tuple[Sequence[compat.NodeDef], Sequence[str]]],
    kept: Sequence[str] | None,
) -> Proof:
    """Prove a rewritten step.

    Args:
        traced: The step as TensorFlow would run it.
        step: The step as it was planned.
        nodes: The nodes that are to run.
        plans: The plan of each device.
        hosts: Nodes around a call of the host, and the variables whose old values the
            function takes; those of the commit point come first.
        kept: Variables whose old values are kept before the step; None if the step may
            write at any time.

    Returns:
        The proof, or what could not be proved.

    Raises:
        Exception: If the proof itself has a fault, of any kind.
    """
    before, after = _before(traced, step), _after(step, nodes)
    place = {f"{a.name}:0": i for i, a in enumerate(step.arguments)}
    calls = [
        (compat.attribute(node, "token").s.decode(), [place[name] for name in handles])
        for made, handles in hosts
        for node in [node for node in made if node.op == "PyFunc"] or [_NO_CALL]
    ]
    known = {str(i): p for i, p in enumerate(plans) if not p.runs_plain}
    ordered = [p.plan for p in known.values() if not p.plan.chain_is_partial]
    swaps = chain.from_iterable(plan.swaps for plan in ordered)
    return prove(
        before,
        after,
        Promise(
            calls={token: variables for token, variables in calls if token},
            commit=calls[0][0],
            kept=None if kept is None else frozenset(place[name] for name in kept),
            releases=[(s.tensor, s.release) for s in swaps if s.release is not None],
            footprints={
                i: dict(map(_footprint, p.graph.ops)) for i, p in known.items()
            },
            most={i: p.budget.step for i, p in known.items() if p.budget.total},
        ),
        _shapes(step, before) if step.ops_cut else {},
    )


def _before(traced: TracedFunction, step: TracedStep) -> Step:
    graph, shift, arguments = traced.graph_def, 0, dict[str, int]()
    numbers = {n.attr["index"].i: n.name for n in graph.node if n.op == "_Arg"}
    ends = {n.attr["index"].i: n.input[0] for n in graph.node if n.op == "_Retval"}
    if traced.iterator_spec is not None:
        shift = sum(a.captured is None for a in step.arguments) - 1
        arguments = {
            f"{node.name}:{i}": i
            for node in graph.node
            if node.op == "IteratorGetNext" and source_of(node.input[0]) == numbers[0]
            for i in range(shift + 1)
        }
        arguments[f"{numbers.pop(0)}:0"] = -1
    arguments |= {f"{name}:0": i + shift for i, name in numbers.items()}
    nodes = [node for node in graph.node if node.op not in ("_Arg", "_Retval")]
    results = [full_name(ends[i]) for i in range(len(ends))]
    return _step(step, nodes, graph.library, arguments=arguments, results=results)


def _after(step: TracedStep, nodes: Sequence[compat.NodeDef]) -> Step:
    arguments = {f"{a.name}:0": i for i, a in enumerate(step.arguments)}
    outputs = step.outputs
    return _step(step, nodes, step.library, arguments=arguments, results=outputs)


def _step(
    step: TracedStep, nodes: Sequence[compat.NodeDef], library: Any, **known: Any
) -> Step:
    functions = {function.signature.name: function for function in library.function}
    inner = chain.from_iterable(function.node_def for function in library.function)
    every = {node.op: node for node in chain(inner, nodes)}
    told = numbers_in({str(i): a.captured for i, a in enumerate(step.arguments)})
    return Step(
        nodes=nodes,
        functions=functions,
        handles=frozenset(
            i for i, a in enumerate(step.arguments) if a.variable is not None
        ),
        effects=frozenset(
            op for op, node in every.items() if compat.is_stateful_or_calls(node)
        ),
        numbers={int(place): number for place, number in told.items()},
        **known,
    )


def _footprint(op: Op) -> tuple[str, Footprint]:
    return op.name, Footprint(
        outputs=[0 if op.persistent else rounded_up(t.size) for t in op.outputs],
        scratch=op.scratch,
        shares=None if op.alias is None else op.inputs.index(op.alias),
        reuses=None if op.reusing is None else op.outputs.index(op.reusing),
        stays=op.to_host,
    )


def _shapes(step: TracedStep, before: Step) -> dict[Any, list[Any]]:
    """Return TensorFlow's shapes of the step before, by op and by argument."""
    there = {name: i for name, i in before.arguments.items() if i >= 0}
    names = {name: step.arguments[i].name for name, i in there.items()}
    gone = set(map(source_of, before.arguments))
    nodes = list[compat.NodeDef]()
    for node in before.nodes:
        if node.name not in gone:
            inputs = [names.get(full_name(n), n) for n in map(str, node.input)]
            kept = (n for n in inputs if n[0] != "^" or source_of(n) not in gone)
            nodes.append(compat.copied(node, kept))
            nodes[-1].attr.pop("_class", None)
    given = [(a.name, a.spec, a.variable) for a in step.arguments]
    found: dict[Any, Any] = dict(
        compat.infer_shapes(compat.graph_def(nodes, step.library), given)
    )
    found |= {i: found[a.name] for i, a in enumerate(step.arguments)}
    return {
        name: [tuple(s.shape) if s.shape.is_fully_defined() else None for s in specs]
        for name, specs in found.items()
    }
