"""Thresholds by time: of all settings that TFLMS's tuning looks at, the fastest.

TFLMS tunes by memory alone (`lms.planning.tflms_autotune`). Here its search is made
once from each sync mode, and what fits is played over time. Room is free when a copy
has ended. A setting in which no allocation waits for a copy is preferred; of these the
fastest is taken. If there is none, allocations wait: then TFLMS's own choice is.

Not IBM's: an option under its own name, `planner="timed-threshold"`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from lms.errors import BudgetError
from lms.planning.prefetch import Speeds
from lms.planning.tflms_autotune import ThresholdChoice, Trials, tune
from lms.planning.tflms_rule import SyncMode
from lms.simulation.executor import simulate
from lms.units import Seconds

__all__ = ["TimedChoice", "fastest_thresholds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedChoice:
    """A setting of TFLMS's knobs, played over time.

    Args:
        choice: The setting.
        seconds: Of the simulated step.
        peak: Of the simulated step in bytes: tensors stay until their copy has ended.
    """

    choice: ThresholdChoice
    seconds: Seconds
    peak: int


def fastest_thresholds(
    trials: Trials,
    budget: int,
    given: Mapping[str, int | None],
    sync_mode: SyncMode,
    speeds: Speeds,
) -> TimedChoice:
    """Choose the thresholds that were not given, so that the step fits and is fast.

    Args:
        trials: Of the graph; what is tried is added.
        budget: Bytes that the step may use, persistent bytes excluded.
        given: Each threshold by its name; None where it is to be chosen.
        sync_mode: Which copies the computation waits for; modes above are tried too.
        speeds: How long ops and copies take.

    Raises:
        BudgetError: If nothing that was tried fits; names the least peak, and its
            setting. Its `least_bytes` is that peak.
    """
    own = tune(trials, budget, given, sync_mode)
    for mode in SyncMode:
        if mode.value > own.rule.sync_mode.value:
            _try(trials, budget, given, mode)
    played = [_play(trials, one, speeds) for one in trials.tried if one.peak <= budget]
    fitting = [one for one in played if one.peak <= budget]
    if not fitting:
        return _play(trials, own, speeds)
    return min(fitting, key=lambda one: one.seconds)


def _try(
    trials: Trials, budget: int, given: Mapping[str, int | None], mode: SyncMode
) -> None:
    """Search in a mode; what was looked at counts, not whether the search succeeds."""
    try:
        tune(trials, budget, given, mode)
    except BudgetError:
        return


def _play(trials: Trials, choice: ThresholdChoice, speeds: Speeds) -> TimedChoice:
    graph, plan = trials.levelled.graph, trials.plan(choice.rule)
    played = simulate(graph, plan, speeds.costs, speeds.hardware)
    return TimedChoice(choice=choice, seconds=played.seconds, peak=played.device_peak)
