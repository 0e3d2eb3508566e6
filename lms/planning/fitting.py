"""A plan that the device's allocator, with all it loses, fits into the room.

Planners count in chunks of a modelled allocator, but copies back that start early
change the places of tensors. So a plan is judged by playing it to the model once more,
and made again - without early copies, with less room, with smaller tensors moving too -
until it can be placed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from lms.allocator import BestFitAllocator
from lms.errors import BudgetError
from lms.graph import GraphView
from lms.lanes import simulate
from lms.liveness import peak
from lms.plan import SwapPlan
from lms.planning.budget import PREFETCH_OPS, least_room, plan_within
from lms.planning.candidates import (
    Filters,
    movable,
    small_room,
    smallest_worth_moving,
)
from lms.planning.timing import Speeds, copy_in_time
from lms.simulator import allocator_peak
from lms.units import MIB, Seconds, format_bytes

__all__ = ["FittedPlan", "find_plan", "fit_plan"]

# Parts of the room that the planner is given, until the allocator can place its plan.
_SHRINK_PERCENT = (100, 97, 94, 90, 85)

# When the room is too tight, tensors of a quarter of the usual least size move too.
_FINER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedPlan:
    """A plan and how the allocator takes it.

    Args:
        plan: The plan.
        nook: Bytes to be kept apart for small tensors (`BestFitAllocator`).
        peak: Bytes of chunks in use at most.
    """

    plan: SwapPlan
    nook: int
    peak: int


def fit_plan(
    graph: GraphView, room: int, *, filters: Filters, speeds: Speeds | None = None
) -> FittedPlan:
    """Plan a step into the room that the device's allocator has for it.

    Args:
        graph: The graph in the execution order to obey.
        room: Bytes of device memory for the step, persistent bytes excluded.
        filters: Which ops' outputs may move.
        speeds: How long ops and copies take, so that copies start in time; None lets
            them start a few ops ahead.

    Raises:
        BudgetError: If no plan can be placed; names the op with the largest need and
            the least room that works.
    """
    fitted = find_plan(graph, room, filters=filters, speeds=speeds)
    if fitted is not None:
        return fitted
    finest = smallest_worth_moving(peak(graph)) // _FINER
    least, op_name = least_room(
        graph,
        movable=movable(graph, min_bytes=finest, filters=filters),
        min_bytes=finest,
    )
    works = max(least, room)
    while find_plan(graph, works, filters=filters) is None:
        works += max(MIB // 16, works // 32)
    raise BudgetError(
        f"`room` must be at least {format_bytes(works)}: {format_bytes(least)} for op "
        f"{op_name!r} and what the allocator loses between tensors; got "
        f"{format_bytes(room)}. Use a smaller batch or volume.",
        op_name=op_name,
        least_bytes=works,
    )


def find_plan(
    graph: GraphView, room: int, *, filters: Filters, speeds: Speeds | None = None
) -> FittedPlan | None:
    """As `fit_plan`; None if no plan can be placed."""
    found = _placements(graph, room, filters)
    if speeds is None:
        return next(found, None)
    first = next(found, None)
    if first is None:
        return None
    options = _in_time(graph, first, speeds, room)
    return min(options, key=lambda option: _seconds(graph, option, speeds))


def _placements(graph: GraphView, room: int, filters: Filters) -> Iterator[FittedPlan]:
    """Plans that the allocator can place, those that move least first."""
    usual = smallest_worth_moving(peak(graph))
    for min_bytes in (usual, usual // _FINER):
        yield from _placed(graph, room, filters, min_bytes)


def _placed(
    graph: GraphView, room: int, filters: Filters, min_bytes: int
) -> Iterator[FittedPlan]:
    moving = movable(graph, min_bytes=min_bytes, filters=filters)
    least, _ = least_room(graph, movable=moving, min_bytes=min_bytes)
    nook = small_room(graph, min_bytes=min_bytes)
    for percent in _SHRINK_PERCENT:
        capacity = room * percent // 100
        if capacity < max(least, 2 * nook):
            return
        for prefetch_ops in (PREFETCH_OPS, 0):
            try:
                plan = plan_within(
                    graph,
                    capacity,
                    movable=moving,
                    min_bytes=min_bytes,
                    prefetch_ops=prefetch_ops,
                    arena=partial(BestFitAllocator, capacity, nook),
                )
            except BudgetError:
                break  # with less room tensors may happen to lie better
            reached = allocator_peak(graph, plan, capacity=room, nook=nook)
            if reached is not None:
                yield FittedPlan(plan=plan, nook=nook, peak=reached)
                break


def _in_time(
    graph: GraphView, fitted: FittedPlan, speeds: Speeds, room: int
) -> Iterator[FittedPlan]:
    nook = fitted.nook
    for plan in copy_in_time(graph, fitted.plan, speeds, room=room, nook=nook):
        reached = allocator_peak(graph, plan, capacity=room, nook=nook)
        if reached is not None:
            yield FittedPlan(plan=plan, nook=nook, peak=reached)


def _seconds(graph: GraphView, fitted: FittedPlan, speeds: Speeds) -> Seconds:
    return simulate(graph, fitted.plan, speeds.costs, speeds.hardware).seconds
