"""The commands of the case study in one device memory, at tiny sizes."""

from pathlib import Path
from typing import Any

import pytest

from experiments.ledger import write_lines
from experiments.unet3d_sizes import main

TRAINED: dict[str, Any] = {
    "peak_bytes": 100 * 2**20,
    "epoch_seconds": [3.0, 1.0],
    "error": None,
}
OUT: dict[str, Any] = {"error": "OOM when allocating tensor with shape[1,56,56,56,8]"}


def _rows(*sizes: int) -> list[dict[str, Any]]:
    """With plain Keras only the first trains, with the callback all."""
    swapped = {"swapped_out_bytes": 7 * 2**20, "replans": 1}
    plain = {"swapped_out_bytes": 0, "replans": 0}
    with_support = [{"support": "with", "size": s} | TRAINED | swapped for s in sizes]
    return [
        {"support": "without", "size": sizes[0]} | TRAINED | plain,
        {"support": "without", "size": sizes[0] + 8} | OUT,
        *with_support,
        {"support": "with", "size": sizes[-1] + 8} | OUT,
    ]


@pytest.mark.parametrize(("sizes", "status"), [((48, 56, 64), 0), ((48, 56), 1)])
def test_the_case_studys_ratio_is_asked_for(
    sizes: tuple[int, ...],
    status: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = tmp_path / "sizes.jsonl"
    write_lines(results, {"memory": "128MiB"}, _rows(*sizes))
    assert main(["draw", "--results", str(results)]) == status
    assert f"{(sizes[-1] / 48) ** 3:.2f} times the voxels" in capsys.readouterr().out
