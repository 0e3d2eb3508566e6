"""The published table: predicted and trained at a small size, and drawn."""

from pathlib import Path
from typing import Any, cast

import pytest

from experiments.lines import read_lines, write_lines
from experiments.link_comparison import main
from experiments.link_trainings import _Pair
from experiments.servers import SERVERS, published_cost
from experiments.turns import Turns


class _Training:
    """A training of so many steps that says which of them it made beside another."""

    def __init__(self, steps: int, recorded: int) -> None:
        self.left = steps + recorded
        self.beside: list[bool] = []
        self.recorded = recorded

    @property
    def waits(self) -> bool:
        return self.left > 0

    def begin(self) -> None:
        self.left -= 1

    def finish(self) -> None:
        pass

    def end(self) -> tuple[None, dict[str, Any]]:
        timed = self.beside[: -self.recorded]
        recorded = self.beside[-self.recorded :]
        return None, {
            "step_seconds": [2.0 if beside else 1.0 for beside in timed],
            "stolen_seconds": [0.0] * len(timed),
            "recorded": [
                {"utilisation": 0.5 if beside else 0.9} for beside in recorded
            ],
            "peak_bytes": 7,
        }


def test_steps_alone_and_beside_another_are_told_apart() -> None:
    first, second = _Training(8, 4), _Training(4, 2)
    pair = _Pair(
        told={"way": "budget"},
        first=cast("Turns", first),
        second=cast("Turns", second),
        kinds=["idle", "idle"],
    )
    while pair.waits:
        for together in (False, True):
            pair.step(together=together)
            first.beside.append(together)
    row = pair.end(first.recorded)
    assert row["error"] is None
    assert (row["alone"]["seconds"], row["together"]["seconds"]) == (1.0, 2.0)
    assert row["alone"]["step_seconds"] == [1.0] * 4
    assert row["alone"]["recorded"] == {"utilisation": 0.9}
    assert row["together"]["recorded"] == {"utilisation": 0.5}


def _trained(way: str, size: int, alone: float, together: float) -> dict[str, Any]:
    figures = {"utilisation": 0.5, "h2d_throughput": 1e9, "d2h_throughput": 2e9}
    report = {"swapped_out_bytes": 5, "swapped_in_bytes": 6, "recomputed_ops": 3}
    return {
        "way": way,
        "size": size,
        "share": None,
        "error": None,
        "peak_bytes": 2**20,
        "report": None if way == "plain" else report,
        "alone": {"seconds": alone, "recorded": figures},
        "together": {"seconds": together, "recorded": figures},
    }


def test_costs_are_of_the_voxel_scaled_smaller_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, figure = tmp_path / "links.jsonl", tmp_path / "links.png"
    failed = {"way": "threshold", "size": 64, "share": 0.9, "error": "OOM when"}
    row = {"kind": "measured", "server": "x86", "memory_bytes": 2**21, "link_rate": 1.0}
    row["trainings"] = [
        _trained("plain", 32, 1.0, 1.1),
        _trained("plain", 64, 8.0, 8.8),
        failed,
        _trained("budget", 64, 12.0, 18.0),
    ]
    write_lines(results, {}, [row])
    assert main(["draw", "--results", str(results), "--figure", str(figure)]) == 0
    assert figure.exists()
    said = " ".join(capsys.readouterr().out.split())
    assert "published 2.87; trained here, budget 1.50." in said
    assert "without support 1.10" in said  # two at once, of which none copies
    assert "budget 1.50." in said.rpartition("Two trainings at once")[2]


def test_a_link_weighs_as_much_as_on_its_server() -> None:
    """Copying the peak once takes the part of a step that it took of the card's."""
    for name, size, rate in (("x86", 16 * 2**30, 12e9), ("AC922", 16 * 2**30, 64e9)):
        server = SERVERS[name]
        step = server.epochs[144] / 228
        assert server.scaled_rate(peak=size, step=step) == pytest.approx(rate)
        assert server.scaled_rate(peak=size // 16, step=step) == pytest.approx(
            rate / 16
        )
    assert published_cost("x86") > published_cost("AC922") > 1


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.long
def test_both_servers_are_predicted_trained_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, figure = tmp_path / "links.jsonl", tmp_path / "links.png"
    words = ["--sizes", "24", "32", "--filters", "16", "--depth", "2"]
    words += ["--small", "24", "--large", "32", "--channels", "4", "--levels", "3"]
    words += ["--steps", "3", "--record", "1", "--results", str(results)]
    assert main(["run", *words]) == 0
    _, rows = read_lines(results)
    predicted = [row for row in rows if row["kind"] == "predicted"]
    assert [(row["server"], row["planner"]) for row in predicted] == [
        (server, planner)
        for server in ("x86", "AC922")
        for planner in ("none", "budget", "threshold", "budget")
    ]
    planned = [row for row in predicted if row.get("planned")]
    assert planned, "the larger size must not fit where the smaller one just does"
    assert any(row["run_twice"] for row in planned), "a slow link: ops run again"
    for row in planned:
        assert row["peak_bytes"] <= row["memory_bytes"]
        assert row["step_seconds"] >= row["unplanned_seconds"]
        assert row["two_on_a_bus_seconds"] >= row["step_seconds"]
    measured = [row for row in rows if row["kind"] == "measured"]
    assert [row["server"] for row in measured] == ["x86", "AC922"]
    for row in measured:
        budget = row["trainings"][-1]
        assert (budget["way"], budget["error"]) == ("budget", None)
        assert budget["peak_bytes"] <= row["memory_bytes"]
        for kind in ("alone", "together"):
            assert len(budget[kind]["step_seconds"]) == 3
            assert 0 < budget[kind]["recorded"]["utilisation"] <= 1
    before = results.read_bytes()
    assert main(["run", *words]) == 0
    assert results.read_bytes() == before, "what is finished is kept"
    assert main(["draw", "--results", str(results), "--figure", str(figure)]) == 0
    assert figure.exists()
    assert "AC922" in capsys.readouterr().out
