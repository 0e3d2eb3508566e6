"""The published table, predicted at a small size, and drawn."""

from pathlib import Path

import pytest

from experiments.lines import read_lines
from experiments.link_comparison import main


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.long
def test_both_servers_are_predicted_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, figure = tmp_path / "links.jsonl", tmp_path / "links.png"
    words = ["--sizes", "24", "32", "--filters", "16", "--depth", "2"]
    assert main(["run", *words, "--results", str(results)]) == 0
    _, rows = read_lines(results)
    assert [(row["server"], row["planner"]) for row in rows] == [
        (server, planner)
        for server in ("x86", "AC922")
        for planner in ("none", "budget", "threshold", "budget")
    ]
    planned = [row for row in rows if row.get("planned")]
    assert planned, "the larger size must not fit where the smaller one just does"
    assert any(row["run_twice"] for row in planned), "a slow link: ops run again"
    for row in planned:
        assert row["peak_bytes"] <= row["memory_bytes"]
        assert row["step_seconds"] >= row["unplanned_seconds"]
        assert row["two_on_a_bus_seconds"] >= row["step_seconds"]
    assert main(["draw", "--results", str(results), "--figure", str(figure)]) == 0
    assert figure.exists()
    assert "AC922" in capsys.readouterr().out
