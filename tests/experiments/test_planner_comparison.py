"""Both planners, measured and drawn at a small size."""

from pathlib import Path

import pytest

from experiments.lines import read_lines
from experiments.planner_comparison import main

pytestmark = [pytest.mark.tf, pytest.mark.slow]


def test_both_planners_are_measured_on_one_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, figure = tmp_path / "planners.jsonl", tmp_path / "planners.png"
    network = "--memory 256MiB --size 16 --filters 4 --depth 2"
    grid = "--thresholds 5 50 --aheads 3 --groupbys 0 --few 1 --parts 0.7"
    words = [*network.split(), *grid.split(), "--results", str(results)]
    assert main(["run", *words]) == 0
    _, (bounds, *rows) = read_lines(results)
    between = [row for row in rows if "variant" in row["settings"]]
    assert len(between) == 4
    assert any(row["recomputed_ops"] for row in between)
    others = [row for row in rows if row not in between]
    peaks = {row["planner"]: row["peak_bytes"] for row in others}
    assert peaks.keys() == {"none", "budget", "threshold"}
    assert bounds["lower_bound_bytes"] < peaks["budget"] < peaks["none"]
    main(["draw", "--results", str(results), "--figure", str(figure)])
    assert figure.exists()
    assert "TFLMS's" in capsys.readouterr().out
