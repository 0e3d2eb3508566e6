"""Let small neighbours of a plan's chain run side by side, on a device that can.

    one by one       a ──> b ──> c ──> d
    side by side     a ──> b and c ──> d      b and c are small, neither needs the other

A CPU runs ops that do not need each other at the same time, and small ops do not keep
all of its cores busy: on a network's deep levels that is much of what an order costs.
What runs side by side is in memory at once, and the allocator may be asked in either
order, so that all of a group together are a small part of the room.

A GPU's stream runs ops one by one: nothing is gained there.
"""

from collections.abc import Mapping, Sequence

from lms.graph import GraphView, Op, op_of
from lms.plan import SwapPlan
from lms.units import Bytes

__all__ = ["side_by_side"]

# Ops of a group, at most; and of how many parts of the room one is all that they take.
_MOST, _PART = 4, 50


def side_by_side(
    graph: GraphView, plan: SwapPlan, room: Bytes
) -> tuple[tuple[str, ...], ...]:
    """The plan's chain, with small neighbours that do not need each other in one group.

    A copy that starts or ends between two ops parts them; so does a write.

    Args:
        graph: The graph that the plan is for, in any execution order.
        plan: A valid plan.
        room: Bytes that the step may use.

    Example:
        >>> from lms.graph import Tensor
        >>> def made(name, *inputs):
        ...     output = Tensor(name=f"{name}:0", size=1)
        ...     return Op(name=name, type="Op", inputs=inputs, outputs=(output,))
        >>> ops = made("a"), made("b", "a:0"), made("c", "a:0"), made("d", "b:0", "c:0")
        >>> chain = tuple((name,) for name in "abcd")
        >>> plan = SwapPlan(planner="budget", order=tuple("abcd"), chain=chain)
        >>> side_by_side(GraphView(ops=ops), plan, 100)
        (('a',), ('b', 'c'), ('d',))
    """
    position = {name: i for i, name in enumerate(plan.order)}
    starting = {copy.trigger for swap in plan.swaps for copy in swap.swap_ins}
    awaiting = {swap.release for swap in plan.swaps}
    groups: list[tuple[str, ...]] = []
    used: list[Bytes] = []
    for group in plan.chain:
        ops = [graph.by_name[name] for name in group]
        size = sum(map(_bytes, ops))
        if (
            groups
            and used[-1] + size <= room // _PART
            and len(groups[-1]) + len(group) <= _MOST
            and starting.isdisjoint(groups[-1])
            and awaiting.isdisjoint(group)
            and not any(op.writes for op in ops)
            and not any(graph.by_name[name].writes for name in groups[-1])
            and not _needs(graph, ops, groups[-1], position)
        ):
            groups[-1] += group
            used[-1] += size
        else:
            groups.append(group)
            used.append(size)
    return tuple(groups)


def _bytes(op: Op) -> Bytes:
    return op.scratch + sum(tensor.size for tensor in op.outputs)


def _needs(
    graph: GraphView,
    ops: Sequence[Op],
    others: Sequence[str],
    position: Mapping[str, int],
) -> bool:
    """Whether an op waits for one of the others, through whatever lies between."""
    first = min(position[name] for name in others)
    pending, seen = [*ops], {op.name for op in ops}
    while pending:
        op = pending.pop()
        for name in (*map(op_of, op.inputs), *op.controls):
            if name in others:
                return True
            if name not in seen and position[name] > first:
                seen.add(name)
                pending.append(graph.by_name[name])
    return False
