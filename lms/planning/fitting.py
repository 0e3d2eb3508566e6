"""A plan that the device's allocator, with all it loses, fits into the room.

Planners count in chunks of a modelled allocator, but copies back that start early
change the places of tensors. So a plan is judged by playing it to the model once more,
and made again - without early copies, with less room, with smaller tensors moving too -
until it can be placed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial

from lms.allocator import BestFitAllocator, Nook
from lms.errors import BudgetError
from lms.graph import GraphView
from lms.lanes import simulate
from lms.liveness import peak
from lms.plan import SwapPlan
from lms.planning.budget import PREFETCH_OPS, least_room, plans_within
from lms.planning.candidates import (
    Filters,
    movable,
    small_nook,
    smallest_worth_moving,
)
from lms.planning.timing import Speeds, copy_in_time
from lms.recomputed import is_large
from lms.simulator import (
    Region,
    allocator_peak,
    allocator_peaks,
    peaks_by_region,
)
from lms.units import MIB, Seconds, format_bytes

__all__ = ["Beyond", "Doubt", "FittedPlan"]
__all__ += ["find_plan", "fit_plan", "ranked", "seconds_of"]

# Parts of the room that the planner is given, until the allocator can place its plan.
_SHRINK_PERCENT = (100, 97, 94, 90, 85)

# How much more or less than the room there is in the regions that a plan is tried in,
# as a part of what the device has beyond it; and the least of the room. What is in the
# way in the real one is not known to the byte. A large graph is tried in fewer.
_BEYOND_PERCENT, _FEW_PERCENT = (-60, -30, 0, 30, 60, 100, 120), (-60, 0, 100)
_LEAST_PERCENT = 97

# The regions that the likely peak is found in, unless the graph is large: also smaller
# ones, since batches and what others leave lie in the middle of the real one. So many
# percent of the lowest and of the highest peaks are left out; of fewer than ten, none.
_LIKELY_PERCENT, _OUTLIERS_PERCENT = range(-60, 121, 10), 10

# Of so many plans that can be placed, the fastest are made faster still. Of a large
# graph it is the first one that is found.
_COMPARED, _TIMED = 3, 2

# Plans that take at most so many times as long as the fastest are as fast.
_ABOUT = 1.01

# First only tensors move that are at least one part of so many of the peak: a copy of a
# smaller one frees little, and starting it takes about as long as for a large one. When
# the room is too tight, tensors of a quarter of the usual least size move too.
_COARSE, _FINER = 200, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Beyond:
    """What a device has beyond the room that a step is planned into, in bytes.

    Args:
        free: Nobody else uses it.
        bound: The step may be in it, if the allocator happens to place tensors so.
        holes: Free chunks that are not one piece with the others, of the room.
    """

    free: int = 0
    bound: int = 0
    holes: tuple[int, ...] = ()


_NOTHING = Beyond()


class Doubt(IntEnum):
    """What is not known of a plan's place; the least is best."""

    NONE = 0  # placed in all regions, within bounds
    BOUNDS = 1  # placed in all, beyond the bounds in some
    PLACE = 2  # placed in the room, and not in all regions


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedPlan:
    """A plan and how the allocator takes it.

    Args:
        plan: The plan.
        nook: Chunks to be kept for small tensors.
        peak: Bytes of chunks in use at most: the middle of what is likely, so it may be
            a little more or less.
        doubt: Whether it will be so in the device's memory as well.
        seconds: What the step is played to take; None if it was not played.
    """

    plan: SwapPlan
    nook: Nook
    peak: int
    doubt: Doubt = Doubt.NONE
    seconds: Seconds | None = None


def seconds_of(fitted: FittedPlan) -> Seconds:
    """What the step takes, of a plan that was played."""
    assert fitted.seconds is not None
    return fitted.seconds


def fit_plan(
    graph: GraphView,
    room: int,
    *,
    filters: Filters,
    speeds: Speeds | None = None,
    beyond: Beyond = _NOTHING,
) -> FittedPlan:
    """Plan a step into the room that the device's allocator has for it.

    Args:
        graph: The graph in the execution order to obey.
        room: Bytes of device memory for the step, persistent bytes excluded.
        filters: Which ops' outputs may move.
        speeds: How long ops and copies take, so that copies start in time; None lets
            them start a few ops ahead.
        beyond: What more the device has.

    Raises:
        BudgetError: If no plan can be placed; names the op with the largest need and
            the least room that works.
    """
    fitted = find_plan(graph, room, filters=filters, speeds=speeds, beyond=beyond)
    if fitted is not None:
        return fitted
    finest = smallest_worth_moving(peak(graph)) // _FINER
    least, op_name = least_room(
        graph,
        movable=movable(graph, min_bytes=finest, filters=filters),
        min_bytes=finest,
    )
    works = max(least, room)
    while next(_placements(graph, works, filters), None) is None:
        works += max(MIB // 16, works // 32)
    raise BudgetError(
        f"`room` must be at least {format_bytes(works)}: {format_bytes(least)} for op "
        f"{op_name!r} and what the allocator loses between tensors; got "
        f"{format_bytes(room)}. Use a smaller batch or volume.",
        op_name=op_name,
        least_bytes=works,
    )


def find_plan(
    graph: GraphView,
    room: int,
    *,
    filters: Filters,
    speeds: Speeds | None = None,
    beyond: Beyond = _NOTHING,
) -> FittedPlan | None:
    """As `fit_plan`; None if no plan can be placed."""
    sure = _surest(graph, room, filters, beyond)
    if not sure:
        return None
    if speeds is None:
        return _with_likely_peak(graph, sure[0], room, beyond)

    best = sure
    if len(sure) > 1:
        best = ranked([_played(graph, option, speeds) for option in sure])
    options = [
        _played(graph, timed, speeds)
        for option in best[:_TIMED]
        for timed in _in_time(graph, option, speeds, room, beyond)
    ]
    return _with_likely_peak(graph, ranked(options)[0], room, beyond)


def ranked(options: Sequence[FittedPlan]) -> list[FittedPlan]:
    """Those that are about as fast as the fastest, what moves least first; the others.

    Others may use the link too, and times are not known to the percent.
    """
    longest = min(map(seconds_of, options)) * _ABOUT

    def rank(option: FittedPlan) -> tuple[bool, int, Seconds]:
        seconds = seconds_of(option)
        return seconds > longest, option.plan.moved_bytes, seconds

    return sorted(options, key=rank)


def _played(graph: GraphView, fitted: FittedPlan, speeds: Speeds) -> FittedPlan:
    """The plan and how long it takes, if that is not known."""
    if fitted.seconds is not None:
        return fitted
    played = simulate(graph, fitted.plan, speeds.costs, speeds.hardware)
    return replace(fitted, seconds=played.seconds)


def _with_likely_peak(
    graph: GraphView, fitted: FittedPlan, room: int, beyond: Beyond
) -> FittedPlan:
    """The plan with the middle of its peaks in many regions."""
    if is_large(graph):
        return fitted
    sizes = (room + beyond.free * part // 100 for part in _LIKELY_PERCENT)
    regions = [Region(capacity=size, nook=fitted.nook) for size in sizes]
    found = peaks_by_region(graph, fitted.plan, regions)
    peaks = [peak for peak in found if peak is not None]
    return replace(fitted, peak=_middle(peaks)) if peaks else fitted


def _surest(
    graph: GraphView, room: int, filters: Filters, beyond: Beyond
) -> list[FittedPlan]:
    """A few plans that are sure to stay within bounds; of many ops, only one.

    So tight can the room be that none is. Then it is the one that exceeds them least,
    or the one that can be placed in most regions.
    """
    sure: list[FittedPlan] = []
    others: list[tuple[Doubt, int, FittedPlan]] = []
    for option in _placements(graph, room, filters, beyond.holes):
        regions = _regions(graph, room, beyond, option.nook)
        peaks = list(peaks_by_region(graph, option.plan, regions))
        placed = [peak for peak in peaks if peak is not None]
        if len(placed) < len(regions):
            doubted = replace(option, doubt=Doubt.PLACE)
            others.append((Doubt.PLACE, len(regions) - len(placed), doubted))
        elif max(placed) > room + beyond.bound:
            doubted = replace(option, peak=_middle(placed), doubt=Doubt.BOUNDS)
            others.append((Doubt.BOUNDS, max(placed), doubted))
        else:
            sure.append(replace(option, peak=_middle(placed)))
        if len(sure) == (1 if is_large(graph) else _COMPARED):
            break
    return sure or [option for *_, option in sorted(others, key=lambda o: o[:2])[:1]]


def _middle(peaks: Sequence[int]) -> int:
    """Halfway between the low and the high ones.

    The same plan may peak at 32 or at 36 MiB, by what the allocator loses in the chunk
    at the region's end, which is not split. Which it will be is not known, so the
    promise is what is nearest to both. A median is one of the two.
    """
    ranked = sorted(peaks)
    left_out = len(ranked) * _OUTLIERS_PERCENT // 100
    return (ranked[left_out] + ranked[-1 - left_out]) // 2


def _regions(
    graph: GraphView, room: int, beyond: Beyond, nook: Nook
) -> tuple[Region, ...]:
    """What a plan is to be placed in: its room, and regions like what will be there.

    Best fit takes the smallest chunk that will do, so a little more memory can mean
    other chunks, other holes, and a tensor that no hole is large enough for.
    """
    percent = _FEW_PERCENT if is_large(graph) else _BEYOND_PERCENT
    more = (beyond.free * part // 100 for part in percent)
    sizes = (max(room * _LEAST_PERCENT // 100, room + part) for part in more)
    return tuple(
        Region(capacity=size, nook=nook, scratch_first=i % 2 == 1)
        for i, size in enumerate(dict.fromkeys(sizes))
    )


def _placements(
    graph: GraphView, room: int, filters: Filters, holes: tuple[int, ...] = ()
) -> Iterator[FittedPlan]:
    """Plans that the allocator can place, those that move least first."""
    most = peak(graph)
    usual = smallest_worth_moving(most)
    coarse, finer = max(usual, most // _COARSE), usual // _FINER
    sizes = (coarse, usual), (usual, usual), (finer, finer)
    for moved, ordered in dict.fromkeys(sizes):
        yield from _placed(graph, room, filters, moved, ordered, holes)


def _placed(
    graph: GraphView,
    room: int,
    filters: Filters,
    moved: int,
    min_bytes: int,
    holes: tuple[int, ...],
) -> Iterator[FittedPlan]:
    """Plans that move tensors of `moved` bytes and order ops of `min_bytes`."""
    moving = movable(graph, min_bytes=moved, filters=filters)
    least, _ = least_room(graph, movable=moving, min_bytes=min_bytes)
    nook = replace(small_nook(graph, min_bytes=min_bytes), holes=holes)
    for percent in _SHRINK_PERCENT:
        capacity = room * percent // 100
        if capacity < max(least, 2 * (nook.bytes + sum(holes))):
            return
        plans = plans_within(
            graph,
            capacity,
            movable=moving,
            min_bytes=min_bytes,
            prefetches=(PREFETCH_OPS, 0),
            arena=partial(BestFitAllocator, capacity, nook),
        )
        try:
            for plan in plans:
                reached = allocator_peak(graph, plan, capacity=room, nook=nook)
                if reached is not None:
                    yield FittedPlan(plan=plan, nook=nook, peak=reached)
                    break
        except BudgetError:
            continue  # with less room tensors may happen to lie better


def _in_time(
    graph: GraphView,
    fitted: FittedPlan,
    speeds: Speeds,
    room: int,
    beyond: Beyond,
) -> Iterator[FittedPlan]:
    """The plan, and the same with copies back that start as early as they should."""
    hoped = fitted.doubt is Doubt.PLACE
    regions = _regions(graph, room, _NOTHING if hoped else beyond, fitted.nook)
    peaks = allocator_peaks(graph, fitted.plan, regions)
    assert peaks is not None  # it was placed in these regions before
    bound = max(room + beyond.bound, *peaks)
    yield replace(fitted, peak=_middle(peaks))
    for early in copy_in_time(graph, fitted.plan, speeds, bound=bound, regions=regions):
        middle = _middle(early.peaks)
        yield replace(fitted, plan=early.plan, peak=middle, seconds=None)
