"""IBM's rule and its tuning in one call, as tests want them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from lms.ir.graph import GraphView
from lms.ir.plan import SwapPlan, validate_plan
from lms.planning.candidates import movable as movable_in
from lms.planning.tflms_autotune import Trials, tune
from lms.planning.tflms_rule import SyncMode, ThresholdRule, level_graph

__all__ = ["ThresholdChoice", "best_thresholds", "grid", "plan", "plan_by_threshold"]
__all__ += ["readers"]

_NAMES = ("swapout_threshold", "swapin_ahead", "swapin_groupby")


@dataclass(frozen=True, kw_only=True)
class ThresholdChoice:
    """A setting, its peak, and the bytes that are copied by it."""

    rule: ThresholdRule
    peak: int
    swapped_bytes: int


def _choice(trials: Trials, rule: ThresholdRule) -> ThresholdChoice:
    moved = trials.plan(rule).moved_bytes
    return ThresholdChoice(rule=rule, peak=trials.peak(rule), swapped_bytes=moved)


def plan_by_threshold(
    graph: GraphView, rule: ThresholdRule, *, movable: frozenset[str], **knobs: Any
) -> SwapPlan:
    return Trials(level_graph(graph, **knobs), movable).plan(rule)


def best_thresholds(
    graph: GraphView,
    budget: int,
    *,
    movable: frozenset[str],
    sync_mode: SyncMode = SyncMode.OFF,
    **knobs: Any,
) -> ThresholdChoice:
    given = {name: knobs.pop(name) for name in _NAMES if name in knobs}
    trials = Trials(level_graph(graph, **knobs), movable)
    return _choice(trials, tune(trials, budget, given, sync_mode))


def grid(
    graph: GraphView, *values: Sequence[int], movable: frozenset[str]
) -> list[ThresholdChoice]:
    """Each combination of thresholds, aheads and groupbys, thresholds slowest."""
    trials = Trials(level_graph(graph, min_bytes=1), movable)
    every = (dict(zip(_NAMES, each, strict=True)) for each in product(*values))
    return [_choice(trials, ThresholdRule(**thresholds)) for thresholds in every]


def plan(graph: GraphView, threshold: int = 1, **knobs: Any) -> SwapPlan:
    """A valid plan that moves `a:0` if anything."""
    asked = {"swapin_ahead": 1, "swapin_groupby": 0, "sync_mode": SyncMode.OFF}
    asked = {name: knobs.pop(name, usual) for name, usual in asked.items()}
    rule = ThresholdRule(swapout_threshold=threshold, **asked)
    able = knobs.pop("movable", movable_in(graph, min_bytes=1) & {"a:0"})
    made = plan_by_threshold(graph, rule, movable=able, **{"min_bytes": 1} | knobs)
    validate_plan(graph, made)
    return made


def readers(made: SwapPlan) -> list[str]:
    """The readers of each swap-in, as one word."""
    return ["".join(c.readers) for swap in made.swaps for c in swap.swap_ins]
