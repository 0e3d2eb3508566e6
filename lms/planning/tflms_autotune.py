"""Which thresholds let a step fit: TFLMS's automatic tuning, and what time adds to it.

The largest `swapout_threshold` that fits moves least, then the largest `swapin_ahead`
hides copies best, then the largest `swapin_groupby` swaps in least. Each is found by
bisection against the simulated peak, as TFLMS v2's `autotune` did with its simulator
(github.com/IBM/tensorflow-large-model-support, branch tflmsv2).

That simulator knew no time: a tensor was gone as soon as it was to leave. With `speeds`
the step is played instead: room is free when a copy has ended, and of the settings that
were tried and fit the fastest is taken.

Known weakness: the peak is not monotone in these knobs, a copy that is started early
can raise it, so bisection may miss settings that fit. `grid` looks at every one.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from lms.errors import BudgetError
from lms.ir.graph import GraphView
from lms.planning.prefetch import Speeds
from lms.planning.tflms_rule import (
    LevelledGraph,
    SyncMode,
    ThresholdRule,
    level_graph,
    plan_by_rule,
)
from lms.simulation.executor import simulate
from lms.simulation.memory import simulate_memory
from lms.units import Seconds, format_bytes

__all__ = ["ThresholdChoice", "best_thresholds", "grid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdChoice:
    """One setting of TFLMS's knobs and what it comes to.

    Args:
        swapout_threshold: As in `lms.planning.tflms_rule.ThresholdRule`.
        swapin_ahead: As there.
        swapin_groupby: As there.
        peak: Simulated peak of the step in bytes, persistent bytes excluded.
        swapped_bytes: Bytes that are copied in one step, out and in together.
        seconds: Of the simulated step; None if time was not looked at.
    """

    swapout_threshold: int
    swapin_ahead: int
    swapin_groupby: int
    peak: int
    swapped_bytes: int
    seconds: Seconds | None = None


def best_thresholds(  # noqa: PLR0913 - TFLMS's knobs
    graph: GraphView,
    budget: int,
    *,
    movable: frozenset[str],
    min_bytes: int,
    swapout_threshold: int | None = None,
    swapin_ahead: int | None = None,
    swapin_groupby: int | None = None,
    sync_mode: SyncMode = SyncMode.OFF,
    serialization: Sequence[int | str] = (),
    serialization_by_size: int = 0,
    speeds: Speeds | None = None,
) -> ThresholdChoice:
    """Choose the thresholds that were not given, so that the step fits.

    Args:
        graph: The graph in any execution order.
        budget: Bytes that the step may use, persistent bytes excluded.
        movable: Names of the root tensors that may move.
        min_bytes: As for `lms.planning.tflms_rule.plan_by_threshold`, like all below.
        swapout_threshold: Kept if given.
        swapin_ahead: Kept if given.
        swapin_groupby: Kept if given.
        sync_mode: Which copies the computation waits for.
        serialization: Levels whose ops run one by one.
        serialization_by_size: Bytes of a level above which its ops run one by one.
        speeds: How long ops and copies take; None leaves time out, as TFLMS did.

    Returns:
        The choice; its peak is at most `budget`.

    Raises:
        BudgetError: If nothing that was tried fits; names the least peak, and its
            setting. Its `least_bytes` is that peak.
        ValueError: If a knob is below its least value, or a level is written wrongly.
    """
    levelled = level_graph(
        graph,
        min_bytes=min_bytes,
        serialization=serialization,
        serialization_by_size=serialization_by_size,
    )
    tried: list[ThresholdChoice] = []

    def attempt(threshold: int, ahead: int, groupby: int) -> ThresholdChoice | None:
        rule = ThresholdRule(
            swapout_threshold=threshold,
            swapin_ahead=ahead,
            swapin_groupby=groupby,
            sync_mode=sync_mode,
        )
        tried.append(_evaluate(levelled, rule, movable, speeds))
        return tried[-1] if tried[-1].peak <= budget else None

    ahead = 1 if swapin_ahead is None else swapin_ahead
    groupby = 0 if swapin_groupby is None else swapin_groupby
    count = max(1, len(levelled.start) - 1)
    if swapout_threshold is None:
        best = _largest(count, lambda value: attempt(value, ahead, groupby))
    else:
        best = attempt(swapout_threshold, ahead, groupby)
    if best is None:
        raise _nothing_fits(tried, budget)
    threshold = best.swapout_threshold
    if swapin_ahead is None:
        best = _largest(count, lambda value: attempt(threshold, value, groupby)) or best
    ahead = best.swapin_ahead
    if swapin_groupby is None:
        best = _largest(count, lambda value: attempt(threshold, ahead, value)) or best
    fitting = (choice for choice in tried if choice.peak <= budget)
    return best if speeds is None else min(fitting, key=lambda c: c.seconds or 0.0)


def grid(  # noqa: PLR0913 - TFLMS's knobs
    graph: GraphView,
    *,
    thresholds: Sequence[int],
    aheads: Sequence[int],
    groupbys: Sequence[int],
    movable: frozenset[str],
    min_bytes: int,
    sync_mode: SyncMode = SyncMode.OFF,
    serialization: Sequence[int | str] = (),
    serialization_by_size: int = 0,
) -> tuple[ThresholdChoice, ...]:
    """What each combination of thresholds comes to, thresholds slowest.

    Args:
        graph: The graph in any execution order.
        thresholds: Values of `swapout_threshold`.
        aheads: Values of `swapin_ahead`.
        groupbys: Values of `swapin_groupby`.
        movable: Names of the root tensors that may move.
        min_bytes: As for `lms.planning.tflms_rule.plan_by_threshold`, like all below.
        sync_mode: Which copies the computation waits for.
        serialization: Levels whose ops run one by one.
        serialization_by_size: Bytes of a level above which its ops run one by one.

    Raises:
        ValueError: If a knob is below its least value, or a level is written wrongly.
    """
    levelled = level_graph(
        graph,
        min_bytes=min_bytes,
        serialization=serialization,
        serialization_by_size=serialization_by_size,
    )

    def rules() -> Iterator[ThresholdRule]:
        for threshold in thresholds:
            for ahead in aheads:
                for groupby in groupbys:
                    yield ThresholdRule(
                        swapout_threshold=threshold,
                        swapin_ahead=ahead,
                        swapin_groupby=groupby,
                        sync_mode=sync_mode,
                    )

    return tuple(_evaluate(levelled, rule, movable, None) for rule in rules())


def _evaluate(
    levelled: LevelledGraph,
    rule: ThresholdRule,
    movable: frozenset[str],
    speeds: Speeds | None,
) -> ThresholdChoice:
    graph, plan = levelled.graph, plan_by_rule(levelled, rule, movable=movable)
    if speeds is None:
        seconds, peak = None, simulate_memory(graph, plan).device_peak
    else:
        played = simulate(graph, plan, speeds.costs, speeds.hardware)
        seconds, peak = played.seconds, played.device_peak
    return ThresholdChoice(
        swapout_threshold=rule.swapout_threshold,
        swapin_ahead=rule.swapin_ahead,
        swapin_groupby=rule.swapin_groupby,
        peak=peak,
        swapped_bytes=plan.moved_bytes,
        seconds=seconds,
    )


def _largest(
    count: int, attempt: Callable[[int], ThresholdChoice | None]
) -> ThresholdChoice | None:
    """Bisect 1..count for the largest value that fits; None if none was found."""
    values = range(count, 0, -1)
    found = cache(attempt)
    first = bisect_left(values, x=True, key=lambda value: found(value) is not None)
    return found(values[first]) if first < count else None


def _nothing_fits(tried: Sequence[ThresholdChoice], budget: int) -> BudgetError:
    least = min(tried, key=lambda choice: choice.peak)
    enough = format_bytes(least.peak, at_least=True)
    return BudgetError(
        f"`budget` must be at least {enough}, the least peak found "
        f"(at swapout_threshold={least.swapout_threshold}, "
        f"swapin_ahead={least.swapin_ahead}, swapin_groupby={least.swapin_groupby}), "
        f"got {format_bytes(budget)}. Plan by budget instead, or use a smaller "
        "batch or volume.",
        least_bytes=least.peak,
    )
