"""Let small neighbours of a plan's chain run side by side, on a device that can.

    one by one       a ──> b ──> c ──> d
    side by side     a ──> b and c ──> d      b and c are small, neither needs the other

A CPU runs ops that do not need each other at the same time, and small ops do not keep
all of its cores busy: on a network's deep levels that is much of what an order costs.
What runs side by side is in memory at once, and the allocator may be asked in either
order: so all that a group makes is a small part of the room, and what it reads is there
as long as the first of them needs it, as before.

A GPU's stream runs ops one by one: nothing is gained there.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from lms.graph import GraphView, Op, op_of
from lms.plan import SwapPlan
from lms.units import Bytes

__all__ = ["side_by_side", "turned_around"]

# Ops of a group, at most; and of how many parts of the room one is all that they take.
_MOST, _PART = 4, 50


def side_by_side(
    graph: GraphView, plan: SwapPlan, room: Bytes
) -> tuple[tuple[str, ...], ...]:
    """The plan's chain, with small neighbours that do not need each other in one group.

    A copy that starts or ends between two ops parts them; so does a write, and a loop
    or branch behind them.

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
    ends = [*(position[group[0]] for group in plan.chain[1:]), len(plan.order)]
    groups: list[tuple[str, ...]] = []
    used: list[Bytes] = []
    for group, end in zip(plan.chain, ends, strict=False):
        size = sum(_bytes(graph.by_name[name]) for name in group)
        before = groups[-1] if groups else None
        if (
            before is not None
            and len(before) + len(group) <= _MOST
            and used[-1] + size <= room // _PART
            and starting.isdisjoint(before)
            and awaiting.isdisjoint(group)
            and _may_run_at_once(
                graph, before, group, plan.order[position[before[0]] : end]
            )
        ):
            groups[-1] = before + group
            used[-1] += size
        else:
            groups.append(group)
            used.append(size)
    return tuple(groups)


def turned_around(
    graph: GraphView, plan: SwapPlan, chain: Sequence[tuple[str, ...]]
) -> SwapPlan:
    """The plan with what runs side by side in the other order, to see where it lies.

    Args:
        graph: The graph that the plan is for, in any execution order.
        plan: The plan before anything ran side by side.
        chain: What `side_by_side` made of its chain.
    """
    position = {name: i for i, name in enumerate(plan.order)}
    alone = set(plan.chain)
    together = [group for group in chain if group not in alone]
    order = list(plan.order)
    for group in together:
        span = slice(position[group[0]], position[group[-1]] + 1)
        order[span] = _turned(graph, plan.order[span], group)
    turned = {group: group[::-1] for group in together}
    first = {group[0]: group[-1] for group in together}
    last = {group[-1]: group[0] for group in together}
    swaps = (
        replace(
            swap,
            release=first.get(swap.release or "", swap.release),
            swap_ins=tuple(
                replace(copy, trigger=last.get(copy.trigger or "", copy.trigger))
                for copy in swap.swap_ins
            ),
        )
        for swap in plan.swaps
    )
    return replace(
        plan,
        order=tuple(order),
        chain=tuple(turned.get(group, group) for group in chain),
        swaps=tuple(swaps),
    )


def _turned(
    graph: GraphView, span: Sequence[str], group: Sequence[str]
) -> Sequence[str]:
    """The span's ops, the group's in the other order, as early as each can run."""
    position = {name: i for i, name in enumerate(span)}
    found: dict[str, None] = {}
    for name in reversed(group):
        needed = _needed(graph, name, position)
        found |= dict.fromkeys(sorted(needed, key=lambda source: position[source]))
        found[name] = None
    return [*found, *(name for name in span if name not in found)]


def _bytes(op: Op) -> Bytes:
    return op.scratch + sum(tensor.size for tensor in op.outputs)


def _may_run_at_once(
    graph: GraphView, before: Sequence[str], group: Sequence[str], span: Sequence[str]
) -> bool:
    """Whether nothing keeps a group from running beside those before it.

    Writes have their order; what may be fused stays as it is; small scratch has places
    for one op at a time. A loop or branch begins when what it reads is there.

    Args:
        graph: The graph.
        before: Ops that run side by side already.
        group: The next ones.
        span: All ops from the first of those to the group after the next.
    """
    ops = [graph.by_name[name] for name in (*before, *group)]
    return (
        not any(op.writes or op.group for op in ops)
        and sum(1 for op in ops if op.scratch) <= 1
        and not any(graph.by_name[name].fixed for name in span)
        and all(_needed(graph, name, set(span)).isdisjoint(before) for name in group)
    )


def _needed(graph: GraphView, name: str, among: Collection[str]) -> set[str]:
    """The ops among some that an op waits for, through others of them."""
    pending, found = [name], set[str]()
    while pending:
        op = graph.by_name[pending.pop()]
        for source in (*map(op_of, op.inputs), *op.controls):
            if source in among and source not in found:
                found.add(source)
                pending.append(source)
    return found
