"""From a workload and a budget to a planned step: the one road that all callers take.

    Workload, Settings, MemoryBudget ──plan_step──> PlannedStep

`fit`, `fit_in_memory`, recovery, `python -m lms plan` and the experiments differ in
where the workload comes from (measured here, or by a roofline) and in what they do with
the planned step (build it, or show it), and in nothing between.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from lms.errors import HostMemoryError
from lms.ir.plan import planned_graph, validate_plan
from lms.planning.problem import (
    FittedPlan,
    MemoryBudget,
    PlannedStep,
    Reason,
    Workload,
)
from lms.planning.select import choose_plan, fitted_plan
from lms.planning.settings import Settings
from lms.planning.tuning import TUNING
from lms.simulation.executor import simulate
from lms.simulation.memory import simulate_memory
from lms.units import Bytes, format_bytes

__all__ = ["plan_step", "without_plan"]

_SLOW_LINK = 1e6  # bytes per second, at which the fastest plan moves the least

_Choose: TypeAlias = Callable[[Workload, Settings, MemoryBudget], FittedPlan]


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
    recomputed = _recomputed(workload, settings, budget, choose)
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
    workload: Workload, settings: Settings, budget: MemoryBudget, choose: _Choose
) -> PlannedStep | None:
    """Plan with recomputation to move little; None if the settings forbid it."""
    may_choose = settings.thresholds is None and settings.recompute is None
    if not may_choose or settings.plan is not None:
        return None
    # Over so slow a link the plan that moves the fewest bytes is the fastest.
    speeds = workload.speeds()
    link = replace(speeds.hardware, h2d=_SLOW_LINK, d2h=_SLOW_LINK)
    slow = replace(workload, speeds=lambda: replace(speeds, hardware=link))
    always = replace(settings, recompute=True)
    found = _predicted(workload, choose(slow, always, budget), budget)
    return replace(found, reason=Reason.SMALL_HOST)


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
