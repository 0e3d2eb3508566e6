"""Plans that were stored: read from a file, and judged like any other.

A plan names the ops of one step: of one model, one batch size, one version of
TensorFlow, with op determinism on or off.
"""

from pathlib import Path

from lms.errors import BudgetError, PlanError
from lms.ir.graph import GraphView
from lms.ir.liveness import peak
from lms.ir.plan import SwapPlan, planned_graph, validate_plan
from lms.planning.candidates import small_pool_for, smallest_worth_moving
from lms.planning.memory_budget import UNLIMITED, MemoryBudget
from lms.planning.risk import FittedPlan
from lms.simulation.memory import allocator_peak
from lms.units import format_bytes

__all__ = ["fitted_plan", "read_plan"]


def read_plan(plan: SwapPlan | str | Path) -> SwapPlan:
    """A plan, or the one in a file that `python -m lms plan --output` wrote.

    Raises:
        FileNotFoundError: If there is no such file.
        PlanError: If the file holds no plan.
    """
    if isinstance(plan, SwapPlan):
        return plan
    path = Path(plan)
    if not path.is_file():
        raise FileNotFoundError(
            f"`plan` must be a file that `python -m lms plan --output` wrote, got "
            f"'{path}'. Write it first."
        )
    try:
        return SwapPlan.from_json(path.read_text(encoding="utf-8"))
    except (PlanError, UnicodeDecodeError) as error:
        raise PlanError(
            f"`plan` must be a file that `python -m lms plan --output` wrote, got "
            f"'{path}': {error}"
        ) from error


def fitted_plan(graph: GraphView, plan: SwapPlan, budget: MemoryBudget) -> FittedPlan:
    """A stored plan with its peak, if it is a plan for this step and this budget.

    Args:
        graph: The step.
        plan: The stored plan.
        budget: What the step may use.

    Raises:
        PlanError: If it is not a plan of this step; names the rule and the op.
        BudgetError: If its peak is above the budget.
    """
    try:
        planned = planned_graph(graph, plan)
        validate_plan(planned, plan)
    except (PlanError, KeyError, ValueError) as error:
        raise PlanError(
            f"`plan` must be a plan of this very step, got one that is not: {error}. "
            "Plan this model, with this batch size, anew: python -m lms plan "
            "FILE.py:function --output plan.json."
        ) from error
    pool = small_pool_for(planned, min_bytes=smallest_worth_moving(peak(graph)))
    capacity = UNLIMITED if budget.total is None else budget.most - budget.persistent
    reached = allocator_peak(planned, plan, capacity=capacity, small_pool=pool)
    if reached is None:
        alone = allocator_peak(planned, plan, capacity=UNLIMITED, small_pool=pool)
        least = budget.persistent + (alone or 0)
        raise BudgetError(
            f"`budget` must be at least {format_bytes(least)} for the stored `plan`, "
            f"got {format_bytes(budget.total or 0)}. Leave `plan` out to make one for "
            "this budget.",
            op_name=None,
            least_bytes=least,
        )
    return FittedPlan(plan=plan, small_pool=pool, peak=reached)
