"""A search for a plan that the device's allocator can place in the budget.

The walk allocates chunks of a modelled allocator, but swap-ins that start early change
the places of tensors. So a plan is checked by playing it to the model once more. Plans
are made until one can be placed: with less capacity, with smaller tensors moving too.
Each is judged in several regions (`Risk`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from operator import itemgetter

from lms.ir.graph import GraphView, per_graph
from lms.ir.liveness import buffers, peak
from lms.ir.plan import SwapPlan
from lms.planning.addresses import bytes_apart, place
from lms.planning.candidates import movable, small_pool_for, smallest_worth_moving
from lms.planning.eviction import EvictionRules, least_room, plan_within
from lms.planning.prefetch import copy_in_time
from lms.planning.problem import (
    UNLIMITED,
    Filters,
    FittedPlan,
    Headroom,
    PlanRequest,
    Risk,
    Speeds,
)
from lms.planning.tuning import THOROUGH, TUNING, Effort
from lms.simulation.allocator import BestFitAllocator, ByteCounter, SmallPool
from lms.simulation.executor import simulate
from lms.simulation.memory import (
    Region,
    allocator_curve,
    allocator_peak,
    peaks_by_region,
)
from lms.units import Bytes, Seconds

__all__ = ["certain_need", "find_plan", "in_room", "judged", "least_need"]
__all__ += ["ranked", "seconds_of"]


def in_room(
    graph: GraphView,
    small_pool: SmallPool,
    plan: SwapPlan,
    budget: Bytes,
    packings: int = 0,
) -> FittedPlan | None:
    """Return the plan with its peak; None if the allocator cannot place it.

    `packings` is the number to try for a sealed step; 0 if it is not sealed.
    """
    if packings:
        apart = small_pool.bytes + bytes_apart(graph, plan, small_pool.below)
        placed = place(graph, plan, small_pool, budget - apart, packings)
        reached = None if placed is None else apart + placed.height
    else:
        reached = allocator_peak(graph, plan, capacity=budget, small_pool=small_pool)
    if reached is None:
        return None
    sealed = packings > 0
    return FittedPlan(plan=plan, small_pool=small_pool, peak=reached, sealed=sealed)


@per_graph()
def certain_need(graph: GraphView) -> Bytes:
    """Return a proved lower bound on any plan's bytes: the largest op's need.

    All other tensors are taken to be out.
    """
    every = frozenset(buffer.root for buffer in buffers(graph))
    usual = smallest_worth_moving(peak(graph))
    return least_room(graph, movable=every, min_bytes=usual)[0]


def least_need(graph: GraphView, filters: Filters) -> tuple[Bytes, str]:
    """Return a lower bound on the bytes of plans of swaps alone, and the op."""
    usual = smallest_worth_moving(peak(graph))
    moving = movable(graph, min_bytes=usual, filters=filters)
    return least_room(graph, movable=moving, min_bytes=usual)


def find_plan(
    graph: GraphView,
    request: PlanRequest,
    rules: EvictionRules | None = None,
    effort: Effort = THOROUGH,
) -> FittedPlan | None:
    """Plan a step, in the graph's order, so that the device's allocator can place it.

    Without rules, the buffer with the farthest next use is evicted.

    Returns:
        The plan; None if none can be placed.
    """
    rules = replace(rules or EvictionRules(), walks=effort.walks)
    sure = _surest(graph, request, rules, effort)
    if not sure:
        return None
    first = ranked([_played(graph, option, request.speeds) for option in sure])[0]
    timed = [first, *_in_time(graph, first, request, effort)]
    return ranked([_played(graph, option, request.speeds) for option in timed])[0]


def ranked(options: Sequence[FittedPlan]) -> list[FittedPlan]:
    """Sort plans: about as fast as the fastest by moved bytes, others by seconds."""
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
    """Return a few plans without risk, or else the plan that has the most places."""
    sure: list[FittedPlan] = []
    others: list[tuple[int, FittedPlan]] = []
    for moved in _least_sizes(graph, request):
        before, is_enough = len(sure), False
        for option in _placed(graph, request, rules, effort, moved):
            failed, fitted = judged(graph, option, request, effort)
            if failed:
                others.append((failed, fitted))
            else:
                sure.append(fitted)
            is_enough = len(sure) == effort.compared
            is_enough |= len(sure) + len(others) >= effort.placed
            if is_enough or len(sure) - before == TUNING.alike_plans:
                break
        if is_enough or (sure and request.sealed):
            break
    if sure or not others:
        return sure
    return [min(others, key=itemgetter(0))[1]]


def _least_sizes(graph: GraphView, request: PlanRequest) -> Iterable[Bytes]:
    """Return the least bytes of a tensor that may move; the largest comes first."""
    usual = request.large or smallest_worth_moving(peak(graph))
    coarse = max(usual, peak(graph) // TUNING.coarse_part)
    link = request.speeds.hardware
    long = max(coarse, int(min(link.h2d, link.d2h) * TUNING.copy_seconds))
    return dict.fromkeys((long, coarse, usual))


def _placed(
    graph: GraphView,
    request: PlanRequest,
    rules: EvictionRules,
    effort: Effort,
    moved: int,
) -> Iterator[FittedPlan]:
    """Yield plans that can be placed and move tensors of at least `moved` bytes.

    Tensors of `rules.leaving` move whatever their size. Plans of the largest capacity
    come first, since they move least.
    """
    min_bytes = request.large or smallest_worth_moving(peak(graph))
    moving = movable(graph, min_bytes=moved, filters=request.filters)
    least, _ = least_room(graph, movable=moving, min_bytes=min_bytes)
    holes = request.headroom.holes
    small_pool = replace(small_pool_for(graph, min_bytes=min_bytes), holes=holes)
    kinds = (ByteCounter, BestFitAllocator) if request.sealed else (BestFitAllocator,)
    for percent, kind in product(TUNING.shrink_percent, kinds):
        capacity = request.budget * percent // 100
        chunks = TUNING.small_chunks_factor * small_pool.bytes + sum(holes)
        if capacity < max(least, chunks):
            return
        # With less capacity tensors may happen to lie better.
        arena = partial(kind, capacity, small_pool)
        plan = plan_within(
            graph, arena, movable=moving, min_bytes=min_bytes, rules=rules
        )
        room, packings = request.budget, 0
        if request.sealed:
            room, packings = room + request.headroom.bound, effort.packings
        fitted = plan and in_room(graph, small_pool, plan, room, packings)
        if fitted is not None:
            yield fitted


def _in_time(
    graph: GraphView, fitted: FittedPlan, request: PlanRequest, effort: Effort
) -> Iterator[FittedPlan]:
    """Yield plans with swap-ins that start in time, of no higher risk."""
    headroom = Headroom() if fitted.risk is Risk.PLACE else request.headroom
    bound = request.budget + headroom.bound
    pool = fitted.small_pool
    regions = [Region(capacity=UNLIMITED, small_pool=replace(pool, sizes=()))]
    if not request.sealed:
        regions = _regions(request.budget, headroom, pool, effort)

    def judge(plan: SwapPlan) -> Sequence[Bytes] | None:
        if request.sealed:
            found = in_room(graph, pool, plan, bound, effort.packings)
            return found and [found.peak]
        peaks: list[Bytes] = []
        for reached in peaks_by_region(graph, plan, regions):
            if reached is None or reached > bound:
                return None
            peaks.append(reached)
        return peaks

    usage = allocator_curve(graph, fitted.plan, regions[0])
    if usage is None or not fitted.plan.swaps:
        return
    capacity = regions[0].capacity
    if request.sealed:
        kept = pool.bytes
        usage, capacity = [kept + used for used in usage], bound
    early = copy_in_time(
        graph,
        fitted.plan,
        request.speeds,
        usage=(usage, capacity),
        judge=judge,
        tries=effort.early_tries,
    )
    for plan, peaks in early:
        yield replace(fitted, plan=plan, peak=max(peaks), seconds=None)


def seconds_of(fitted: FittedPlan) -> Seconds:
    """Return the seconds of a plan that was simulated."""
    assert fitted.seconds is not None
    return fitted.seconds


def judged(
    graph: GraphView,
    option: FittedPlan,
    request: PlanRequest,
    effort: Effort = THOROUGH,
) -> tuple[int, FittedPlan]:
    """Return (number of regions without a place for a plan, the plan with its risk)."""
    if option.sealed:
        return 0, option
    budget, headroom = request.budget, request.headroom
    regions = _regions(budget, headroom, option.small_pool, effort)
    peaks = peaks_by_region(graph, option.plan, regions)
    most = budget + headroom.bound
    placed = [peak for peak in peaks if peak is not None and peak <= most]
    if failed := len(regions) - len(placed):
        return failed, replace(option, risk=Risk.PLACE)
    return 0, replace(option, peak=max(placed), risk=Risk.NONE)


def _regions(
    budget: int, headroom: Headroom, small_pool: SmallPool, effort: Effort
) -> tuple[Region, ...]:
    """Return the regions to place a plan in: the budget, a little less, and more."""
    more = (headroom.free * part // 100 for part in effort.region_percent)
    least = budget * TUNING.region_least_percent // 100
    sizes = (max(least, budget + part) for part in more)
    return tuple(
        Region(capacity=size, small_pool=small_pool, scratch_first=i % 2 == 1)
        for i, size in enumerate(dict.fromkeys(sizes))
    )
