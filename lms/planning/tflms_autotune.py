"""Thresholds with which a step fits: the automatic tuning of IBM's TFLMS, version 2.

The tuning looks at memory alone, so a step gets one setting whatever its link. A
leaving tensor's memory counts as free at once: a slower copy makes allocations wait.

    fits without swaps?                         then nothing is swapped
    threshold 1, sync off, swap-out, swap-in, both    the first mode that fits is taken
    swapout_threshold    bisected upwards from 1      larger: less moves
    swapin_ahead         likewise, unless swap-ins are waited for
    swapin_groupby       all readers in one copy if that fits, else bisected downwards
                         to the first that fits

Source: `LMS._search_params` of github.com/IBM/tensorflow-large-model-support, branch
tflmsv2. TFLMS tunes for 0.9 of the device's memory beside variables (`tuned_percent` in
`lms.planning.tuning`); here the caller gives the bytes.

Two things differ. `lms.simulation.memory` counts the scratch of ops; TFLMS's simulator
did not, and kept a leaving tensor for one level more. And where no sync mode fits, lms
refuses; TFLMS went on with "both" unchecked.

Known weakness: the peak is not monotone in these knobs, since a copy that starts early
can raise it. So bisection may miss settings that fit.
"""

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import replace

from lms.errors import BudgetError
from lms.ir.graph import GraphView
from lms.ir.liveness import peak
from lms.ir.plan import SwapPlan
from lms.planning import candidates
from lms.planning.problem import UNLIMITED, FittedPlan, MemoryBudget
from lms.planning.settings import Settings, Thresholds
from lms.planning.tflms_rule import (
    LEAST,
    LevelledGraph,
    SyncMode,
    ThresholdRule,
    level_graph,
    plan_by_rule,
)
from lms.planning.tuning import TUNING
from lms.simulation.allocator import NO_POOL
from lms.simulation.memory import allocator_peak, simulate_memory
from lms.units import Bytes, format_bytes

__all__ = ["Trials", "search_thresholds", "tune"]


class Trials:
    """Settings tried on a levelled graph, each once."""

    def __init__(self, levelled: LevelledGraph, movable: frozenset[str]) -> None:
        self.levelled = levelled
        self.peaks: dict[ThresholdRule, Bytes] = {}
        self._movable = movable

    @property
    def levels(self) -> int:
        """Number of levels, at least 1; as a threshold it makes every reader near."""
        return max(1, len(self.levelled.start) - 1)

    def plan(self, rule: ThresholdRule) -> SwapPlan:
        """Make the plan by a setting."""
        return plan_by_rule(self.levelled, rule, movable=self._movable)

    def peak(self, rule: ThresholdRule) -> Bytes:
        """Return the step's simulated peak in bytes, persistent bytes excluded."""
        if rule not in self.peaks:
            found = simulate_memory(self.levelled.graph, self.plan(rule))
            self.peaks[rule] = found.device_peak
        return self.peaks[rule]


def tune(
    trials: Trials, budget: int, given: Mapping[str, int], sync_mode: SyncMode
) -> ThresholdRule:
    """Choose the thresholds that were not given, so that the step fits.

    Args:
        trials: Trials of the graph; new ones are added.
        budget: Bytes that the step may use, persistent bytes excluded.
        given: Thresholds that are not chosen, by their names.
        sync_mode: Which copies the computation waits for; raised if no setting fits.

    Returns:
        A setting whose peak is at most `budget`.

    Raises:
        BudgetError: If no tried setting fits; names the least peak, which is its
            `least_bytes`, and the setting.
    """
    start = ThresholdRule(**{**LEAST, **given}, sync_mode=sync_mode)
    found = _searched(trials, budget, start, LEAST.keys() - given.keys())
    if found is not None:
        return found
    rule, least = min(trials.peaks.items(), key=lambda tried: tried[1])
    enough = format_bytes(least, at_least=True)
    raise BudgetError(
        f"`budget` must be at least {enough}, the least peak found "
        f"(at swapout_threshold={rule.swapout_threshold}, "
        f"swapin_ahead={rule.swapin_ahead}, swapin_groupby={rule.swapin_groupby}, "
        f"sync_mode={rule.sync_mode.label!r}), got {format_bytes(budget)}. "
        "Plan by budget instead, or use a smaller batch or volume.",
        least_bytes=least,
    )


def _searched(
    trials: Trials, budget: int, start: ThresholdRule, free: Set[str]
) -> ThresholdRule | None:
    """Search knob by knob from the least values on; None if no setting fits."""

    def fits(rule: ThresholdRule) -> bool:
        return trials.peak(rule) <= budget

    idle = replace(start, swapout_threshold=trials.levels)
    if free == LEAST.keys() and fits(idle):
        return idle
    modes = [start.sync_mode, SyncMode.BOTH]
    if "swapout_threshold" in free:
        modes = [mode for mode in SyncMode if mode.value >= start.sync_mode.value]
    raised = (replace(start, sync_mode=mode) for mode in modes)
    rule = next(filter(fits, raised), None)
    if rule is None:
        return None
    if "swapout_threshold" in free:
        rule = _largest(rule, "swapout_threshold", trials.levels, fits)
    if rule.sync_mode in (SyncMode.SWAP_IN, SyncMode.BOTH):
        return rule  # a swap-in starts beside its reader, whatever the other knobs say
    if "swapin_ahead" in free:
        rule = _largest(rule, "swapin_ahead", trials.levels, fits)
    if "swapin_groupby" in free:
        rule = _with_gap(rule, trials.levels, fits)
    return rule


def _largest(
    rule: ThresholdRule, knob: str, count: int, fits: Callable[[ThresholdRule], bool]
) -> ThresholdRule:
    """Bisect a knob in 1..count for the largest that fits; else return the rule."""
    low, high = 1, count
    while low <= high:
        middle = (low + high) // 2
        other = replace(rule, **{knob: middle})
        if fits(other):
            rule, low = other, middle + 1
        else:
            high = middle - 1
    return rule


def _with_gap(
    rule: ThresholdRule, count: int, fits: Callable[[ThresholdRule], bool]
) -> ThresholdRule:
    """Halve the gap between readers of one copy until the rule fits, as TFLMS does."""
    gap = count
    while gap > 0:
        other = replace(rule, swapin_groupby=gap)
        if fits(other):
            return other
        gap = count // 2 if gap == count else (gap - 1) // 2
    return replace(rule, swapin_groupby=0)


def search_thresholds(
    graph: GraphView, settings: Settings, budget: MemoryBudget
) -> FittedPlan:
    """Plan by the given thresholds; tune missing ones for a part of the budget.

    Raises:
        BudgetError: If no tried setting fits; names the least budget.
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
    given = asked.numbers
    if given.keys() == LEAST.keys():
        rule = ThresholdRule(**given, sync_mode=asked.sync_mode)
        return _placed_by_threshold(trials, rule)
    room = budget.free if budget.is_whole_device else budget.step
    found: FittedPlan | None = None
    for percent in TUNING.tuned_percent:
        part = min(budget.step, room * percent // 100)
        try:
            rule = tune(trials, part, given, asked.sync_mode)
        except BudgetError as error:
            if found is None:  # the error is about a part of the budget
                least = math.ceil((error.least_bytes or 0) * 100 / percent)
                raise BudgetError(str(error), least_bytes=least) from error
            break
        option = _placed_by_threshold(trials, rule)
        if found is None or option.peak < found.peak:
            found = option
        if found.peak <= budget.step:
            break
    assert found is not None  # or the first search has raised
    return found


def _placed_by_threshold(trials: Trials, rule: ThresholdRule) -> FittedPlan:
    plan = trials.plan(rule)
    reached = allocator_peak(trials.levelled.graph, plan, capacity=UNLIMITED) or 0
    return FittedPlan(plan=plan, small_pool=NO_POOL, peak=reached)
