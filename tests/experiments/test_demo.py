"""The demo: what it claims, what it says, and one of its trainings for real."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from experiments import demo
from experiments.demo_report import failed_claims
from experiments.runner import Trial, run_trial, why_it_failed
from lms.units import MIB

OOM = "OOM when allocating tensor with shape[1,2] and type float"
NUMBERS = {
    "peak_bytes": 100 * MIB,
    "median_step_seconds": 0.5,
    "loss": [0.75, 0.5],
    "dice": [0.25, 0.5],
    "weights_sha256": "a",
}
REPORT = {
    "predicted_peak_bytes": 45 * MIB,
    "unplanned_peak_bytes": 98 * MIB,
    "persistent_bytes": 5 * MIB,
    "lower_bound_bytes": 12 * MIB,
    "swapped_out_bytes": 55 * MIB,
    "swapped_in_bytes": 56 * MIB,
    "swap_count": 3,
}
CURVES = {
    "unplanned": {"device": [MIB, 93 * MIB, MIB], "host": [0, 0, 0]},
    "planned": {"device": [MIB, 40 * MIB, MIB], "host": [0, 55 * MIB, 0]},
    "persistent_bytes": 5 * MIB,
}
PLAIN = Trial(
    name="plain Keras, enough memory",
    memory=None,
    seconds=1.0,
    error=None,
    result=NUMBERS,
)
REFUSED = Trial(
    name="plain Keras, half of it", memory=50 * MIB, seconds=1, error=OOM, result=None
)
PLANNED = Trial(
    name="the callback, half of it",
    memory=50 * MIB,
    seconds=1,
    error=None,
    result=NUMBERS | {"peak_bytes": 46 * MIB, "report": REPORT, "timeline": CURVES},
)
GOOD = [PLAIN, REFUSED, PLANNED]


def with_numbers(**numbers: Any) -> list[Trial]:
    return [PLAIN, REFUSED, replace(PLANNED, result=(PLANNED.result or {}) | numbers)]


def test_the_claims_hold_when_all_came_out_so() -> None:
    assert failed_claims(GOOD) == []


@pytest.mark.parametrize(
    ("trials", "failure"),
    [
        ([replace(PLAIN, result=None, error="no")], "enough memory did not train: no"),
        ([PLAIN, replace(REFUSED, result=NUMBERS), PLANNED], "half of it trained"),
        ([PLAIN, replace(REFUSED, error="TypeError: x"), PLANNED], "memory: TypeError"),
        ([PLAIN, REFUSED, replace(PLANNED, result=None, error=OOM)], "not train: OOM"),
        (with_numbers(loss=[0.75, 0.5000001]), "another loss than plain"),
        (with_numbers(weights_sha256="b"), "another weights than plain"),
        (with_numbers(peak_bytes=51 * MIB), "used 51.00 MiB, more than there is"),
        (with_numbers(report=REPORT | {"swap_count": 0}), "swapped nothing"),
    ],
)
def test_each_claim_can_fail(trials: list[Trial], failure: str) -> None:
    (only,) = failed_claims(trials)
    assert failure in only


def test_out_of_memory_is_the_reason_even_before_other_errors() -> None:
    log = f"Traceback\nResourceExhaustedError: Graph execution error:\n  {OOM}\n\nbye"
    assert why_it_failed(log, 1) == OOM
    warning = f"W0000 kernel.h:8] RESOURCE_EXHAUSTED: {OOM}\n"
    assert why_it_failed(warning, -11) == f"{OOM} - and the process crashed"
    assert why_it_failed("half a line", 9) == "exit status 9: half a line"


def test_each_limit_follows_from_what_was_measured() -> None:
    asked: list[tuple[int | None, tuple[str, ...]]] = []

    def train(name: str, memory: int | None, flags: tuple[str, ...] = ()) -> Trial:
        asked.append((memory, tuple(flags)))
        if flags:
            report = REPORT | {"margin_bytes": 2 * MIB}
            more = {"report": report, "least_budget_bytes": 30 * MIB, "batch_bytes": 1}
            return replace(PLANNED, result=NUMBERS | more)
        return PLAIN if memory is None else REFUSED

    assert len(demo._trials(train)) == 4
    assert asked == [
        (None, ()),
        (50 * MIB, ()),
        (50 * MIB, ("--lms", "--least")),
        (32 * MIB, ("--lms",)),
    ]


@pytest.mark.tf
@pytest.mark.slow
def test_a_training_writes_what_it_saw(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    volumes = draws.normal(size=(2, 8, 8, 8, 4)).astype(np.float32)
    regions = draws.integers(0, 2, size=(2, 8, 8, 8, 3)).astype(np.uint8)
    np.savez(tmp_path / "arrays.npz", x=volumes, y=regions)
    trial = run_trial(
        "tiny, 1",
        memory=256 * MIB,
        command=[
            "experiments.demo_trial",
            f"--data={tmp_path / 'arrays.npz'}",
            *("--filters=2", "--depth=2", "--epochs=2"),
        ],
        folder=tmp_path,
        console=Console(file=io.StringIO()),
        flags=["--lms"],
    )
    assert trial.error is None, (tmp_path / "tiny-1.log").read_text()
    result = trial.result
    assert result is not None
    assert len(result["step_seconds"]) == 3
    assert 0 < result["peak_bytes"] < 256 * MIB
    assert result["report"]["kind"] == result["timeline"]["kind"] == "train"
    assert json.loads((tmp_path / "tiny-1.json").read_text()) == result
