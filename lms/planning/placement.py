"""A plan that the device's allocator, with all it loses, fits into the room.

Planners count in chunks of a modelled allocator, but swap-ins that start early
change the places of tensors. So a plan is judged by playing it to the model once more.
Others are made until one can be placed: without early copies, with less room, with
smaller tensors moving too.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from lms.errors import BudgetError
from lms.ir.graph import GraphView
from lms.ir.liveness import peak
from lms.ir.plan import SwapPlan
from lms.planning.budget import least_room, plans_within
from lms.planning.candidates import (
    Filters,
    movable,
    small_pool_for,
    smallest_worth_moving,
)
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
    with_likely_peak,
)
from lms.planning.tuning import TUNING, is_large
from lms.simulation.allocator import BestFitAllocator, SmallPool
from lms.simulation.executor import simulate
from lms.simulation.memory import allocator_peak, allocator_peaks
from lms.units import Bytes, Seconds

__all__ = ["find_plan", "least_plan", "ranked"]

# An execution order, the chunks kept for small tensors, and plans of one capacity.
_Made: TypeAlias = tuple[GraphView, SmallPool, Sequence[SwapPlan]]
_ANY = 1 << 62


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
        headroom = Headroom(free=budget // TUNING.least_budget_part, bound=_ANY)
        recent.extendleft(_made(graph, budget, filters) for graph in orders)
        for i, (graph, small_pool, plans) in enumerate(recent):
            fitted = _in_room(graph, small_pool, plans, budget)
            is_at_edge = i < len(orders)
            if fitted is None or (is_at_edge and fitted.plan.swaps):
                continue
            _, fitted = judged(graph, fitted, budget, headroom)
            if fitted.risk is not Risk.PLACE:
                return budget, fitted, op_name
        budget += max(TUNING.least_budget_step, budget // TUNING.least_budget_part)


def _made(graph: GraphView, capacity: Bytes, filters: Filters) -> _Made:
    """Plans of one capacity; none if there are none."""
    usual = smallest_worth_moving(peak(graph))
    moving = movable(graph, min_bytes=usual, filters=filters)
    small_pool = small_pool_for(graph, min_bytes=usual)
    try:
        return graph, small_pool, _plans(graph, capacity, moving, usual, small_pool)
    except BudgetError:
        return graph, small_pool, ()


def _in_room(
    graph: GraphView, small_pool: SmallPool, plans: Iterable[SwapPlan], budget: Bytes
) -> FittedPlan | None:
    """The first of some plans that the allocator can place in a room."""
    for plan in plans:
        reached = allocator_peak(graph, plan, capacity=budget, small_pool=small_pool)
        if reached is not None:
            return FittedPlan(plan=plan, small_pool=small_pool, peak=reached)
    return None


def _least_room(graph: GraphView, filters: Filters) -> tuple[Bytes, str]:
    usual = smallest_worth_moving(peak(graph))
    moving = movable(graph, min_bytes=usual, filters=filters)
    return least_room(graph, movable=moving, min_bytes=usual)


def find_plan(
    graph: GraphView,
    budget: int,
    *,
    filters: Filters,
    speeds: Speeds | None = None,
    headroom: Headroom = NOTHING,
) -> FittedPlan | None:
    """Plan a step into the room that the device's allocator has for it.

    Args:
        graph: The graph in the execution order to obey.
        budget: Bytes of device memory for the step, persistent bytes excluded.
        filters: Which ops' outputs may move.
        speeds: How long ops and copies take, so that copies start in time; None lets
            them start a few ops ahead.
        headroom: What more the device has.

    Returns:
        None if no plan can be placed.
    """
    sure = _surest(graph, budget, filters, headroom, _least_copy(speeds))
    if not sure:
        return None
    if speeds is None:
        return with_likely_peak(graph, sure[0], budget, headroom)

    best = sure
    if len(sure) > 1:
        best = ranked([_played(graph, option, speeds) for option in sure])
    options = [
        _played(graph, timed, speeds)
        for option in best[: TUNING.timed_plans]
        for timed in _in_time(graph, option, speeds, budget, headroom)
    ]
    return with_likely_peak(graph, ranked(options)[0], budget, headroom)


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


def _least_copy(speeds: Speeds | None) -> Bytes:
    """Bytes that the link carries in the time that a copy takes besides; 0 unknown."""
    if speeds is None:
        return 0
    link = speeds.hardware
    return int(min(link.h2d, link.d2h) * TUNING.copy_seconds)


def _surest(
    graph: GraphView,
    budget: int,
    filters: Filters,
    headroom: Headroom,
    least_copy: Bytes,
) -> list[FittedPlan]:
    """A few plans that are sure to stay within bounds; of many ops, only one.

    So tight can the room be that none is. Then it is the one that exceeds them least,
    or the one that can be placed in most regions.
    """
    sure: list[FittedPlan] = []
    others: list[tuple[int, FittedPlan]] = []
    for alike in _placements(graph, budget, filters, headroom.holes, least_copy):
        found = 0
        for option in alike:
            beyond_by, fitted = judged(graph, option, budget, headroom)
            if fitted.risk is not Risk.NONE:
                others.append((beyond_by, fitted))
                continue
            sure.append(fitted)
            found += 1
            if len(sure) == (1 if is_large(graph) else TUNING.compared_plans):
                return sure
            if found == TUNING.alike_plans:
                break
    best = sorted(others, key=lambda other: (other[1].risk, other[0]))
    return sure or [option for _, option in best[:1]]


def _placements(
    graph: GraphView,
    budget: int,
    filters: Filters,
    holes: tuple[int, ...] = (),
    least_copy: Bytes = 0,
) -> Iterator[Iterator[FittedPlan]]:
    """Plans that the allocator can place, by the least size that may move.

    Of each size those with most room for themselves come first, which move least.
    """
    most = peak(graph)
    usual = smallest_worth_moving(most)
    coarse, finer = max(usual, most // TUNING.coarse_part), usual // TUNING.finer_factor
    long = max(coarse, least_copy)
    sizes = (long, usual), (coarse, usual), (usual, usual), (finer, finer)
    for moved, ordered in dict.fromkeys(sizes):
        yield _placed(graph, budget, filters, moved, ordered, holes)


def _placed(
    graph: GraphView,
    budget: int,
    filters: Filters,
    moved: int,
    min_bytes: int,
    holes: tuple[int, ...],
) -> Iterator[FittedPlan]:
    """Plans that move tensors of `moved` bytes and order ops of `min_bytes`."""
    moving = movable(graph, min_bytes=moved, filters=filters)
    least, _ = least_room(graph, movable=moving, min_bytes=min_bytes)
    small_pool = replace(small_pool_for(graph, min_bytes=min_bytes), holes=holes)
    for percent in TUNING.shrink_percent:
        capacity = budget * percent // 100
        chunks = TUNING.small_chunks_factor * (small_pool.bytes + sum(holes))
        if capacity < max(least, chunks):
            return
        try:
            plans = _plans(graph, capacity, moving, min_bytes, small_pool)
        except BudgetError:
            continue  # with less room tensors may happen to lie better
        fitted = _in_room(graph, small_pool, plans, budget)
        if fitted is not None:
            yield fitted


def _plans(
    graph: GraphView,
    capacity: Bytes,
    moving: frozenset[str],
    min_bytes: Bytes,
    small_pool: SmallPool,
) -> tuple[SwapPlan, ...]:
    """With swap-ins that start early, and without.

    Raises:
        BudgetError: If there is none of that capacity.
    """
    return tuple(
        plans_within(
            graph,
            capacity,
            movable=moving,
            min_bytes=min_bytes,
            prefetches=(TUNING.prefetch_ops, 0),
            arena=partial(BestFitAllocator, capacity, small_pool),
        )
    )


def _in_time(
    graph: GraphView,
    fitted: FittedPlan,
    speeds: Speeds,
    budget: int,
    headroom: Headroom,
) -> Iterator[FittedPlan]:
    """The plan, and the same with swap-ins that start as early as they should."""
    hoped = fitted.risk is Risk.PLACE
    regions = regions_of(
        graph, budget, NOTHING if hoped else headroom, fitted.small_pool
    )
    peaks = allocator_peaks(graph, fitted.plan, regions)
    assert peaks is not None  # it was placed in these regions before
    bound = max(budget + headroom.bound, *peaks)
    yield replace(fitted, peak=middle(peaks))
    for early in copy_in_time(graph, fitted.plan, speeds, bound=bound, regions=regions):
        likely = middle(early.peaks)
        yield replace(fitted, plan=early.plan, peak=likely, seconds=None)
