"""A search for a plan that the device's allocator can place in the budget.

The walk allocates chunks of a modelled allocator, but swap-ins that start early change
the places of tensors. So a plan is checked by playing it to the model once more. Plans
are made until one can be placed: with less capacity, with smaller tensors moving too.
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
    """Find the least capacity in which a plan of swaps alone is sure to be placed.

    Capacities are tried upward from the ops' need, whatever the user's budget, so the
    result is the same for every budget. A plan counts only if it can be placed in
    slightly smaller and larger regions too.

    Args:
        orders: The step in the execution orders that may be obeyed.
        filters: Which ops' outputs may move.

    Returns:
        The capacity, the plan, and the name of the op with the largest need.
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
    """Make a plan for a capacity."""
    usual = smallest_worth_moving(peak(graph))
    moving = movable(graph, min_bytes=usual, filters=filters)
    small_pool = small_pool_for(graph, min_bytes=usual)
    arena = partial(BestFitAllocator, capacity, small_pool)
    plan = plan_within(graph, arena, movable=moving, min_bytes=usual)
    return graph, small_pool, plan


def in_room(
    graph: GraphView, small_pool: SmallPool, plan: SwapPlan | None, budget: Bytes
) -> FittedPlan | None:
    """Return the plan with its peak; None if the allocator cannot place it."""
    if plan is None:
        return None
    reached = allocator_peak(graph, plan, capacity=budget, small_pool=small_pool)
    if reached is None:
        return None
    return FittedPlan(plan=plan, small_pool=small_pool, peak=reached)


def certain_need(graph: GraphView) -> Bytes:
    """Return a proved lower bound on any plan's bytes: the largest op's need.

    All other tensors are taken to be out.
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
        headroom: Memory of the device beyond the budget.
        speeds: Seconds of ops and copies.
        filters: Which ops' outputs may move.
        recompute: Whether tensors may be recomputed.
    """

    budget: Bytes
    headroom: Headroom = NOTHING
    speeds: Speeds
    filters: Filters
    recompute: bool | None = None


def find_plan(
    graph: GraphView,
    request: PlanRequest,
    rules: EvictionRules | None = None,
    effort: Effort = THOROUGH,
) -> FittedPlan | None:
    """Plan a step so that the device's allocator can place it in the budget.

    Args:
        graph: The graph in the execution order to obey.
        request: Terms of the plan.
        rules: Rules of eviction; by default the farthest next use.
        effort: Seconds of planning against quality.

    Returns:
        The plan; None if none can be placed.
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
    """Sort plans: about as fast as the fastest by moved bytes, then others by seconds.

    Other programs may use the link too, and seconds are not known to the percent.
    """
    longest = min(map(seconds_of, options)) * TUNING.about_as_fast

    def rank(option: FittedPlan) -> tuple[bool, float, Seconds]:
        seconds = seconds_of(option)
        slow = seconds > longest
        return slow, seconds if slow else option.plan.moved_bytes, seconds

    return sorted(options, key=rank)


def _played(graph: GraphView, fitted: FittedPlan, speeds: Speeds) -> FittedPlan:
    """Add simulated seconds to a plan that has none."""
    if fitted.seconds is not None:
        return fitted
    played = simulate(graph, fitted.plan, speeds.costs, speeds.hardware)
    return replace(fitted, seconds=played.seconds)


def _surest(
    graph: GraphView, request: PlanRequest, rules: EvictionRules, effort: Effort
) -> list[FittedPlan]:
    """Return a few plans without risk, or else the one plan of least risk.

    A tight budget may allow no sure plan. The plan of least risk exceeds the bound by
    least, or is placed in most regions.
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
    """Yield plans that can be placed, grouped by the least size that may move.

    In each group plans of the largest capacity come first, since they move least.
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
    """Yield plans that move tensors of `moved` bytes and order ops of `min_bytes`.

    Tensors of `rules.leaving` move whatever their size.
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
        # With less capacity tensors may happen to lie better.
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
    """Yield the plan, then plans with swap-ins that start in time."""
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
