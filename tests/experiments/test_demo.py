"""The demo: what it claims, and the limits that follow from what was measured."""

from pathlib import Path
from typing import Any

import pytest

from experiments import demo
from experiments.demo import failed_claims, main
from lms.units import MIB

OOM = "OOM when allocating tensor with shape[1,2] and type float"
REPORT = {
    "predicted_peak_bytes": 45 * MIB,
    "unplanned_peak_bytes": 98 * MIB,
    "persistent_bytes": 5 * MIB,
    "lower_bound_bytes": 12 * MIB,
    "swapped_out_bytes": 55 * MIB,
    "swapped_in_bytes": 56 * MIB,
    "swap_count": 3,
    "recomputed_ops": 0,
}
CURVES = {
    "plain": [MIB, 93 * MIB, MIB],
    "planned": [MIB, 40 * MIB, MIB],
    "host": [0, 55 * MIB, 0],
    "ops": [30, 33, 33],
}
PLAIN = {
    "name": "plain Keras, enough memory",
    "memory_bytes": None,
    "error": None,
    "seconds": 1.0,
    "peak_bytes": 100 * MIB,
    "losses": ["0x1p+0", "0x1p-1"],
    "sha256": "a",
}
OTHER = {"name": "the callback, half of it", "memory_bytes": 50 * MIB}
REFUSED = {**PLAIN, "name": "plain Keras, half of it", "error": OOM}
PLANNED = {**PLAIN, **OTHER, "peak_bytes": 46 * MIB, "report": REPORT, "curves": CURVES}


def planned(**numbers: Any) -> list[dict[str, Any]]:
    return [PLAIN, REFUSED, PLANNED | numbers]


def test_the_claims_hold_when_all_came_out_so() -> None:
    assert failed_claims(planned()) == []


@pytest.mark.parametrize(
    ("trials", "failure"),
    [
        ([PLAIN | {"error": "no"}], "enough memory did not train: no"),
        ([PLAIN, REFUSED | {"error": None}, PLANNED], "half of it trained"),
        ([PLAIN, REFUSED | {"error": "TypeError: x"}, PLANNED], "memory: TypeError"),
        (planned(error=OOM), "not train: OOM"),
        (planned(losses=["0x1p+0", "0x1p+0"]), "other losses than plain"),
        (planned(sha256="b"), "other weights than plain"),
        (planned(peak_bytes=51 * MIB), "used 51.00 MiB, more than its limit"),
        (planned(report=REPORT | {"swap_count": 0}), "fits by itself"),
    ],
)
def test_each_claim_can_fail(trials: list[dict[str, Any]], failure: str) -> None:
    (only,) = failed_claims(trials)
    assert failure in only


def test_each_limit_follows_from_what_was_measured_and_all_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, int | None]] = []

    def measured(trial: Any, *_: Any) -> dict[str, Any]:
        asked.append((trial.way, trial.memory))
        known = {"memory_bytes": trial.memory}
        if trial.way == "plain":
            return {**(REFUSED if trial.memory else PLAIN), **known}
        return {**PLANNED, **known, "peak_bytes": 24 * MIB}

    monkeypatch.setattr(demo, "measured", measured)
    monkeypatch.setattr(demo, "_arrays", lambda *_: tmp_path / "arrays.npz")
    assert main(["--output", str(tmp_path)]) == 0
    assert asked[0] == ("plain", None)
    memories = [("callback", 25 * MIB), ("callback", 50 * MIB), ("plain", 50 * MIB)]
    assert sorted(asked[1:]) == memories
    assert (tmp_path / "memory.png").exists()
    assert "equal bit for bit" in capsys.readouterr().out
