"""Plans of the budget planner: sizes from sure to the edge, and the least budget."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from lms.errors import BudgetError
from lms.ir.graph import GraphView
from lms.machine.costs import roofline
from lms.machine.presets import preset
from lms.planning.memory_budget import UNLIMITED, MemoryBudget
from lms.planning.placement import least_plan, ranked
from lms.planning.prefetch import Speeds
from lms.planning.risk import FittedPlan, Headroom, Risk, seconds_of
from lms.planning.schedule import schedule
from lms.planning.settings import Settings
from lms.planning.strategies import PlanRequest, best_plan
from lms.planning.tuning import TUNING
from lms.units import Bytes, format_bytes

__all__ = ["plan_by_budget"]

_ALL = 100  # percent
_REFERENCE = "v100-pcie"


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
