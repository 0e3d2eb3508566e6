import json
from pathlib import Path
from typing import Any

import pytest

from lms.emulation import emulate
from lms.simulation.timeline import Cause, Lane
from lms.units import MIB
from profiling import report
from profiling.record import read_result
from profiling.timelines import timeline_from_json
from tests.programs import python

# `test_measured` has timelines and stalls of recorded spans.
pytestmark = [pytest.mark.tf, pytest.mark.long]

LINK, FLOPS = 12e9, 3e11  # of the card: so slow that products are no small ops


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that all commands wrote on an emulated card in slow motion."""
    folder = tmp_path_factory.mktemp("steps")
    card = emulate.environment("64MiB", card="v100-pcie", slow_motion=100)
    environ = card | {"LMS_CARD_FLOPS": str(FLOPS)}
    words = ("-m", "tests.profiling.trials", str(folder))
    done = python(*words, env=environ, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    (folder / "stderr").write_text(done.stderr)
    return folder


@pytest.fixture(scope="module")
def step(folder: Path) -> dict[str, Any]:
    return read_result(folder / "step.json")


def test_the_measured_copies_are_those_of_the_plan(step: dict[str, Any]) -> None:
    report = step["report"]
    assert report["swapped_out_bytes"] > MIB
    for figures in (*step["steps"], step["predicted"]):
        assert figures["d2h_bytes"] == report["swapped_out_bytes"]
        assert figures["h2d_bytes"] == report["swapped_in_bytes"]


def test_no_copy_is_faster_than_the_emulated_link(step: dict[str, Any]) -> None:
    for figures in (step["median"], step["predicted"]):
        assert LINK / 50 < figures["h2d_throughput"] <= LINK * 1.01
        assert LINK / 50 < figures["d2h_throughput"] <= LINK * 1.01


def test_the_lanes_stay_within_the_step_and_the_device(step: dict[str, Any]) -> None:
    timeline = timeline_from_json(step["measured_timeline"])
    names = {interval.name for interval in timeline.lane(Lane.COMPUTE)}
    assert any("MatMul" in name for name in names)
    assert not any("/out" in name or "/get" in name for name in names)
    assert min(interval.start for interval in timeline.intervals) >= 0
    assert timeline.seconds <= max(step["step_seconds"])
    assert 0 < timeline.utilisation < 1
    assert MIB < timeline.device_peak < 64 * MIB


def test_waits_are_put_down_to_copies_of_the_plan(step: dict[str, Any]) -> None:
    timeline = timeline_from_json(step["measured_timeline"])
    copied = {i.name for i in timeline.intervals if i.lane is not Lane.COMPUTE}
    waits = [s for s in timeline.stalls if s.cause is not Cause.LAUNCH]
    assert waits
    assert {wait.tensor for wait in waits} <= copied


def test_costs_add_up_by_type_and_by_layer(folder: Path) -> None:
    costs = read_result(folder / "costs.json")
    assert costs["hardware"]["flops"] > FLOPS / 50  # as without slow motion
    for key in ("by_type", "by_layer"):
        total = sum(row["seconds"] for row in costs[key])
        assert total == pytest.approx(costs["seconds"])
        assert sum(row["ops"] for row in costs[key]) == costs["op_count"]
    assert any(row["name"].startswith("dense") for row in costs["by_layer"])


def test_overhead_compares_rounds_with_rounds(folder: Path) -> None:
    found = read_result(folder / "overhead.json")
    assert set(found["step_seconds"]) == {"nothing", "sampler", "timeline", "both"}
    assert [len(block) for block in found["step_seconds"]["both"]] == [2, 2]
    assert found["ratios"]["nothing"]["ratio"] == 1


def test_the_callback_watches_whole_executions_or_says_why(folder: Path) -> None:
    found = read_result(folder / "fit.json")
    assert found["settings"]["steps"] == [1, 3]
    assert found["watched"] == [0, 4]
    assert len(found["step_seconds"]) == 4
    said = (folder / "stderr").read_text()
    for words in ("Could not watch steps", "late.json is not written: no step"):
        assert said.count(words) == 1


def test_the_reporter_needs_the_files_alone(folder: Path, tmp_path: Path) -> None:
    files = [str(path) for path in sorted(folder.glob("*.json"))]
    assert report.main([*files, f"--output={tmp_path}"]) == 0
    written = {path.name for path in tmp_path.iterdir()}
    assert {"report.md", "step_step.png", "op_costs_costs.png"} <= written
    trace = json.loads((tmp_path / "step_step_measured.trace.json").read_text())
    assert any(event["name"].endswith("MatMul") for event in trace["traceEvents"])
    assert "| step | measured |" in (tmp_path / "report.md").read_text()
    assert report.main([*files, files[0], f"--output={tmp_path}"]) == 2  # one name
