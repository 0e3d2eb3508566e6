"""Writes of a step: deferred until all risky ops ended, or undone after a failure.

A step that runs out of memory can be repeated if it has written nothing. So its writes
wait for all ops that could run out of memory. Some writes cannot wait, because large
ops depend on them (on the state of a random generator, say): their variables get an
undo copy before they are written (`lms.tf.undo`).

    forward, backward ──> last heavy op ──> barrier ──> writes (updates, metrics)

Ops in loops and branches are waited for only where an op outside reads a result. If
others may need more than is left after the barrier, no write is deferred.

Known weakness: an op is taken not to fail while at most half of the budget is in use.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lms.ir.graph import GraphView, op_of
from lms.ir.liveness import lower_bound, working_sets
from lms.units import Bytes

__all__ = ["WriteGuard", "can_come_last", "ends_among", "guard_writes", "may_fail"]

# Heavy ops, which may fail, run while more than 1/2 of the budget is in use.
_HEAVY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteGuard:
    """The deferred and the early writes of a step.

    Args:
        barrier: Names of the ops that must have ended before the first deferred write.
        late: Names of the ops that write after the barrier.
        kept: Names of the handles of variables written earlier, to be copied for undo.
    """

    barrier: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


def can_come_last(graph: GraphView) -> frozenset[str]:
    """Return the writing ops on which no op above half the lower bound depends."""
    heavy = lower_bound(graph)
    sets = working_sets(graph)
    blocked = {
        op.name
        for op, need in zip(graph.ops, sets, strict=True)
        if heavy and need * _HEAVY > heavy
    }
    for op in reversed(graph.ops):
        if op.name in blocked:
            blocked.update(op.controls, map(op_of, op.inputs))
    return frozenset(
        op.name
        for op in graph.ops
        if op.writes and not op.fixed and op.name not in blocked
    )


def guard_writes(graph: GraphView, curve: Sequence[int], budget: int) -> WriteGuard:
    """Split the writes of a planned step at its last heavy op.

    Args:
        graph: The graph in the order that will run.
        curve: Bytes of the step in use at each op.
        budget: Bytes that the step may use.
    """
    heavy = [i for i, used in enumerate(curve) if may_fail(used, budget)]
    last = max(heavy, default=-1)
    writing = [i for i, op in enumerate(graph.ops) if op.writes]
    late = [i for i in writing if i > last and not graph.ops[i].fixed]
    barrier = ends_among(graph, {*graph.order[: late[0]]}) if late else ()
    if late and max(curve[late[0] :]) + _unawaited_bytes(graph, barrier) > budget:
        late, barrier = [], ()
    early = sorted({*writing} - {*late})
    kept = (handle for i in early for handle in graph.ops[i].writes)
    return WriteGuard(
        barrier=barrier,
        late=tuple(graph.ops[i].name for i in late),
        kept=tuple(dict.fromkeys(kept)),
    )


def _unawaited_bytes(graph: GraphView, barrier: Collection[str]) -> Bytes:
    """Return the bytes that ops of loops and branches make that no barrier awaits.

    A loop's ops come before its end, which waits for them (`lms.tf.capture.loops`).
    """
    awaited, made = {*barrier}, 0
    for op in reversed(graph.ops):
        if op.name in awaited:
            awaited.update(op.controls, map(op_of, op.inputs))
        elif op.fixed and op.alias is None and not op.persistent:
            made += sum(tensor.size for tensor in op.outputs)
    return made


def may_fail(used: int, budget: int) -> bool:
    """Tell whether an op may run out of memory that begins with bytes in use."""
    return used * _HEAVY > budget


def ends_among(graph: GraphView, names: Collection[str]) -> tuple[str, ...]:
    """Return the device's ops of `names` on which no other op of `names` depends.

    Ops of loops and branches are left out: an edge would carry a branch's deadness. So
    are aliases, whose buffer may have left: a late alias would hold the buffer.
    """
    named = (op for op in graph.ops if op.name in names and op.alias is None)
    before = [op for op in named if not op.fixed and not op.persistent]
    read = {name for op in before for name in op.inputs}
    followed = {name for op in before for name in op.controls}
    followed |= {op_of(graph.roots[name]) for name in read} | set(map(op_of, read))
    return tuple(op.name for op in before if op.name not in followed)
