"""The fastest plan of one step: what moves, what is recomputed, what waits narrow.

    a plan that only moves ──> what it moves and could be recomputed ──> a plan that
            └────────── the one that a simulator plays faster ──────────── does both

Of two that are about as fast it is the one that moves less: others use the link too.
Making again frees room, so that less must move; but what moves is what is idle longest,
and perhaps not what could be recomputed. So all that is idle at the peak is asked too.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from lms.ir.graph import GraphView
from lms.ir.liveness import peak
from lms.ir.narrow import Narrowed, can_be_narrowed, with_narrowed
from lms.ir.plan import SwapPlan, planned_graph
from lms.ir.recompute import Recomputed, with_recomputed
from lms.machine.costs import completed
from lms.planning.candidates import Filters, movable, smallest_worth_moving
from lms.planning.placement import find_plan, ranked
from lms.planning.prefetch import Speeds
from lms.planning.recompute_choice import choose_recomputed, idle_at_peak
from lms.planning.risk import FittedPlan, Headroom, Risk, seconds_of
from lms.planning.tuning import TUNING, is_large
from lms.simulation.gc_pause import collector_paused
from lms.units import Bytes, Seconds

__all__ = ["PlanRequest", "best_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What a plan is to be like.

    Args:
        budget: Bytes that the step may use, persistent bytes excluded.
        headroom: What more the device has.
        speeds: How long ops and copies take.
        filters: Which ops' outputs may move.
        recompute: Whether tensors may be recomputed: None where that is faster, or
            about as fast and less is moved; True wherever it can be.
        swap_dtype: What tensors that move wait as; None for what they are.
    """

    budget: Bytes
    headroom: Headroom
    speeds: Speeds
    filters: Filters
    recompute: bool | None = None
    swap_dtype: str | None = None


def best_plan(graph: GraphView, request: PlanRequest) -> FittedPlan | None:
    """The plan with the least doubt, and of those the fastest; None if none fits.

    Args:
        graph: The step in the execution order to obey.
        request: What is asked for.

    Returns:
        A plan for `planned_graph(graph, plan)`.
    """
    with collector_paused():
        best = _best(_options(graph, request))
        if best is None or request.swap_dtype is None:
            return best
        return _narrowed(graph, best, request) or best


def _best(options: Sequence[FittedPlan]) -> FittedPlan | None:
    """The least doubt; then the least time, or a little more if less is moved."""
    least = min((option.risk for option in options), default=Risk.NONE)
    likeliest = [option for option in options if option.risk is least]
    return ranked(likeliest)[0] if likeliest else None


def _options(graph: GraphView, request: PlanRequest) -> list[FittedPlan]:
    """The plan that only moves, and plans that make tensors again too."""
    moving = _find(graph, request)
    if request.recompute is False or (moving and not moving.plan.swaps):
        return [moving] if moving else []
    options = [moving] if moving else []
    min_bytes = smallest_worth_moving(peak(graph))
    may_move = movable(graph, min_bytes=min_bytes, filters=request.filters)
    idle = idle_at_peak(graph) & may_move
    known: tuple[Recomputed, ...] = ()
    for number in range(TUNING.recompute_rounds):
        asked = {swap.tensor for option in options for swap in option.plan.swaps}
        if not moving or request.recompute or number == TUNING.recompute_rounds - 1:
            asked |= idle
        elif number and is_large(graph):
            continue
        items = _made_again(graph, asked, request, min_bytes)
        if items != known:
            known = items
            option = _find(with_recomputed(graph, items), request)
            if option is not None:
                options.append(_with(option, recomputed=items))
        if is_large(graph) and not _stalls(options, request):
            break
    again = [option for option in options if option.plan.recomputed]
    return again if request.recompute and again else options


def _stalls(options: Sequence[FittedPlan], request: PlanRequest) -> bool:
    """Whether a step waits much for its copies in all of the plans."""
    longest = TUNING.stalled_factor * request.speeds.costs.total
    return all(seconds_of(option) > longest for option in options)


def _find(
    graph: GraphView, request: PlanRequest, speeds: Speeds | None = None
) -> FittedPlan | None:
    return find_plan(
        graph,
        request.budget,
        filters=request.filters,
        speeds=speeds or request.speeds,
        headroom=request.headroom,
    )


def _with(fitted: FittedPlan, **changes: object) -> FittedPlan:
    plan: SwapPlan = replace(fitted.plan, **changes)
    return replace(fitted, plan=plan)


def _made_again(
    graph: GraphView, tensors: Collection[str], request: PlanRequest, min_bytes: Bytes
) -> tuple[Recomputed, ...]:
    """What to recompute for tensors, where that takes less time than to move them."""
    link = request.speeds.hardware

    def most(size: Bytes) -> Seconds:
        if request.recompute:
            return math.inf
        there = link.copy_seconds(size, to_device=False)
        return there + link.copy_seconds(size, to_device=True)

    return choose_recomputed(
        graph, tensors, request.speeds.costs, most=most, least=min_bytes
    )


def _narrowed(
    graph: GraphView, fitted: FittedPlan, request: PlanRequest
) -> FittedPlan | None:
    """The plan in which what moves waits in fewer bytes; None if that has no place."""
    again = planned_graph(graph, fitted.plan)
    items = [
        Narrowed(
            tensor=swap.tensor,
            readers=tuple(name for copy in swap.swap_ins for name in copy.readers),
            dtype=request.swap_dtype or "",
        )
        for swap in fitted.plan.swaps
    ]
    items = [item for item in items if can_be_narrowed(again, item)]
    narrow = with_narrowed(again, items)
    costs = completed(request.speeds.costs, narrow, request.speeds.hardware)
    option = _find(narrow, request, replace(request.speeds, costs=costs))
    if option is None or (option.risk is Risk.PLACE and fitted.risk < Risk.PLACE):
        return None
    recomputed = fitted.plan.recomputed
    return _with(option, recomputed=recomputed, narrowed=tuple(items))
