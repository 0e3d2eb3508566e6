"""The true size: what is drawn and said comes from the rows of trials alone."""

from typing import Any

import pytest

from experiments.true_size import main
from tests.experiments.conftest import Draw

SETTINGS = {"memory": "8MiB", "sizes": [8, 16], "steps": 3}
OOM = "OOM when allocating tensor with shape[1,8] and type float on CPU:0"
CURVES = {"unplanned": [0, 2**24, 3], "planned": [1, 2**22, 2], "host": [0, 2**21, 0]}
REPORT = {
    "persistent_bytes": 1,
    "predicted_peak_bytes": 2**22,
    "swapped_out_bytes": 2**21,
    "recomputed_ops": 7,
    "replans": 0,
}


def _row(
    way: str, size: int, error: str | None = None, **others: Any
) -> dict[str, Any]:
    row = {"kind": "training", "way": way, "size": size, "memory_bytes": 2**23}
    row |= {"error": error}
    took = {"peak_bytes": 2**22, "step_seconds": [9.0, 1.0 * (size / 8) ** 3, 1.5]}
    took["stolen_seconds"] = [0.0] * 3
    return row | ({} if error else took) | others


@pytest.mark.parametrize("refused", [OOM, None])
def test_the_goal_needs_a_refusal_and_a_training(
    refused: str | None, draw: Draw
) -> None:
    rows = [
        _row("plain", 8),
        _row("plain", 16, refused),
        _row("budget", 16, report=REPORT, curves=CURVES),
        _row("budget", 24, OOM),
    ]
    drawn, said = draw(main, rows, **SETTINGS)
    assert drawn == (0 if refused else 1)
    # 4.75 s over 8 times 1.25 s, of two steps each.
    assert "0.47 times (not decided: few steps) as long per voxel" in said


def test_bases_are_pooled_and_ratios_have_intervals(draw: Draw) -> None:

    def steps(*seconds: float) -> dict[str, Any]:
        many = [9.0, *seconds * 4]
        return {"step_seconds": many, "stolen_seconds": [0.0] * len(many)}

    bases = [
        {"kind": "base", "way": "plain", "size": size, "turn": turn, "error": None}
        | {"peak_bytes": 2**24}
        | steps(*seconds)
        for turn, scale in ((1, 1.0), (2, 1.5))
        for size, seconds in ((8, (scale, scale)), (16, (8 * scale, 8 * scale)))
    ]
    planned = _row("budget", 16, report=REPORT, curves=CURVES) | steps(10.0, 10.0)
    rows = [_row("plain", 8), _row("plain", 16, OOM), planned, *bases]
    drawn, said = draw(main, rows, **SETTINGS)
    assert drawn == 0
    # Half of 16 pooled steps took 1 s and half 1.5 s, where 8 voxels took 10 s.
    assert "1.00 times (0.83 to 1.25) as long per voxel as plain Keras's of 8^3" in said
    assert "and 1.00 times (0.83 to 1.25) plain Keras's of 16^3" in said


@pytest.mark.parametrize(("error", "ends"), [(None, 1), (OOM, 0)])
def test_a_search_that_nothing_failed_is_said_to_have_ended_early(
    error: str | None, ends: int, draw: Draw
) -> None:
    host = {"report": REPORT, "curves": CURVES, "process_peak_bytes": 2**34}
    rows = [_row("plain", 8), _row("plain", 16, OOM), _row("budget", 16, **host)]
    rows += [_row("budget", 24, **host), _row("budget", 32, error, **host)]
    drawn, said = draw(main, rows, **SETTINGS)
    assert drawn == 0
    assert f"The largest that trained in 8.00 MiB is {24 if error else 32}^3" in said
    assert said.count("for lack of host memory") == ends
    assert said.count("16.00 GiB") == ends
