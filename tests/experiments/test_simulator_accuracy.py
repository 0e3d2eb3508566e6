"""A trial of the accuracy experiment in an emulated device, and what is drawn of it."""

import pytest

from experiments.simulator_accuracy import main
from tests.experiments.conftest import Draw

GOOD = {
    "model": "unet",
    "share": 0.5,
    "memory_bytes": 200,
    "predicted_peak_bytes": 105,
    "measured_peak_bytes": 100,
    "predicted_seconds": 3.0,
    "predicted_seconds_in_turns": [1.1, 0.1, 2.0],
    "step_seconds": [0.9, 1.0, 5.0, 1.1, 9.0],
    "stolen_seconds": [0.0, 0.0, 4.0, 0.0, 8.0],
    "replans": 0,
    "error": None,
}


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({}, 0),
        ({"predicted_peak_bytes": 111}, 1),
        ({"predicted_seconds_in_turns": [0.7, 0.9, 0.9]}, 0),
        ({"predicted_seconds_in_turns": [0.7, 0.7, 0.9]}, 1),
        ({"model": "resnet", "error": "OOM"}, 1),
    ],
)
def test_the_goals_are_judged(
    changed: dict[str, object], status: int, draw: Draw
) -> None:
    drawn, said = draw(main, [GOOD, GOOD | changed], steps=3)
    assert drawn == status
    assert "median error" in said
