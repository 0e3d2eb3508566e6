"""The fastest plan of one step: what moves, and what is recomputed.

    a plan that only moves ───────────────────────────────┐
    a few that recompute, more and more, and move the rest ├──> the one that a simulator
                                                          ┘     plays fastest

Of two that are about as fast it is the one that moves less: others use the link too.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from lms.errors import BudgetError
from lms.ir.graph import GraphView
from lms.ir.liveness import peak
from lms.ir.plan import SwapPlan
from lms.ir.recompute import Recomputed, with_recomputed
from lms.machine.costs import roofline
from lms.machine.hardware import preset
from lms.planning.candidates import Filters, Recompute, movable, smallest_worth_moving
from lms.planning.placement import find_plan, least_plan, ranked
from lms.planning.prefetch import Speeds
from lms.planning.problem import UNLIMITED, MemoryBudget
from lms.planning.recompute_choice import choose_recomputed
from lms.planning.risk import FittedPlan, Headroom, Risk, seconds_of
from lms.planning.schedule import schedule
from lms.planning.settings import Settings
from lms.planning.tuning import TUNING, is_large
from lms.simulation.executor import collector_paused
from lms.units import Bytes, Seconds, format_bytes

__all__ = ["PlanRequest", "best_plan", "plan_by_budget"]


_ALL = 100  # percent

_REFERENCE = "v100-pcie"


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


def plan_by_budget(
    graph: GraphView, settings: Settings, budget: MemoryBudget, speeds: Speeds
) -> FittedPlan:
    """A plan with the writes last; where that takes too much room, as they come.

    A plan that leaves room is preferred: what the allocator, small ops and input
    pipelines do is not known to the byte. Where it costs much, one that leaves less may
    be faster. The edge of the room is for where nothing else fits, and for devices that
    have the least room in which a plan is sure, or had it when the training began: a
    step that runs out of memory waits, and is planned anew.
    """
    orders = schedule(graph), schedule(graph, writes_last=False)
    longest = TUNING.stalled_factor * speeds.costs.total
    found: list[FittedPlan] = []
    sure: list[FittedPlan] = []
    for percent in TUNING.taken_percent:
        if percent == _ALL and sure:
            return ranked(sure)[0]
        option = _least_doubted(orders, _request(settings, budget, speeds, percent))
        if option is None:
            continue
        found.append(option)
        if option.risk is Risk.NONE and percent < _ALL:
            sure.append(option)
            if seconds_of(option) <= longest:
                return option
    least, placed, op_name = least_plan(orders, filters=settings.filters)
    if settings.recompute is not False and not _is_enough(least, budget):
        least, placed = _least_recomputing(orders, settings, least, placed)
    if budget.device_has(least):
        request = _request(settings, budget, speeds, _ALL)
        edge = _at_the_edge(orders, found, request)
        if edge is not None:
            return edge
        if least <= budget.step:
            return placed
    enough = format_bytes(least, at_least=True)
    raise BudgetError(
        f"`budget` must be at least {enough} for op {op_name!r} and what the allocator "
        f"loses between tensors, got {format_bytes(budget.step)}. Use a smaller batch "
        "or volume.",
        op_name=op_name,
        least_bytes=least,
    )


def _is_enough(least: Bytes, budget: MemoryBudget) -> bool:
    return budget.device_has(least) and least <= budget.step


def _least_recomputing(
    orders: Sequence[GraphView], settings: Settings, least: Bytes, sure: FittedPlan
) -> tuple[Bytes, FittedPlan]:
    """Less than that where ops run twice; the same in any budget and on any day.

    So times are a data sheet's and none that were measured.
    """
    hardware = preset(_REFERENCE)
    speeds = Speeds(costs=roofline(orders[0], hardware), hardware=hardware)
    found = before = least, replace(sure, seconds=None)
    for percent in TUNING.least_recompute_percent:
        step = least * percent // 100
        room = MemoryBudget(total=step, margin=0, persistent=0)
        request = _request(settings, room, speeds, TUNING.taken_percent[-2])
        free = step // TUNING.least_budget_part
        headroom = Headroom(free=free, bound=UNLIMITED)
        option = _least_doubted(orders, replace(request, headroom=headroom))
        if option is None or option.risk is not Risk.NONE:
            break
        before, found = found, (step, replace(option, seconds=None))
    return before


def _at_the_edge(
    orders: Iterable[GraphView], found: Sequence[FittedPlan], request: PlanRequest
) -> FittedPlan | None:
    """The best of the plans that were found, or one where holes might go away."""
    best = min(found, key=lambda option: option.risk, default=None)
    if best is not None and best.risk is not Risk.PLACE:
        return best
    if not request.headroom.holes:
        return None
    whole = replace(request, headroom=replace(request.headroom, holes=()))
    option = _least_doubted(orders, whole)
    if option is None or option.risk is Risk.PLACE:
        return None
    return replace(option, risk=Risk.PLACE)


def _request(
    settings: Settings, budget: MemoryBudget, speeds: Speeds, percent: int
) -> PlanRequest:
    """A plan that takes so many percent of the room."""
    taken = budget.step * percent // 100
    return PlanRequest(
        budget=taken,
        headroom=Headroom(
            free=budget.free - taken,
            bound=budget.step - taken + _bound(budget),
            holes=budget.holes,
        ),
        speeds=speeds,
        filters=settings.filters,
        recompute=settings.recompute,
    )


def _bound(budget: MemoryBudget) -> Bytes:
    """Bytes beyond the step's room that it may be in; no limit where that is all.

    A tensor may take all of the chunk at the device's end, which is not split: then it
    is as large as the chunk, whatever the device has.
    """
    return UNLIMITED if budget.is_whole_device else budget.margin


def _least_doubted(
    orders: Iterable[GraphView], request: PlanRequest
) -> FittedPlan | None:
    """The plan of the first order that leaves no doubt, else that of the least."""
    found: list[FittedPlan] = []
    for graph in orders:
        option = best_plan(graph, request)
        if option is not None:
            found.append(option)
            if option.risk is Risk.NONE:
                break
    return min(found, key=lambda option: option.risk, default=None)
