"""The plans that `experiments.planner_comparison` measures: by budget, and by the rule.

Runs in an emulated device, and takes its memory first.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from experiments.ledger import Ledger
from experiments.plan_trials import (
    Traced,
    measured,
    plan_key,
    plan_row,
    settled_bytes,
    trace_step,
)
from lms.ir.graph import GraphView
from lms.ir.liveness import lower_bound
from lms.ir.plan import SwapPlan
from lms.planning.candidates import Filters
from lms.planning.placement import least_plan
from lms.planning.prefetch import Speeds
from lms.planning.problem import UNLIMITED
from lms.planning.risk import Headroom
from lms.planning.schedule import schedule
from lms.planning.select import plain_plan
from lms.planning.strategies import PlanRequest, best_plan
from lms.planning.tflms_autotune import Trials
from lms.planning.tflms_rule import SyncMode, ThresholdRule, level_graph
from lms.tf.measure.device_rates import measure_hardware
from lms.tf.measure.devices import find_device
from lms.tf.measure.op_costs import measure_costs
from lms.units import format_bytes
from unet3d.model import build_unet

__all__ = ["run"]

_MODES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("both", ()),
    ("off", (":",)),
    ("both", (":",)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Knobs:
    """One setting of TFLMS's knobs."""

    swapout_threshold: int
    swapin_ahead: int
    swapin_groupby: int
    sync_mode: str = "off"
    serialization: tuple[str, ...] = ()

    @property
    def is_default(self) -> bool:
        """Whether TFLMS would sync and serialise so when nothing is asked for."""
        return self.sync_mode == "off" and not self.serialization


def run(options: Any) -> None:
    """Measure what is missing.

    Args:
        options: Of the command line of `experiments.planner_comparison`.
    """
    settings = {
        key: value
        for key, value in vars(options).items()
        if key not in ("command", "results", "anew")
    }
    model = build_unet(
        options.size, options.filters, options.depth, batch_size=1, seed=0
    )
    model.optimizer.build(model.trainable_variables)
    traced = trace_step(model)
    ledger = Ledger(options.results, settings, anew=options.anew)
    bounds = ledger.once({"kind": "bounds"}, lambda: _bounds(traced, options))
    ledger.once(plan_key("none", {}), lambda: _measured_plain(traced))
    ledger.once(plan_key("budget", {}), lambda: _by_budget(traced))
    _frontier(traced, options.parts, bounds["unplanned_bytes"], ledger)
    _rule_rows(traced, options, ledger)


def _plain(graph: GraphView) -> SwapPlan:
    return SwapPlan(planner="none", order=tuple(op.name for op in graph.ops))


def _measured_plain(traced: Traced) -> dict[str, Any]:
    own = replace(traced, step=traced.own, graph=traced.own_graph)
    return measured(own, _plain(own.graph), "plain")


def _bounds(traced: Traced, options: Any) -> dict[str, Any]:
    """What holds for every plan, and the grid."""
    persistent = settled_bytes() + traced.step.constant_bytes
    return {
        "ops": len(traced.graph.ops),
        "lower_bound_bytes": lower_bound(traced.graph),
        "unplanned_bytes": plain_plan(traced.own_graph, traced.kept).peak,
        "persistent_bytes": persistent,
        "grid": {
            "swapout_threshold": options.thresholds,
            "swapin_ahead": options.aheads,
            "swapin_groupby": options.groupbys,
        },
    }


def _by_budget(traced: Traced) -> dict[str, Any]:
    """The budget planner in the least room that it does not refuse."""
    _, fitted, _ = least_plan([schedule(traced.graph)], filters=Filters())
    small_pool = find_device().keep_pool(fitted.small_pool)
    row = measured(traced, fitted.plan, "budget, least room")
    del small_pool
    return row | {"planned_step_bytes": fitted.peak}


def _frontier(
    traced: Traced, parts: Sequence[float], unplanned: int, ledger: Ledger
) -> None:
    """The budget planner in rooms between, in each of its variants."""
    device = find_device()
    speeds = Speeds(
        costs=measure_costs(traced.step, device),
        hardware=measure_hardware(device),
    )
    scheduled = schedule(traced.graph)
    variants: Mapping[str, tuple[GraphView, bool | None]] = {
        "as it is": (scheduled, None),
        "nothing twice": (scheduled, False),
        "twice where it can": (scheduled, True),
        "TensorFlow's order": (traced.graph, None),
    }
    for part, (name, (graph, recompute)) in itertools.product(parts, variants.items()):
        budget = int(part * unplanned)
        request = PlanRequest(
            budget=budget,
            headroom=Headroom(free=budget // 32, bound=UNLIMITED),
            speeds=speeds,
            filters=Filters(),
            recompute=recompute,
        )
        settings = {"part": part, "variant": name, "room_bytes": budget}
        ledger.once(
            plan_key("budget", settings),
            lambda graph=graph, request=request: _in_a_room(traced, graph, request),
        )


def _in_a_room(
    traced: Traced, graph: GraphView, request: PlanRequest
) -> dict[str, Any]:
    fitted = best_plan([graph], request)
    if fitted is None:
        return plan_row(_plain(graph)) | {"error": "no plan fits"}
    small_pool = find_device().keep_pool(fitted.small_pool)
    row = measured(traced, fitted.plan, f"budget in {format_bytes(request.budget)}")
    del small_pool
    return row | {"planned_step_bytes": fitted.peak}


def _rule_rows(traced: Traced, options: Any, ledger: Ledger) -> None:
    """Everything in TFLMS's default modes, then the best few in the others."""
    default = [
        _Knobs(swapout_threshold=threshold, swapin_ahead=ahead, swapin_groupby=groupby)
        for threshold, ahead, groupby in itertools.product(
            options.thresholds, options.aheads, options.groupbys
        )
    ]
    peaks = {
        knobs: peak
        for knobs in default
        if (peak := _row(traced, knobs, ledger)["peak_bytes"]) is not None
    }
    best = sorted(peaks, key=lambda knobs: peaks[knobs])[: options.few]
    for mode, serialization in _MODES:
        for knobs in (*best, *_simulated_best(traced, options, mode, serialization)):
            other = replace(knobs, sync_mode=mode, serialization=serialization)
            _row(traced, other, ledger)


def _simulated_best(
    traced: Traced, options: Any, mode: str, serialization: tuple[str, ...]
) -> Iterator[_Knobs]:
    trials = _trials(traced, serialization)
    every = itertools.product(options.thresholds, options.aheads, options.groupbys)
    choices = [
        trials.of(
            ThresholdRule(
                swapout_threshold=threshold,
                swapin_ahead=ahead,
                swapin_groupby=groupby,
                sync_mode=SyncMode.parse(mode),
            )
        )
        for threshold, ahead, groupby in every
    ]
    for choice in sorted(choices, key=lambda choice: choice.peak)[: options.few]:
        yield _Knobs(
            swapout_threshold=choice.rule.swapout_threshold,
            swapin_ahead=choice.rule.swapin_ahead,
            swapin_groupby=choice.rule.swapin_groupby,
        )


def _trials(traced: Traced, serialization: tuple[str, ...]) -> Trials:
    levelled = level_graph(
        traced.graph, min_bytes=traced.min_bytes, serialization=serialization
    )
    return Trials(levelled, traced.movable)


def _row(traced: Traced, knobs: _Knobs, ledger: Ledger) -> dict[str, Any]:
    key = plan_key("threshold", asdict(knobs))
    return ledger.once(key, lambda: _by_threshold(traced, knobs))


def _by_threshold(traced: Traced, knobs: _Knobs) -> dict[str, Any]:
    rule = ThresholdRule(
        swapout_threshold=knobs.swapout_threshold,
        swapin_ahead=knobs.swapin_ahead,
        swapin_groupby=knobs.swapin_groupby,
        sync_mode=SyncMode.parse(knobs.sync_mode),
    )
    plan = _trials(traced, knobs.serialization).plan(rule)
    numbers = f"{knobs.swapout_threshold}, {knobs.swapin_ahead}, {knobs.swapin_groupby}"
    modes = "" if knobs.is_default else f", {knobs.sync_mode} {knobs.serialization}"
    return measured(traced, plan, f"rule, {numbers}{modes}") | {
        "default_modes": knobs.is_default
    }
