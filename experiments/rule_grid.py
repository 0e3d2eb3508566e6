"""The settings of TFLMS's rule that `experiments.planner_comparison` measures."""

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from experiments.ledger import Ledger
from experiments.plan_trials import Traced, measured, plan_key
from lms.planning.tflms_autotune import grid
from lms.planning.tflms_rule import SyncMode, plan_by_threshold

__all__ = ["rule_rows"]


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


def rule_rows(traced: Traced, options: Any, ledger: Ledger) -> None:
    """Everything in TFLMS's default modes, then the best few in the others.

    Args:
        traced: The step.
        options: `thresholds`, `aheads` and `groupbys` of the grid; `few` go on.
        ledger: Gets a row of each setting.
    """
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


_MODES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("both", ()),
    ("off", (":",)),
    ("both", (":",)),
)


def _simulated_best(
    traced: Traced, options: Any, mode: str, serialization: tuple[str, ...]
) -> Iterator[_Knobs]:
    choices = grid(
        traced.graph,
        thresholds=options.thresholds,
        aheads=options.aheads,
        groupbys=options.groupbys,
        movable=traced.movable,
        min_bytes=traced.min_bytes,
        sync_mode=SyncMode.parse(mode),
        serialization=serialization,
    )
    for choice in sorted(choices, key=lambda choice: choice.peak)[: options.few]:
        yield _Knobs(
            swapout_threshold=choice.swapout_threshold,
            swapin_ahead=choice.swapin_ahead,
            swapin_groupby=choice.swapin_groupby,
        )


def _row(traced: Traced, knobs: _Knobs, ledger: Ledger) -> dict[str, Any]:
    key = plan_key("threshold", asdict(knobs))
    return ledger.once(key, lambda: _by_threshold(traced, knobs))


def _by_threshold(traced: Traced, knobs: _Knobs) -> dict[str, Any]:
    wanted: dict[str, Any] = asdict(knobs) | {
        "sync_mode": SyncMode.parse(knobs.sync_mode)
    }
    plan = plan_by_threshold(
        traced.graph, movable=traced.movable, min_bytes=traced.min_bytes, **wanted
    )
    numbers = f"{knobs.swapout_threshold}, {knobs.swapin_ahead}, {knobs.swapin_groupby}"
    modes = "" if knobs.is_default else f", {knobs.sync_mode} {knobs.serialization}"
    return measured(traced, plan, f"rule, {numbers}{modes}") | {
        "default_modes": knobs.is_default
    }
