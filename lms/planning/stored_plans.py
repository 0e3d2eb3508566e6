"""Stored plans: given by the user or cached on disk, and validated like any plan.

A plan names the ops of one step: of one model, one batch size, one version of
TensorFlow, with op determinism on or off.

A cached plan depends on the step, the device's memory, the settings, and the seconds of
ops and copies. Its name is a digest of them all, so other inputs do not find it. The
bytes in use beside the step differ by a few batches from run to run: a plan for
slightly fewer bytes is taken too.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

from lms.errors import BudgetError, PlanError
from lms.ir.graph import GraphView
from lms.ir.liveness import peak
from lms.ir.plan import SwapPlan, planned_graph, validate_plan
from lms.planning.candidates import small_pool_for, smallest_worth_moving
from lms.planning.placement import in_room
from lms.planning.problem import UNLIMITED, FittedPlan, MemoryBudget, Workload
from lms.planning.select import choose_plan, fits
from lms.planning.settings import Settings
from lms.simulation.memory import allocator_peak
from lms.storage.cache import cache_folder, digest, read_entry, sources, write_entry
from lms.units import Bytes, format_bytes

__all__ = ["choose_plan_once", "fitted_plan"]

_LOG = logging.getLogger("lms")

_KIND = "plans"

# A cached plan is taken if it was made for at least 95 % of the step's bytes.
_ROOM_PERCENT = 95

_STEPS = 512  # a stored plan's least budget is found to 1/512 of its peak


def fitted_plan(workload: Workload, plan: SwapPlan, budget: MemoryBudget) -> FittedPlan:
    """Check a stored plan against this step and this budget; predict its peak.

    Args:
        workload: The step.
        plan: The stored plan.
        budget: Memory that the step may use.

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

    def reached(capacity: Bytes) -> Bytes | None:
        return allocator_peak(planned, plan, capacity=capacity, small_pool=pool)

    found = reached(_room(budget))
    if found is None:
        alone = reached(UNLIMITED) or 0
        raise _too_small(budget, alone, _least(reached, alone))
    return FittedPlan(plan=plan, small_pool=pool, peak=found)


def _least(reached: Callable[[Bytes], Bytes | None], alone: Bytes) -> Bytes:
    """Find the least capacity in which the allocator can place the plan."""
    rooms = range(alone, 2 * alone, max(1, alone // _STEPS))
    index = bisect_left(rooms, x=True, key=lambda room: reached(room) is not None)
    return rooms[index] if index < len(rooms) else 2 * alone


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

    Arguments and errors are those of `choose_plan`.
    """
    graph, plain = workload.graph, workload.plain
    by_rule = settings.thresholds is not None
    if by_rule or cache_folder() is None or fits(plain, budget):
        return choose_plan(workload, settings, budget)
    memory = replace(budget, persistent=0)
    name = digest(sources(), graph, plain, settings, memory, workload.speeds())
    kept = read_entry(_KIND, name, _Kept)
    least = budget.step * _ROOM_PERCENT // 100
    if kept is not None and least <= kept.room <= budget.step:
        if _can_be_obeyed(graph, kept.fitted, budget):
            return kept.fitted
        _LOG.warning("Ignored a cached plan: this step cannot obey it any more.")
    found = choose_plan(workload, settings, budget)
    write_entry(_KIND, name, _Kept(room=budget.step, fitted=found))
    return found


def _can_be_obeyed(graph: GraphView, found: FittedPlan, budget: MemoryBudget) -> bool:
    """Tell whether a cached plan is valid and can be placed in the budget."""
    try:
        planned = _validated(graph, found.plan)
    except PlanError:
        return False
    return in_room(planned, found.small_pool, found.plan, _room(budget)) is not None


def _room(budget: MemoryBudget) -> Bytes:
    """Return the step's bytes, the margin included."""
    return budget.step if budget.total is None else budget.step + budget.margin
