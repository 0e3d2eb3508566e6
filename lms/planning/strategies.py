"""The fastest plan of one step: what moves, and what is recomputed.

    a plan that only moves ───────────────────────────────┐
    a few that recompute, more and more, and move the rest ├──> the one that a simulator
                                                          ┘     plays fastest

Of two that are about as fast it is the one that moves less: others use the link too.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lms.ir.graph import GraphView
from lms.ir.liveness import peak
from lms.ir.plan import SwapPlan
from lms.ir.recompute import Recomputed, with_recomputed
from lms.planning.candidates import Filters, Recompute, movable, smallest_worth_moving
from lms.planning.placement import find_plan, ranked
from lms.planning.prefetch import Speeds
from lms.planning.recompute_choice import choose_recomputed
from lms.planning.risk import FittedPlan, Headroom, Risk, seconds_of
from lms.planning.tuning import TUNING, is_large
from lms.simulation.gc_pause import collector_paused
from lms.units import Bytes, Seconds

__all__ = ["PlanRequest", "best_plan"]


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
    headroom: Headroom
    speeds: Speeds
    filters: Filters
    recompute: Recompute = None


def best_plan(graph: GraphView, request: PlanRequest) -> FittedPlan | None:
    """The plan with the least doubt, and of those the fastest; None if none fits.

    Args:
        graph: The step in the execution order to obey.
        request: What is asked for.

    Returns:
        A plan for `planned_graph(graph, plan)`.
    """
    with collector_paused():
        return _best(_options(graph, request))


def _best(options: Sequence[FittedPlan]) -> FittedPlan | None:
    """The least doubt; then the least time, or a little more if less is moved."""
    least = min((option.risk for option in options), default=Risk.NONE)
    likeliest = [option for option in options if option.risk is least]
    return ranked(likeliest)[0] if likeliest else None


def _options(graph: GraphView, request: PlanRequest) -> list[FittedPlan]:
    """The plan that only moves, and plans that recompute more and more."""
    moving = _find(graph, request)
    options = [moving] if moving else []
    if request.recompute is False or (moving and not moving.plan.swaps):
        return options
    if is_large(graph) and request.recompute is None and not _stalls(moving, request):
        return options
    min_bytes = smallest_worth_moving(peak(graph))
    candidates = movable(graph, min_bytes=min_bytes, filters=request.filters)
    known: set[tuple[Recomputed, ...]] = {()}
    large, usual = TUNING.recompute_tries_large, TUNING.recompute_tries
    for percent, times in large if is_large(graph) else usual:
        items = choose_recomputed(
            graph,
            candidates,
            request.speeds.costs,
            budget=request.budget * percent // 100,
            most=_longest(request, times),
            least=min_bytes,
            cheap=request.recompute == "cheap",
        )
        if items in known:
            continue
        known.add(items)
        option = _find(with_recomputed(graph, items), request)
        if option is not None:
            options.append(_with(option, recomputed=items))
    again = [option for option in options if option.plan.recomputed]
    return again if request.recompute is True and again else options


def _stalls(moving: FittedPlan | None, request: PlanRequest) -> bool:
    """Tell whether a plan is slow, unsure of its place, or missing."""
    longest = TUNING.stalled_factor * request.speeds.costs.total
    return moving is None or moving.risk > Risk.NONE or seconds_of(moving) > longest


def _longest(request: PlanRequest, times: float) -> Callable[[Bytes], Seconds]:
    """How long it may take to make a tensor again: so many times as to move it."""
    link = request.speeds.hardware

    def most(size: Bytes) -> Seconds:
        if request.recompute is True:
            return math.inf
        there = link.copy_seconds(size, to_device=False)
        return times * (there + link.copy_seconds(size, to_device=True))

    return most


def _find(graph: GraphView, request: PlanRequest) -> FittedPlan | None:
    return find_plan(
        graph,
        request.budget,
        filters=request.filters,
        speeds=request.speeds,
        headroom=request.headroom,
    )


def _with(fitted: FittedPlan, **changes: object) -> FittedPlan:
    plan: SwapPlan = replace(fitted.plan, **changes)
    return replace(fitted, plan=plan)
