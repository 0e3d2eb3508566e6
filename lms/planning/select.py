"""From a workload and a budget to a planned step: the one road that all callers take.

    Workload, Settings, MemoryBudget ──plan_step──> PlannedStep

`fit`, `fit_in_memory`, recovery, `python -m lms plan` and the experiments differ in
where the workload comes from (measured here, or by a roofline) and in what they do with
the planned step (build it, or show it), and in nothing between.

A step gets the plain plan if it fits, else one by the settings.

A stored plan is given by the user or cached on disk, and is validated like any plan. It
names the ops of one step: of one model, one batch size, one version of TensorFlow, with
op determinism on or off.

A cached plan depends on the step, the device's memory, the settings, and the seconds of
ops and copies. Its name is a digest of them all, so other inputs do not find it. The
bytes in use beside the step differ by a few batches from run to run: a plan for
slightly fewer bytes is taken too.
"""

import logging
import math
import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from operator import add
from typing import TypeAlias

from lms.errors import BudgetError, HostMemoryError, PlanError
from lms.ir.graph import GraphView
from lms.ir.liveness import buffers, memory_curve, old_values, peak
from lms.ir.plan import SwapPlan, planned_graph, validate_plan
from lms.planning.addresses import why_unsealed
from lms.planning.candidates import small_pool_for, smallest_worth_moving
from lms.planning.placement import in_room
from lms.planning.problem import (
    UNLIMITED,
    FittedPlan,
    MemoryBudget,
    PlannedStep,
    Reason,
    Speeds,
    Workload,
)
from lms.planning.settings import Settings
from lms.planning.strategies import may_fit, modelled_speeds, plan_by_budget
from lms.planning.tflms_autotune import search_thresholds
from lms.planning.tuning import THOROUGH, TUNING
from lms.simulation.allocator import NO_POOL
from lms.simulation.executor import simulate
from lms.simulation.memory import allocator_peak, simulate_memory
from lms.storage.cache import cache_folder, digest, read_entry, sources, write_entry
from lms.units import Bytes, format_bytes

__all__ = ["choose_plan", "choose_plan_once", "enough_for", "fits", "fitted_plan"]
__all__ += ["plain_plan", "plan_at_length", "plan_step", "without_plan", "workload_of"]

_LOG = logging.getLogger("lms")

_KIND = "plans"

# A cached plan is taken if it was made for at least 95 % of the step's bytes.
_ROOM_PERCENT = 95

# Parts of names that rewrites append to the name of a layer's op.
_PART = re.compile(r"(/lms_\w+)+$")

_STEPS = 512  # a stored plan's least budget is found to 1/512 of its peak

_SLOW_LINK = 1e6  # bytes per second, at which the fastest plan moves the least

_Choose: TypeAlias = Callable[[Workload, Settings, MemoryBudget], FittedPlan]


def plain_plan(own: GraphView, kept: Bytes = 0) -> FittedPlan:
    """Return the plan of TensorFlow's own way, without order and swaps.

    Args:
        own: TensorFlow's own graph of the step.
        kept: Bytes of constants that only TensorFlow's own graph keeps, part of the
            peak.
    """
    plan = SwapPlan(planner="none", order=own.order)
    reached = allocator_peak(own, plan, capacity=UNLIMITED) or 0
    curve = memory_curve(own)
    reached += max(map(add, curve, old_values(own)), default=0) - max(curve, default=0)
    beside = sum(sorted(op.scratch for op in own.ops)[-TUNING.concurrent_scratch : -1])
    if has_loops(own):
        beside += math.ceil(reached * TUNING.loop_excess)
    return FittedPlan(plan=plan, small_pool=NO_POOL, peak=kept + reached, beside=beside)


def workload_of(
    graph: GraphView, own: GraphView, speeds: Callable[[], Speeds]
) -> Workload:
    """Make a workload with its plain plan, from the fields of `Workload`."""
    kept = own.constant_bytes - graph.constant_bytes
    plain = plain_plan(own, kept)
    return Workload(graph=graph, own=own, plain=plain, speeds=speeds)


def choose_plan(
    workload: Workload,
    settings: Settings,
    budget: MemoryBudget,
    *,
    is_first: bool = False,
) -> FittedPlan:
    """Choose the plan that the settings ask for; the plain one if everything fits.

    `is_first` takes the first plan without risk, not the fastest one.

    Raises:
        BudgetError: If no plan fits; names the op and the least budget.
    """
    graph, plain = workload.graph, workload.plain
    if not settings.plans_what_fits and fits(plain, budget):
        return plain
    try:
        if settings.thresholds is not None:
            return search_thresholds(graph, settings, budget)
        find = _beside_loops if has_loops(graph) else plan_by_budget
        return find(graph, settings, budget, workload.speeds, is_first=is_first)
    except BudgetError as error:
        _restate(error, plain, budget)
        raise


def has_loops(graph: GraphView) -> bool:
    """Tell whether loops or branches, whose ops have no order, make large tensors."""
    return any(
        op.fixed and any(tensor.size >= TUNING.loop_tensor for tensor in op.outputs)
        for op in graph.ops
    )


def _beside_loops(
    graph: GraphView,
    settings: Settings,
    budget: MemoryBudget,
    speeds: Callable[[], Speeds],
    *,
    is_first: bool,
) -> FittedPlan:
    """Plan into a part of the budget; the rest is for loops in other orders."""
    unordered = _unordered(graph)
    part = budget.step * TUNING.beside_loops_percent // 100
    part = max(part, budget.step - unordered)
    less = budget.of(budget.persistent + part)
    try:
        return plan_by_budget(graph, settings, less, speeds, is_first=is_first)
    except BudgetError as error:
        percent = TUNING.beside_loops_percent
        error.restate(lambda least: min(least * 100 // percent, least + unordered))
        raise


def _unordered(graph: GraphView) -> Bytes:
    """Return the bytes that loops and branches make and read in one iteration.

    In any order their ops hold no more than this beside the planned bytes.
    """
    touched = {
        graph.roots[name]
        for op in graph.ops
        if op.fixed
        for name in (*op.inputs, *(tensor.name for tensor in op.outputs))
    }
    return sum(buffer.size for buffer in buffers(graph) if buffer.root in touched)


def fits(plain: FittedPlan, budget: MemoryBudget) -> bool:
    """Tell whether a step needs no plan, in any order of ops."""
    return enough_for(plain) <= budget.step


def enough_for(plain: FittedPlan) -> Bytes:
    """Return the bytes that suffice without a plan, in any order of ops."""
    return math.ceil(plain.peak * TUNING.unordered_factor) + plain.beside


def _restate(error: BudgetError, plain: FittedPlan, budget: MemoryBudget) -> None:
    """Restate an error about the step's bytes for the whole budget or device.

    The budget in the message never exceeds the step's need without a plan.
    """
    enough = enough_for(plain)
    is_device = budget.limit is not None and budget.is_whole_device
    name = _PART.sub("", error.op_name or "")
    cause = f"for op {name!r}" if name else "for IBM's rule"
    instead = "Use" if error.op_name else "Leave `thresholds` out, or use"

    def needed(least: Bytes) -> Bytes:
        total = budget.persistent + min(least or enough, enough)
        return budget.device_for(total) if is_device else total

    def said(least: Bytes) -> str:
        total = format_bytes(needed(least), at_least=True)
        why = (
            f"{cause}: {format_bytes(budget.persistent)} persistent bytes, and "
            f"{format_bytes(min(least or enough, enough))} for the step, fragmentation "
            "included"
        )
        if is_device:
            rule = f"the device's memory must be at least {total} {why}, and a "
            rule += f"margin; got {format_bytes(budget.limit or 0)}"
        else:
            rule = f"`budget` must be at least {total} {why}; got "
            rule += format_bytes(budget.total or 0)
        return f"{rule}. {instead} a smaller batch or volume."

    error.restate(needed, said)


def fitted_plan(workload: Workload, plan: SwapPlan, budget: MemoryBudget) -> FittedPlan:
    """Check a stored plan against this step and this budget; predict its peak.

    Raises:
        PlanError: If the plan is not for this step; names the rule and the op.
        BudgetError: If its peak is above the budget.
    """
    graph, plain = workload.graph, workload.plain
    if plan.planner == plain.plan.planner:
        _validated(workload.own, plan)
        if plain.peak > budget.step:
            raise _too_small(budget, plain.peak, plain.peak)
        return plain
    planned = _validated(graph, plan)
    pool = small_pool_for(planned, min_bytes=smallest_worth_moving(peak(graph)))
    ordered = plan.planner == "budget"  # other planners order some ops only
    if ordered and not (budget.unsealed or why_unsealed(graph)):
        sealed = in_room(planned, pool, plan, budget.sealed_room, THOROUGH.packings)
        if sealed is not None:
            return sealed

    def reached(capacity: Bytes) -> Bytes | None:
        return allocator_peak(planned, plan, capacity=capacity, small_pool=pool)

    found = reached(budget.step + budget.margin)
    if found is None:
        alone = reached(UNLIMITED) or 0
        rooms = range(alone, 2 * alone, max(1, alone // _STEPS))
        index = bisect_left(rooms, x=True, key=lambda room: reached(room) is not None)
        least = rooms[index] if index < len(rooms) else 2 * alone
        raise _too_small(budget, alone, least)
    return FittedPlan(plan=plan, small_pool=pool, peak=found)


def _validated(graph: GraphView, plan: SwapPlan) -> GraphView:
    """Return the graph with the ops that a valid plan adds to it."""
    try:
        planned = planned_graph(graph, plan)
        validate_plan(planned, plan)
    except (PlanError, KeyError, ValueError) as error:
        raise PlanError(
            f"`plan` must be a plan of this very step, got another: {error}. "
            "Plan this model, with this batch size, again: python -m lms plan "
            "FILE.py:function --output plan.json."
        ) from error
    return planned


def _too_small(budget: MemoryBudget, predicted: Bytes, room: Bytes) -> BudgetError:
    least = budget.persistent + room
    enough = format_bytes(least, at_least=True)
    return BudgetError(
        f"`budget` must be at least {enough} for the stored `plan`, whose predicted "
        f"peak is {format_bytes(budget.persistent + predicted)}, got "
        f"{format_bytes(budget.total or 0)}. Leave `plan` out to make one for this "
        "budget.",
        least_bytes=least,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A cached plan, and the step's bytes when it was made."""

    room: Bytes
    fitted: FittedPlan


def choose_plan_once(
    workload: Workload, settings: Settings, budget: MemoryBudget
) -> FittedPlan:
    """Choose a plan, or read the plan that an earlier run chose.

    Where the search goes on while the step trains, the first plan is chosen.

    Arguments and errors are those of `choose_plan`.
    """
    graph, plain = workload.graph, workload.plain
    by_rule = settings.thresholds is not None
    is_first = settings.replan
    is_known = by_rule or fits(plain, budget) or not may_fit(graph, budget)
    if is_known or cache_folder() is None:
        return choose_plan(workload, settings, budget, is_first=is_first)
    memory, room = replace(budget, persistent=0, fences=0), budget.step - budget.fences
    known = replace(settings, replan=False)
    name = digest(sources(), graph, plain, known, memory, workload.speeds())
    kept = read_entry(_KIND, name, _Kept)
    least = room * _ROOM_PERCENT // 100
    if kept is not None and least <= kept.room <= room:
        if _can_be_obeyed(graph, kept.fitted, budget):
            return kept.fitted
        _LOG.warning("Ignored a cached plan: this step cannot obey it any more.")
    found = choose_plan(workload, settings, budget, is_first=is_first)
    if not is_first:
        write_entry(_KIND, name, _Kept(room=room, fitted=found))
    return found


def plan_at_length(
    graph: GraphView,
    own: GraphView,
    speeds: Speeds,
    settings: Settings,
    budget: MemoryBudget,
) -> FittedPlan:
    """Choose a plan with all effort, in a process of its own (`lms.machine.host`)."""
    workload = workload_of(graph, own, lambda: speeds)
    return choose_plan_once(workload, replace(settings, replan=False), budget)


def _can_be_obeyed(graph: GraphView, found: FittedPlan, budget: MemoryBudget) -> bool:
    """Tell whether a cached plan is valid and can be placed in the budget."""
    try:
        planned = _validated(graph, found.plan)
    except PlanError:
        return False
    room, packings = budget.step + budget.margin, 0
    if found.sealed:
        room, packings = budget.sealed_room, THOROUGH.packings
    return in_room(planned, found.small_pool, found.plan, room, packings) is not None


def plan_step(
    workload: Workload,
    settings: Settings,
    budget: MemoryBudget,
    host: Bytes | None,
    *,
    choose: _Choose = choose_plan,
) -> PlannedStep:
    """Plan a step into a budget; recompute more if host memory is too small.

    `host` is the host's bytes for swapped tensors; None if they are not known. `choose`
    makes the plan, or reads it from the cache.

    Returns:
        A valid plan with its predictions; the plain one if everything fits.

    Raises:
        BudgetError: If no plan fits; names the op and the least budget.
        HostMemoryError: If the host cannot hold the swapped tensors.
        PlanError: If a stored plan is not for this step.
    """
    if settings.plan is not None:
        fitted = fitted_plan(workload, settings.plan, budget)
    else:
        fitted = choose(workload, settings, budget)
    found = _predicted(workload, fitted, budget)
    if host is None or found.memory.host_peak <= host:
        return found
    recomputed = _recomputed(workload, settings, budget, host, choose)
    if recomputed is None or recomputed.memory.host_peak > host:
        raise HostMemoryError(
            f"Could not hold {format_bytes(found.memory.host_peak)} of swapped tensors "
            f"in host memory: {format_bytes(host)} are free. Close other programs, or "
            "use a larger `budget`, a smaller batch or a smaller volume."
        )
    return recomputed


def without_plan(workload: Workload, budget: MemoryBudget) -> PlannedStep:
    """Return the step as TensorFlow runs it, whether it fits or not."""
    return replace(_predicted(workload, workload.plain, budget), reason=Reason.NO_PLAN)


def _recomputed(
    workload: Workload,
    settings: Settings,
    budget: MemoryBudget,
    host: Bytes,
    choose: _Choose,
) -> PlannedStep | None:
    """Plan with recomputation to move little; None if the settings forbid it.

    A first plan, which takes less time, moves more than the best one. Whether that one
    moves little enough depends on no measured second.
    """
    may_choose = settings.thresholds is None and settings.recompute is None
    if not may_choose or settings.plan is not None:
        return None
    # Over so slow a link the plan that moves the fewest bytes is the fastest.
    found, known = None, modelled_speeds(workload.graph)
    for speeds, replan in ((workload.speeds(), settings.replan), (known, False)):
        link = replace(speeds.hardware, h2d=_SLOW_LINK, d2h=_SLOW_LINK)
        slow = replace(workload, speeds=partial(replace, speeds, hardware=link))
        always = replace(settings, recompute=True, replan=replan)
        found = _predicted(workload, choose(slow, always, budget), budget)
        if found.memory.host_peak <= host:
            break
    return found and replace(found, reason=Reason.SMALL_HOST)


def _predicted(
    workload: Workload, fitted: FittedPlan, budget: MemoryBudget
) -> PlannedStep:
    plan, is_plain = fitted.plan, fitted.plan == workload.plain.plan
    graph = workload.own if is_plain else planned_graph(workload.graph, plan)
    validate_plan(graph, plan)
    reason, timeline, by_time = Reason.PLANNED, None, 0
    if is_plain:
        most = fitted.peak * TUNING.surprising_factor + fitted.beside
        reason = Reason.FITS_EASILY if most <= budget.step else Reason.FITS
        memory = workload.plain_memory
    else:
        memory, speeds = simulate_memory(graph, plan), workload.speeds()
        timeline = simulate(graph, plan, speeds.costs, speeds.hardware)
        # Without a release, as by IBM's rule, a slow link keeps tensors for longer.
        if any(swap.release is None for swap in plan.swaps):
            by_time = timeline.chunks_peak
    return PlannedStep(
        workload=workload,
        budget=budget,
        reason=reason,
        plan=plan,
        graph=graph,
        small_pool=fitted.small_pool,
        memory=memory,
        timeline=timeline,
        step_bytes=by_time or fitted.peak,
        risk=fitted.risk,
        sealed=fitted.sealed,
    )
