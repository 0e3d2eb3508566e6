"""Steps over plain Keras's: ratios and bounds, from rows alone."""

from pathlib import Path

import pytest

from experiments.step_time_overhead import main
from tests.experiments.conftest import Draw

MEMORY = 2**23
PLAIN = [
    {
        "kind": "plain",
        "way": "plain",
        "size": size,
        "error": None,
        "peak_bytes": 2**23,
        "step_seconds": [9.0, 9.0, 1.0 * scale, 1.0 * scale],
        "stolen_seconds": [0.0] * 4,
    }
    for size, scale in ((8, 1), (16, 8))
]


def _planned(server: str, way: str, seconds: float, error: str | None = None) -> dict:
    row = {"kind": "planned", "server": server, "way": way, "size": 16, "error": error}
    row |= {
        "share": None,
        "memory_bytes": MEMORY,
        "link_rate": 1e6,
        "peak_bytes": 2**22,
    }
    report = {"swapped_out_bytes": 12_000_000, "swapped_in_bytes": 16_000_000}
    report["recomputed_ops"] = 3
    row |= {"report": report | {"replans": 1}}
    row |= {"step_seconds": [99.0, 99.0, seconds, seconds]}
    return row | {"stolen_seconds": [0.0] * 4}


def test_a_bound_is_what_the_busier_lane_carries(draw: Draw) -> None:
    rows = [
        *PLAIN,
        _planned("x86", "threshold", 40.0),
        _planned("x86", "budget", 20.0),
        _planned("AC922", "budget", 0.0, "OOM when allocating tensor with shape[3]"),
    ]
    drawn, said = draw(main, rows, sizes=[8, 16])
    assert drawn == 0
    assert (
        "by IBM's rule it takes 5.00 times (5.00 to 5.00) plain Keras's at 16^3" in said
    )
    assert "the callback's step takes 2.50 times (2.50 to 2.50) plain Keras's" in said
    assert "NVLink 2.0, scaled, nothing trained" in said
    assert "2.00" in said  # the bound: 16 MB at 1 MB/s over 8 s


def test_too_few_steps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="at least 3"):
        main(["run", "--steps", "2", "--results", str(tmp_path / "rows.jsonl")])
