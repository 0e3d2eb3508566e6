"""A plan that the device's allocator, with all it loses, fits into the room.

Planners count in chunks of a modelled allocator, but swap-ins that start early
change the places of tensors. So a plan is judged by playing it to the model once more.
Others are made until one can be placed: with less room, with smaller tensors moving
too.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from lms.ir.graph import GraphView
from lms.ir.liveness import buffers, peak
from lms.ir.plan import SwapPlan
from lms.planning.budget import least_room, plan_within
from lms.planning.candidates import (
    Filters,
    Recompute,
    movable,
    small_pool_for,
    smallest_worth_moving,
)
from lms.planning.eviction import EvictionRules
from lms.planning.prefetch import Speeds, copy_in_time
from lms.planning.risk import (
    NOTHING,
    FittedPlan,
    Headroom,
    Risk,
    judged,
    middle,
    regions_of,
    seconds_of,
)
from lms.planning.tuning import THOROUGH, TUNING, Effort
from lms.simulation.allocator import BestFitAllocator, SmallPool
from lms.simulation.executor import simulate
from lms.simulation.memory import allocator_peak, allocator_peaks
from lms.units import Bytes, Seconds

__all__ = ["PlanRequest", "certain_need", "find_plan", "in_room", "least_plan"]
__all__ += ["ranked"]

# An execution order, the chunks kept for small tensors, and a plan of one capacity.
_Made: TypeAlias = tuple[GraphView, SmallPool, SwapPlan | None]


def least_plan(
    orders: Sequence[GraphView], *, filters: Filters
) -> tuple[Bytes, FittedPlan, str]:
    """The least room of the step in which a plan is sure to be placed.

    Rooms are tried from what the ops need upward, whatever was asked for: so it is the
    same for every budget. Only what is placed in regions a little smaller and larger
    too counts.

    Args:
        orders: The step in the execution orders that may be obeyed.
        filters: Which ops' outputs may move.

    Returns:
        The room, the plan, and the name of the op with the largest need.
    """
    needs = [_least_room(graph, filters) for graph in orders]
    budget, op_name = min(needs, key=lambda need: need[0])
    recent: deque[_Made] = deque(maxlen=TUNING.least_budget_below * len(orders))
    while True:
        headroom = Headroom(free=budget // TUNING.least_budget_part)
        recent.extendleft(_made(graph, budget, filters) for graph in orders)
        for i, (graph, small_pool, plan) in enumerate(recent):
            fitted = in_room(graph, small_pool, plan, budget)
            is_at_edge = i < len(orders)
            if fitted is None or (is_at_edge and fitted.plan.swaps):
                continue
            regions = regions_of(budget, headroom, small_pool)
            peaks = allocator_peaks(graph, fitted.plan, regions)
            if peaks is not None:
                return budget, replace(fitted, peak=middle(peaks)), op_name
        budget += max(TUNING.least_budget_step, budget // TUNING.least_budget_part)


def _made(graph: GraphView, capacity: Bytes, filters: Filters) -> _Made:
    """A plan of a capacity."""
    usual = smallest_worth_moving(peak(graph))
    moving = movable(graph, min_bytes=usual, filters=filters)
    small_pool = small_pool_for(graph, min_bytes=usual)
    arena = partial(BestFitAllocator, capacity, small_pool)
    plan = plan_within(graph, arena, movable=moving, min_bytes=usual)
    return graph, small_pool, plan


def in_room(
    graph: GraphView, small_pool: SmallPool, plan: SwapPlan | None, budget: Bytes
) -> FittedPlan | None:
    """The plan if the allocator can place it in a room."""
    if plan is None:
        return None
    reached = allocator_peak(graph, plan, capacity=budget, small_pool=small_pool)
    if reached is None:
        return None
    return FittedPlan(plan=plan, small_pool=small_pool, peak=reached)


def certain_need(graph: GraphView) -> Bytes:
    """Bytes that no plan of an order does with less than: those of its largest op.

    It is proved, as all else is taken to be out.
    """
    known = graph.memo.get("certain need")
    if known is None:
        every = frozenset(buffer.root for buffer in buffers(graph))
        usual = smallest_worth_moving(peak(graph))
        known, _ = least_room(graph, movable=every, min_bytes=usual)
        graph.memo["certain need"] = known
    return known


def _least_room(graph: GraphView, filters: Filters) -> tuple[Bytes, str]:
    usual = smallest_worth_moving(peak(graph))
    moving = movable(graph, min_bytes=usual, filters=filters)
    return least_room(graph, movable=moving, min_bytes=usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The terms of a plan.

    Args:
        budget: Bytes that the step may use, persistent bytes excluded.
        headroom: What more the device has.
        speeds: How long ops and copies take.
        filters: Which ops' outputs may move.
        recompute: Whether tensors may be recomputed.
    """

    budget: Bytes
    headroom: Headroom = NOTHING
    speeds: Speeds
    filters: Filters
    recompute: Recompute = None


def find_plan(
    graph: GraphView,
    request: PlanRequest,
    rules: EvictionRules | None = None,
    effort: Effort = THOROUGH,
) -> FittedPlan | None:
    """Plan a step into the room that the device's allocator has for it.

    Args:
        graph: The graph in the execution order to obey.
        request: What is asked for.
        rules: Who is evicted; by default the farthest next use.
        effort: Seconds of planning against quality.

    Returns:
        None if no plan can be placed.
    """
    rules = replace(rules or EvictionRules(), walks=effort.walks)
    sure = _surest(graph, request, rules, effort)
    if not sure:
        return None
    if len(sure) > 1:
        sure = ranked([_played(graph, option, request.speeds) for option in sure])
    timed = _in_time(graph, sure[0], request, effort)
    return ranked([_played(graph, option, request.speeds) for option in timed])[0]


def ranked(options: Sequence[FittedPlan]) -> list[FittedPlan]:
    """Those that are about as fast as the fastest, what moves least first; the others.

    Others may use the link too, and times are not known to the percent.
    """
    longest = min(map(seconds_of, options)) * TUNING.about_as_fast

    def rank(option: FittedPlan) -> tuple[bool, float, Seconds]:
        seconds = seconds_of(option)
        slow = seconds > longest
        return slow, seconds if slow else option.plan.moved_bytes, seconds

    return sorted(options, key=rank)


def _played(graph: GraphView, fitted: FittedPlan, speeds: Speeds) -> FittedPlan:
    """The plan and how long it takes, if that is not known."""
    if fitted.seconds is not None:
        return fitted
    played = simulate(graph, fitted.plan, speeds.costs, speeds.hardware)
    return replace(fitted, seconds=played.seconds)


def _surest(
    graph: GraphView, request: PlanRequest, rules: EvictionRules, effort: Effort
) -> list[FittedPlan]:
    """A few plans that are sure to stay within bounds.

    So tight can the room be that none is. Then it is the one that exceeds them least,
    or the one that can be placed in most regions.
    """
    sure: list[FittedPlan] = []
    others: list[tuple[int, FittedPlan]] = []
    for alike in _placements(graph, request, rules):
        found = 0
        for option in alike:
            beyond_by, fitted = judged(
                graph, option, request.budget, request.headroom, effort
            )
            if fitted.risk is Risk.NONE:
                sure.append(fitted)
                found += 1
            else:
                others.append((beyond_by, fitted))
            if found == TUNING.alike_plans or len(sure) == effort.compared:
                break
            if len(sure) + len(others) >= effort.placed:
                break
        if len(sure) == effort.compared:
            return sure
        if len(sure) + len(others) >= effort.placed:
            break
    best = sorted(others, key=lambda other: (other[1].risk, other[0]))
    return sure or [option for _, option in best[:1]]


def _placements(
    graph: GraphView, request: PlanRequest, rules: EvictionRules
) -> Iterator[Iterator[FittedPlan]]:
    """Plans that the allocator can place, by the least size that may move.

    Of each size those with most room for themselves come first, which move least.
    """
    usual = smallest_worth_moving(peak(graph))
    coarse = max(usual, peak(graph) // TUNING.coarse_part)
    link = request.speeds.hardware
    long = max(coarse, int(min(link.h2d, link.d2h) * TUNING.copy_seconds))
    for moved in dict.fromkeys((long, coarse, usual)):
        yield _placed(graph, request, rules, moved, usual)


def _placed(
    graph: GraphView,
    request: PlanRequest,
    rules: EvictionRules,
    moved: int,
    min_bytes: int,
) -> Iterator[FittedPlan]:
    """Plans that move tensors of `moved` bytes and order ops of `min_bytes`.

    What is to leave moves whatever its size.
    """
    moving = movable(graph, min_bytes=moved, filters=request.filters)
    least, _ = least_room(graph, movable=moving, min_bytes=min_bytes)
    holes = request.headroom.holes
    small_pool = replace(small_pool_for(graph, min_bytes=min_bytes), holes=holes)
    for percent in TUNING.shrink_percent:
        capacity = request.budget * percent // 100
        chunks = TUNING.small_chunks_factor * (small_pool.bytes + sum(holes))
        if capacity < max(least, chunks):
            return
        # With less room tensors may happen to lie better.
        arena = partial(BestFitAllocator, capacity, small_pool)
        plan = plan_within(
            graph, arena, movable=moving, min_bytes=min_bytes, rules=rules
        )
        fitted = in_room(graph, small_pool, plan, request.budget)
        if fitted is not None:
            yield fitted


def _in_time(
    graph: GraphView, fitted: FittedPlan, request: PlanRequest, effort: Effort
) -> Iterator[FittedPlan]:
    """The plan, and the same with swap-ins that start as early as they should."""
    headroom = NOTHING if fitted.risk is Risk.PLACE else request.headroom
    regions = regions_of(request.budget, headroom, fitted.small_pool, effort)
    peaks = allocator_peaks(graph, fitted.plan, regions)
    assert peaks is not None  # it was placed in these regions before
    early = copy_in_time(
        graph,
        fitted.plan,
        request.speeds,
        bound=max(request.budget + headroom.bound, *peaks),
        regions=regions,
        tries=effort.early_tries,
    )
    yield replace(fitted, peak=middle(peaks))
    for option in early:
        likely = middle(option.peaks)
        yield replace(fitted, plan=option.plan, peak=likely, seconds=None)
