"""Plans that were stored: read from a file, and judged like any other.

A plan names the ops of one step: of one model, one batch size, one version of
TensorFlow, with op determinism on or off.
"""

from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path

from lms.errors import BudgetError, PlanError
from lms.ir.graph import GraphView
from lms.ir.liveness import peak
from lms.ir.plan import SwapPlan, planned_graph, validate_plan
from lms.planning.candidates import small_pool_for, smallest_worth_moving
from lms.planning.memory_budget import UNLIMITED, MemoryBudget
from lms.planning.risk import FittedPlan
from lms.simulation.memory import allocator_peak
from lms.units import Bytes, format_bytes

__all__ = ["fitted_plan", "read_plan"]

_STEPS = 512  # parts of a plan's peak in which the least room for it is told


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


def fitted_plan(
    graph: GraphView,
    own: GraphView,
    plain: FittedPlan,
    plan: SwapPlan,
    budget: MemoryBudget,
) -> FittedPlan:
    """A stored plan with its peak, if it is a plan for this step and this budget.

    Args:
        graph: The step.
        own: TensorFlow's own graph of it.
        plain: The plain plan, of `own`.
        plan: The stored plan.
        budget: What the step may use.

    Raises:
        PlanError: If it is not a plan of this step; names the rule and the op.
        BudgetError: If its peak is above the budget.
    """
    if plan.planner == plain.plan.planner:
        _validated(own, plan)
        if plain.peak > budget.step:
            raise _too_small(budget, plain.peak, plain.peak)
        return plain
    planned = _validated(graph, plan)
    pool = small_pool_for(planned, min_bytes=smallest_worth_moving(peak(graph)))

    def reached(capacity: Bytes) -> Bytes | None:
        return allocator_peak(planned, plan, capacity=capacity, small_pool=pool)

    room = UNLIMITED if budget.total is None else budget.most - budget.persistent
    found = reached(room)
    if found is None:
        alone = reached(UNLIMITED) or 0
        raise _too_small(budget, alone, _least(reached, alone))
    return FittedPlan(plan=plan, small_pool=pool, peak=found)


def _least(reached: Callable[[Bytes], Bytes | None], alone: Bytes) -> Bytes:
    """The least room that is enough: the peak, and what the allocator loses then."""
    rooms = range(alone, 2 * alone, max(1, alone // _STEPS))
    index = bisect_left(rooms, x=True, key=lambda room: reached(room) is not None)
    return rooms[index] if index < len(rooms) else 2 * alone


def _validated(graph: GraphView, plan: SwapPlan) -> GraphView:
    """The graph with the ops that the plan adds to it."""
    try:
        planned = planned_graph(graph, plan)
        validate_plan(planned, plan)
    except (PlanError, KeyError, ValueError) as error:
        raise PlanError(
            f"`plan` must be a plan of this very step, got one that is not: {error}. "
            "Plan this model, with this batch size, anew: python -m lms plan "
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
