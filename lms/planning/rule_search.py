"""A plan by IBM's rule: the thresholds that were given, or those that tuning finds."""

import math

from lms.errors import BudgetError
from lms.ir.graph import GraphView
from lms.ir.liveness import peak
from lms.planning import candidates
from lms.planning.memory_budget import UNLIMITED, MemoryBudget
from lms.planning.risk import FittedPlan
from lms.planning.settings import Settings, Thresholds
from lms.planning.tflms_autotune import Trials, tune
from lms.planning.tflms_rule import ThresholdRule, level_graph
from lms.planning.tuning import TUNING
from lms.simulation.allocator import NO_POOL
from lms.simulation.memory import allocator_peak

__all__ = ["search_thresholds"]


def search_thresholds(
    graph: GraphView, settings: Settings, budget: MemoryBudget
) -> FittedPlan:
    """With all thresholds given, what they say; else tuned for a part of the room.

    Args:
        graph: The step.
        settings: The user's knobs.
        budget: What the step may use.

    Raises:
        BudgetError: If nothing that was tried fits; names the least budget.
    """
    asked = settings.thresholds or Thresholds()
    min_bytes = candidates.smallest_worth_moving(peak(graph))
    levelled = level_graph(
        graph,
        min_bytes=min_bytes,
        serialization=asked.serialization,
        serialization_by_size=asked.serialization_by_size,
    )
    able = candidates.movable(graph, min_bytes=min_bytes, filters=settings.filters)
    trials = Trials(levelled, able)
    given = {k: v for k, v in asked.numbers.items() if v is not None}
    if len(given) == len(asked.numbers):
        rule = ThresholdRule(**given, sync_mode=asked.sync_mode)
        return _placed_by_threshold(trials, rule)
    room = budget.free if budget.is_whole_device else budget.step
    found: FittedPlan | None = None
    for percent in TUNING.tuned_percent:
        part = min(budget.step, room * percent // 100)
        try:
            rule = tune(trials, part, asked.numbers, asked.sync_mode).rule
        except BudgetError as error:
            if found is None:
                raise _for_all_the_room(error, percent) from error
            break
        option = _placed_by_threshold(trials, rule)
        if found is None or option.peak < found.peak:
            found = option
        if found.peak <= budget.step:
            break
    assert found is not None  # or the first search has raised
    return found


def _for_all_the_room(error: BudgetError, percent: int) -> BudgetError:
    """Turn an error about a part of the room into one about all."""
    least = math.ceil((error.least_bytes or 0) * 100 / percent)
    return BudgetError(str(error), least_bytes=least)


def _placed_by_threshold(trials: Trials, rule: ThresholdRule) -> FittedPlan:
    plan = trials.plan(rule)
    reached = allocator_peak(trials.levelled.graph, plan, capacity=UNLIMITED) or 0
    return FittedPlan(plan=plan, small_pool=NO_POOL, peak=reached)
