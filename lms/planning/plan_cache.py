"""Plans that were made before, kept on disk: the same question has the same answer.

A plan belongs to the step, the device's memory, the settings, and the times of ops and
copies. All of them are in the name that it is kept under, so nothing is planned by an
answer to another question. What lies in memory beside the step may be a few batches
more or less from run to run: a plan for a little less room is one for this room too.
What was kept is judged like any plan, as anybody may have written it.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from lms.errors import PlanError
from lms.ir.graph import GraphView
from lms.ir.plan import planned_graph, validate_plan
from lms.planning.memory_budget import UNLIMITED, MemoryBudget
from lms.planning.prefetch import Speeds
from lms.planning.risk import FittedPlan
from lms.planning.select import choose_plan, fits
from lms.planning.settings import Settings
from lms.simulation.memory import allocator_peak
from lms.storage.cache import cache_folder, digest, read_entry, sources, write_entry
from lms.units import Bytes

__all__ = ["choose_plan_once"]

_LOG = logging.getLogger("lms")

_KIND = "plans"

# A plan for so many percent of the room is good enough.
_ROOM_PERCENT = 95


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A plan, and the bytes that the step had when it was made."""

    room: Bytes
    fitted: FittedPlan


def choose_plan_once(
    graph: GraphView,
    plain: FittedPlan,
    settings: Settings,
    budget: MemoryBudget,
    speeds: Callable[[], Speeds],
) -> FittedPlan:
    """As `choose_plan`; a budget's plan is kept, and found again by a later run.

    Args:
        graph: The step.
        plain: The plain plan, of TensorFlow's own graph.
        settings: The user's knobs.
        budget: What the step may use.
        speeds: Yields how long ops and copies take; called only if it matters.

    Raises:
        BudgetError: If no plan fits; names the op and the least budget.
    """
    by_rule = settings.thresholds is not None
    if by_rule or cache_folder() is None or fits(plain, budget):
        return choose_plan(graph, plain, settings, budget, speeds)
    memory = replace(budget, persistent=0)
    name = digest(sources(), graph, plain, settings, memory, speeds())
    kept = read_entry(_KIND, name, _Kept)
    if kept is not None and _is_for(budget.step, kept.room):
        if _is_valid(graph, budget, kept.fitted):
            return kept.fitted
        _LOG.warning("Left out a plan that was kept: it is none of this step.")
    found = choose_plan(graph, plain, settings, budget, speeds)
    write_entry(_KIND, name, _Kept(room=budget.step, fitted=found))
    return found


def _is_for(room: Bytes, kept: Bytes) -> bool:
    return room * _ROOM_PERCENT // 100 <= kept <= room


def _is_valid(graph: GraphView, budget: MemoryBudget, found: FittedPlan) -> bool:
    """Tell whether a plan can be obeyed in the room that there is."""
    try:
        planned = planned_graph(graph, found.plan)
        validate_plan(planned, found.plan)
    except (PlanError, KeyError, ValueError):
        return False
    room = UNLIMITED if budget.total is None else budget.most - budget.persistent
    reached = allocator_peak(
        planned, found.plan, capacity=room, small_pool=found.small_pool
    )
    return reached is not None
