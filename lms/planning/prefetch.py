"""Starts of swap-ins: early enough to avoid stalls, late enough to save memory.

    from the last copy backwards       when must each start, if the lane serves them one
                                       by one and no op waits?
    from the first copy forwards       let it start then, or as soon after as its bytes
                                       are free from there on

The classic of real-time scheduling, latest start times on one machine by deadlines
(Jackson's rule, 1955), with memory as a second constraint. Free memory is bytes here;
then the allocator's model tells whether earlier copies can be placed: all at once, else
in halves.

Known weakness: ops are taken to run without stalls, so a step that waits for swap-outs
has more time than is assumed.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from lms.ir.graph import GraphView
from lms.ir.plan import ResolvedPlan, Swap, SwapPlan, resolve
from lms.planning.problem import Speeds
from lms.planning.tuning import TUNING
from lms.units import Bytes

__all__ = ["copy_in_time", "start_in_time"]


def copy_in_time(
    graph: GraphView,
    plan: SwapPlan,
    speeds: Speeds,
    *,
    usage: tuple[Sequence[Bytes], Bytes],
    judge: Callable[[SwapPlan], Sequence[Bytes] | None],
    tries: int = len(TUNING.early_tries),
) -> list[tuple[SwapPlan, Sequence[Bytes]]]:
    """Start swap-ins in time, where the allocator can place them.

    `usage` has the bytes in use at each position of the plan's order, and the most that
    may be in use. `judge` returns a plan's peaks; None if it cannot be placed.

    Returns:
        Plans with earlier copies that the judge accepts, without equal ones; each with
        its peaks.
    """
    options: list[tuple[SwapPlan, Sequence[Bytes]]] = []
    used, capacity = usage
    for slack, percent in TUNING.early_tries[:tries]:
        room = capacity * percent // 100
        wanted = start_in_time(
            graph, plan, speeds, usage=used, budget=room, slack=slack
        )
        placed = _placed(plan, wanted, judge)
        if placed is not None and placed not in options:
            options.append(placed)
    return options


def _placed(
    plan: SwapPlan,
    wanted: SwapPlan,
    judge: Callable[[SwapPlan], Sequence[Bytes] | None],
) -> tuple[SwapPlan, Sequence[Bytes]] | None:
    """Accept the wanted triggers that the judge accepts, by halving."""
    changes = [
        ((i, k), copy.trigger)
        for i, (before, after) in enumerate(zip(plan.swaps, wanted.swaps, strict=True))
        for k, copy in enumerate(after.swap_ins)
        if copy.trigger is not None and copy != before.swap_ins[k]
    ]
    accepted: dict[tuple[int, int], str] = {}
    found: tuple[SwapPlan, Sequence[Bytes]] | None = None
    pending = [changes] if changes else []
    plays = max(TUNING.early_plays, TUNING.early_effort_ops // max(1, len(plan.order)))
    while pending and plays:
        plays -= 1
        part = pending.pop()
        option = _with_triggers(plan, {**accepted, **dict(part)})
        if (peaks := judge(option)) is not None:
            accepted.update(part)
            found = option, peaks
        elif len(part) > 1:
            half = len(part) // 2
            pending += [part[half:], part[:half]]
    return found


@dataclass(slots=True, kw_only=True)
class _Return:
    """One swap-in; positions are those of the plan's order."""

    key: tuple[int, int]  # numbers of the swap and of its swap-in
    size: Bytes
    first_read: int
    starts: int  # the ordered op beside which it takes its memory
    earliest: int  # before it, an earlier copy of the same tensor is still there
    wanted: int = 0


def start_in_time(
    graph: GraphView,
    plan: SwapPlan,
    speeds: Speeds,
    *,
    usage: Sequence[Bytes],
    budget: Bytes,
    slack: float = 1.0,
) -> SwapPlan:
    """Give swap-ins the latest triggers with which they end in time.

    A trigger is only made earlier, and only where bytes of `budget` are free: `usage`
    has the bytes in use at each position. `slack` is a factor on a copy's seconds.
    """
    resolved = resolve(graph, plan)
    boundaries, returns = resolved.chain, _returns(resolved)
    _want(returns, plan, speeds, boundaries, slack)
    used = np.array(usage, np.int64)
    for copy in returns:
        _move(copy, boundaries, used, budget)
    link_at = {boundary: link for link, boundary in enumerate(boundaries)}
    triggers = {
        copy.key: plan.chain[link - 1]
        for copy in returns
        if (link := link_at.get(copy.starts))  # nothing comes before the first
    }
    return _with_triggers(plan, triggers)


def _returns(resolved: ResolvedPlan) -> list[_Return]:
    """List the swap-ins that have a trigger, by their first reader."""
    returns: list[_Return] = []
    for i, swap in enumerate(resolved.swaps):
        gone = swap.leaves
        for k, copy in enumerate(swap.swap_ins):
            if copy.trigger is not None:
                # `copy.starts` may be earlier: at the next op, behind the chain's end.
                link = bisect_right(resolved.chain, copy.trigger)
                following = resolved.chain[link : link + 1]
                returns.append(
                    _Return(
                        key=(i, k),
                        size=swap.buffer.size,
                        first_read=copy.first_read,
                        starts=min((copy.first_read, *following)),
                        earliest=gone,
                    )
                )
            gone = copy.last_read + 1
    return sorted(returns, key=lambda copy: copy.first_read)


def _want(
    returns: Sequence[_Return],
    plan: SwapPlan,
    speeds: Speeds,
    boundaries: Sequence[int],
    slack: float,
) -> None:
    """Set the last ordered op beside which each copy may start and end in time."""
    taken = [speeds.costs.of(name) for name in plan.order]
    begins = [0.0, *accumulate(taken)]
    moments = [begins[boundary] for boundary in boundaries]
    lane_free = begins[-1]
    for copy in reversed(returns):
        seconds = speeds.hardware.copy_seconds(copy.size, to_device=True) * slack
        lane_free = min(lane_free, begins[copy.first_read]) - seconds
        copy.wanted = boundaries[max(0, bisect_right(moments, lane_free) - 1)]


def _move(
    copy: _Return, boundaries: Sequence[int], used: npt.NDArray[np.int64], budget: Bytes
) -> None:
    """Start a copy as early as wanted, if its bytes are free from there on."""
    first = max(copy.wanted, copy.earliest)
    full = np.flatnonzero(used[first : copy.starts] > budget - copy.size)
    if full.size:
        first += int(full[-1]) + 1
    index = max(1, bisect_left(boundaries, first))  # a trigger comes before it
    if index < len(boundaries) and boundaries[index] < copy.starts:
        used[boundaries[index] : copy.starts] += copy.size
        copy.starts = boundaries[index]


def _with_triggers(plan: SwapPlan, triggers: Mapping[tuple[int, int], str]) -> SwapPlan:
    swaps: list[Swap] = []
    for i, swap in enumerate(plan.swaps):
        copies = (
            replace(copy, trigger=triggers.get((i, k), copy.trigger))
            for k, copy in enumerate(swap.swap_ins)
        )
        swaps.append(replace(swap, swap_ins=tuple(copies)))
    return replace(plan, swaps=tuple(swaps))
