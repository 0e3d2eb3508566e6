"""Several workers: a ring by hand, and goals that are met or not."""

from typing import Any

import pytest

from experiments.scaling import main, ring_seconds
from lms.units import MIB
from tests.experiments.conftest import Draw


def test_a_ring_s_seconds_by_hand() -> None:
    # Three workers, thirds of 30 bytes: four sends of 10 bytes at 5 bytes a second.
    assert ring_seconds(30, 3, 5.0) == pytest.approx(4 * 10 / 5)


def _rows(predicted: float, gradients: int) -> list[dict[str, Any]]:
    def row(kind: str, workers: int, step: float) -> dict[str, Any]:
        known = {"kind": kind, "workers": workers, "memory_bytes": 20 * MIB}
        known |= {"step_seconds": [step] * 4, "reduction_seconds": 0.01}
        known |= {"peaks": [10 * MIB] * workers}
        return known | {"predicted_peaks": [int(predicted * MIB)] * workers}

    there = [row("together", 2, 0.2), row("apart", 2, 0.1)]
    return [*there, {"kind": "gradients", "workers": 1, "gradient_bytes": gradients}]


@pytest.mark.parametrize(
    ("predicted", "gradients", "status"),
    [(10.5, 10 * MIB, 0), (12, 10 * MIB, 1), (10.5, 10_000 * MIB, 1)],
)
def test_peaks_and_published_efficiencies_are_goals(
    predicted: float, gradients: int, status: int, draw: Draw
) -> None:
    drawn, said = draw(main, _rows(predicted, gradients), size=8)
    assert drawn == status
    assert "2 workers train at 50% of" in said
