"""Which plan a step gets: the plain one if it fits, else what the settings ask for."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lms.errors import BudgetError
from lms.ir.graph import GraphView
from lms.ir.host_state import has_host_state
from lms.ir.liveness import peak
from lms.ir.plan import SwapPlan
from lms.planning import candidates
from lms.planning.memory_budget import UNLIMITED, MemoryBudget
from lms.planning.placement import least_plan
from lms.planning.prefetch import Speeds
from lms.planning.risk import FittedPlan, Headroom, Risk
from lms.planning.schedule import schedule
from lms.planning.settings import Settings
from lms.planning.strategies import PlanRequest, best_plan
from lms.planning.tflms_autotune import best_thresholds
from lms.planning.tflms_rule import plan_by_threshold
from lms.planning.tuning import TUNING
from lms.simulation.allocator import NO_POOL
from lms.simulation.memory import allocator_peak
from lms.units import Bytes, format_bytes

__all__ = [
    "choose_plan",
    "fits",
    "fits_easily",
    "plain_plan",
]

_ALL = 100  # percent


def plain_plan(own: GraphView, kept: Bytes = 0) -> FittedPlan:
    """TensorFlow's own way: ops as they get ready, nothing ordered, nothing swapped.

    Args:
        own: TensorFlow's own graph of the step.
        kept: Bytes of constants that it keeps and the graph to be planned does not:
            they belong to the peak.
    """
    reached = allocator_peak(own, _as_ready(own), capacity=UNLIMITED) or 0
    beside = sum(sorted(op.scratch for op in own.ops)[-TUNING.concurrent_scratch : -1])
    if has_loops(own):
        beside += math.ceil(reached * TUNING.loop_excess)
    return FittedPlan(
        plan=_as_ready(own), small_pool=NO_POOL, peak=kept + reached, beside=beside
    )


def _as_ready(graph: GraphView) -> SwapPlan:
    return SwapPlan(planner="none", order=tuple(op.name for op in graph.ops))


def choose_plan(
    graph: GraphView,
    plain: FittedPlan,
    settings: Settings,
    budget: MemoryBudget,
    speeds: Callable[[], Speeds],
) -> FittedPlan:
    """The plan that the settings ask for; the plain one when everything fits.

    Args:
        graph: The step.
        plain: The plain plan, of TensorFlow's own graph.
        settings: The user's knobs.
        budget: What the step may use.
        speeds: Yields how long ops and copies take; called only if it matters.

    Raises:
        BudgetError: If no plan fits; names the op and the least budget.
    """
    # Nobody orders TensorFlow's own copies of what is on the host.
    forced = settings.swapout_threshold is not None or has_host_state(graph)
    if not forced and fits(plain, budget):
        return plain
    try:
        if settings.planner == "threshold":
            return _plan_by_threshold(graph, settings, budget, speeds)
        if has_loops(graph):
            return _beside_loops(graph, settings, budget, speeds())
        return _plan_by_budget(graph, settings, budget, speeds())
    except BudgetError as error:
        raise _for_the_budget(error, plain, budget) from error


def has_loops(graph: GraphView) -> bool:
    """Whether loops or branches make tensors of some size: nobody orders their ops."""
    return any(
        op.fixed and any(tensor.size >= TUNING.loop_tensor for tensor in op.outputs)
        for op in graph.ops
    )


def _beside_loops(
    graph: GraphView, settings: Settings, budget: MemoryBudget, speeds: Speeds
) -> FittedPlan:
    """A plan that leaves a part of the room to what loops do in other orders."""
    part = budget.step * TUNING.beside_loops_percent // 100
    try:
        less = budget.of(budget.persistent + part)
        return _plan_by_budget(graph, settings, less, speeds)
    except BudgetError as error:
        least = (error.least_bytes or 0) * 100 // TUNING.beside_loops_percent
        raise BudgetError(
            str(error), op_name=error.op_name, least_bytes=least
        ) from error


def fits(plain: FittedPlan, budget: MemoryBudget) -> bool:
    """Whether nothing need be planned, whatever order TensorFlow takes."""
    return _needed(plain) <= budget.step


def _needed(plain: FittedPlan) -> Bytes:
    """What it may take, whatever order TensorFlow takes."""
    return math.ceil(plain.peak * TUNING.unordered_factor) + plain.beside


def fits_easily(plain: FittedPlan, budget: MemoryBudget) -> bool:
    """Whether it fits though much more were needed than was predicted."""
    return plain.peak * TUNING.surprising_factor + plain.beside <= budget.step


def _for_the_budget(
    error: BudgetError, plain: FittedPlan, budget: MemoryBudget
) -> BudgetError:
    """What a planner says of the step's room, said of the budget, or of the device.

    Where everything fits, no plan is needed: so much is enough in any case.
    """
    enough = _needed(plain)
    step = min(error.least_bytes or enough, enough)
    needed = budget.persistent + step
    cause = f"for op {error.op_name!r}" if error.op_name else "for IBM's rule"
    instead = "Use" if error.op_name else 'Take `planner="budget"`, or use'
    why = (
        f"{cause}: {format_bytes(budget.persistent)} persistent bytes, and "
        f"{format_bytes(step)} for the step with what the allocator loses"
    )
    if budget.limit is not None and budget.is_whole_device:
        needed = budget.device_for(needed)
        least = format_bytes(needed, at_least=True)
        rule = f"the device's memory must be at least {least} {why}, "
        rule += f"and a margin; got {format_bytes(budget.limit)}"
    else:
        least = format_bytes(needed, at_least=True)
        rule = f"`budget` must be at least {least} {why}; got "
        rule += format_bytes(budget.total or 0)
    return BudgetError(
        f"{rule}. {instead} a smaller batch or volume.",
        op_name=error.op_name,
        least_bytes=needed,
    )


def _plan_by_budget(
    graph: GraphView, settings: Settings, budget: MemoryBudget, speeds: Speeds
) -> FittedPlan:
    """With the writes last; where that takes too much room, as early as they come.

    A plan that leaves room is preferred: what the allocator, small ops and input
    pipelines do is not known to the byte. The edge of the room is for where nothing
    else fits, and for devices that have the least room in which a plan is sure: a step
    that runs out of memory may end the process.
    """
    orders = schedule(graph), schedule(graph, writes_last=False)
    found: list[FittedPlan] = []
    for percent in TUNING.taken_percent:
        option = _least_doubted(orders, _request(settings, budget, speeds, percent))
        if option is None:
            continue
        if option.risk is Risk.NONE and percent < _ALL:
            return option
        found.append(option)
    least, sure, op_name = least_plan(orders, filters=settings.filters)
    if budget.device_has(least):
        request = _request(settings, budget, speeds, _ALL)
        edge = _at_the_edge(orders, found, request)
        if edge is not None:
            return edge
        if least <= budget.step:
            return sure
    enough = format_bytes(least, at_least=True)
    raise BudgetError(
        f"`budget` must be at least {enough} for op {op_name!r} and what the allocator "
        f"loses between tensors, got {format_bytes(budget.step)}. Use a smaller batch "
        "or volume.",
        op_name=op_name,
        least_bytes=least,
    )


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
        swap_dtype=settings.swap_dtype,
    )


def _bound(budget: MemoryBudget) -> Bytes:
    """Bytes beyond the step's room that it may be in; no limit where that is all.

    A tensor may take all of the chunk at the device's end, which is not split: then it
    is as large as the chunk, whatever the device has. But a batch that waits needs
    room.
    """
    if budget.is_whole_device and not budget.reserved:
        return UNLIMITED
    return max(0, budget.margin - budget.reserved)


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


def _plan_by_threshold(
    graph: GraphView,
    settings: Settings,
    budget: MemoryBudget,
    speeds: Callable[[], Speeds],
) -> FittedPlan:
    min_bytes = candidates.smallest_worth_moving(peak(graph))
    knobs: dict[str, Any] = {
        "swapout_threshold": settings.swapout_threshold,
        "swapin_ahead": settings.swapin_ahead,
        "swapin_groupby": settings.swapin_groupby,
    }
    others: dict[str, Any] = {
        "movable": candidates.movable(
            graph, min_bytes=min_bytes, filters=settings.filters
        ),
        "min_bytes": min_bytes,
        "sync_mode": settings.sync_mode,
        "serialization": settings.serialization,
        "serialization_by_size": settings.serialization_by_size,
    }
    if None not in knobs.values():
        return _placed_by_threshold(graph, knobs, others)
    found: FittedPlan | None = None
    for percent in TUNING.autotuned_percent:
        part = budget.step * percent // 100
        try:
            choice = best_thresholds(graph, part, speeds=speeds(), **knobs, **others)
        except BudgetError:
            if found is None:
                raise
            break
        chosen = {name: getattr(choice, name) for name in knobs}
        option = _placed_by_threshold(graph, chosen, others)
        if found is None or option.peak < found.peak:
            found = option
        if found.peak <= budget.step:
            break
    assert found is not None  # or the first search has raised
    return found


def _placed_by_threshold(
    graph: GraphView, knobs: Mapping[str, Any], others: Mapping[str, Any]
) -> FittedPlan:
    plan = plan_by_threshold(graph, **knobs, **others)
    reached = allocator_peak(graph, plan, capacity=UNLIMITED) or 0
    return FittedPlan(plan=plan, small_pool=NO_POOL, peak=reached)
