"""Writes of a step: those that come last, and those while it may still fail.

A step that runs out of memory can be repeated if it has written nothing. So its writes
wait until all has ended that could run out of memory. Some cannot wait, because large
ops need what comes after them (the state of a random generator, say): their variables
are kept on the host before each step, and put back.

    forward, backward ──> last heavy op ──> barrier ──> writes (updates, metrics)

Known weaknesses: an op below half of the budget counts as one that cannot fail. What
fails inside a loop or branch is waited for only where an op outside reads its result.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lms.ir.graph import GraphView
from lms.ir.liveness import lower_bound, working_sets

__all__ = ["WriteGuard", "can_come_last", "guard_writes"]

# An op is heavy, so that it may fail, from one part of so many of the budget.
_HEAVY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteGuard:
    """A step's writes, kept from a step that fails.

    Args:
        barrier: Names of the ops that must have ended before the first late write.
        late: Names of the ops that write after them.
        kept: Names of the handles whose variables are written before: they need a copy.
    """

    barrier: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


def can_come_last(graph: GraphView) -> frozenset[str]:
    """Names of the writing ops after which no op of half the lower bound comes.

    Example:
        >>> from lms.ir.graph import Op, Tensor
        >>> big = (Tensor(name="big:0", size=64),)
        >>> seed = Op(name="seed", type="Assign", writes=("state:0",))
        >>> made = Op(name="big", type="Random", controls=("seed",), outputs=big)
        >>> update = Op(name="update", type="Assign", writes=("weight:0",))
        >>> sorted(can_come_last(GraphView(ops=(seed, made, update))))
        ['update']
    """
    heavy = lower_bound(graph)
    sets = working_sets(graph)
    blocked = {
        op.name
        for op, need in zip(graph.ops, sets, strict=True)
        if heavy and need * _HEAVY > heavy
    }
    maker = {t.name: op.name for op in graph.ops for t in op.outputs}
    for op in reversed(graph.ops):
        if op.name in blocked:
            blocked.update(maker[name] for name in op.inputs)
            blocked.update(op.controls)
    return frozenset(
        op.name
        for op in graph.ops
        if op.writes and not op.fixed and op.name not in blocked
    )


def guard_writes(graph: GraphView, curve: Sequence[int], budget: int) -> WriteGuard:
    """Part the writes of a planned step at its last heavy op.

    Args:
        graph: The graph in the order that will run.
        curve: Bytes of the step in use at each op.
        budget: Bytes that the step may use.
    """
    heavy = [i for i, used in enumerate(curve) if used * _HEAVY > budget]
    last = max(heavy, default=-1)
    writing = [i for i, op in enumerate(graph.ops) if op.writes]
    late = [i for i in writing if i > last and not graph.ops[i].fixed]
    early = sorted({*writing} - {*late})
    kept = (handle for i in early for handle in graph.ops[i].writes)
    return WriteGuard(
        barrier=_ends(graph, late[0]) if late else (),
        late=tuple(graph.ops[i].name for i in late),
        kept=tuple(dict.fromkeys(kept)),
    )


def _ends(graph: GraphView, stop: int) -> tuple[str, ...]:
    """Ops before a position that no other of them waits for.

    An edge out of a loop or branch would carry a dead branch's deadness: left out.
    """
    before = [op for op in graph.ops[:stop] if not op.fixed and not op.persistent]
    maker = {t.name: op.name for op in before for t in op.outputs}
    followed: Collection[str] = {
        name
        for op in before
        for name in (*op.controls, *(maker.get(name, "") for name in op.inputs))
    }
    return tuple(op.name for op in before if op.name not in followed)
