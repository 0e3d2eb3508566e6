"""The largest size is searched by trials; what is drawn comes from their rows alone."""

from typing import Any

import pytest

from experiments.largest_volume import main
from experiments.search import climb
from tests.experiments.conftest import Draw

OOM = "OOM when allocating tensor with shape[1,8] and type float on CPU:0"


def _row(
    way: str, size: int, error: str | None = None, **others: Any
) -> dict[str, Any]:
    row = {"kind": "training", "model": "unet", "way": way, "size": size}
    row |= {"memory_bytes": 2**20, "error": error, "attempt": 1}
    return row | ({} if error else {"peak_bytes": 2**19}) | others


def test_a_size_counts_only_if_its_own_trial_worked() -> None:
    tried = list(climb(lambda n: n < 70, start=32, coarse=32, fine=8))
    assert tried == [(32, True), (64, True), (96, False), (72, False)]


@pytest.mark.parametrize(("largest", "status"), [(16, 0), (12, 1)])
def test_the_claim_is_of_voxels_over_plain_keras(
    largest: int, status: int, draw: Draw
) -> None:
    rows = [
        {"kind": "probe", "model": "unet", "way": "remat:full", "error": "no"},
        _row("plain", 8),
        _row("plain", 16, OOM),
        _row("budget", largest, report={"swapped_out_bytes": 3}),
        _row("budget", largest + 8, OOM + " - and the process crashed"),
    ]
    drawn, said = draw(main, rows)
    assert drawn == status
    assert f"the callback up to {largest}^3 ({(largest / 8) ** 3:.2f} times" in said
    assert "process crashed" in said
