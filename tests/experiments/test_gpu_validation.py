"""The validation on a GPU, rehearsed on an emulated device; and what it concludes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.gpu_validation.__main__ import main
from experiments.gpu_validation.catalogue import (
    FULL,
    PARTS,
    TINY,
    Trial,
    catalogue,
)
from experiments.gpu_validation.claims import failed_parts, judge_rows
from experiments.gpu_validation.drawing import draw
from experiments.gpu_validation.evidence import allocator_peaks, copied, swap_nodes
from experiments.gpu_validation.running import Runner, device_memory
from experiments.ledger import read_lines, write_lines
from lms.machine import emulate
from lms.machine.link import LinkRates
from lms.units import GIB, KIB, MIB
from profiling.record import circumstances, read_json
from profiling.spans import Span

ROOT = Path(__file__).parents[2]
SMALL = {"size": 16, "filters": 2, "depth": 2, "steps": 2}


def work(folder: Path, kind: str, settings: dict[str, Any], name: str) -> Any:
    """What one trial's process found, on an emulated device of 32 MiB."""
    output = folder / "trials" / f"{name}.json"
    output.parent.mkdir(exist_ok=True)
    asked = {"kind": kind, "device": "cpu", "memory": 32 * MIB, "settings": settings}
    words = [sys.executable, "-m", "experiments.gpu_validation.worker"]
    done = emulate.run(
        [*words, f"--trial={json.dumps(asked)}", f"--output={output}"],
        memory="32MiB",
        link=LinkRates(h2d=1e9, d2h=1e9),
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return read_json(output)


@pytest.mark.tf
@pytest.mark.slow
def test_the_machine_is_described(tmp_path: Path) -> None:
    found = work(tmp_path, "machine", {}, "machine")
    assert found["outcome"] == "done"
    assert found["computed_on"].endswith(found["device"])
    assert found["limit_bytes"] == 32 * MIB


@pytest.mark.tf
@pytest.mark.long
@pytest.mark.slow
def test_a_training_shows_that_tensors_left_and_numbers_stayed(tmp_path: Path) -> None:
    exact = SMALL | {"deterministic": True, "traced": 1}
    plain = work(tmp_path, "train", exact | {"way": "plain"}, "plain")
    budget = int(0.7 * plain["peak_bytes"])
    lms = work(tmp_path, "train", exact | {"way": "lms", "budget": budget}, "lms")
    assert lms["losses"] == plain["losses"]
    assert lms["weights_sha256"] == plain["weights_sha256"]
    swaps = lms["report"]["swap_count"]
    assert swaps > 0
    assert lms["nodes"]["ends"]["out PyFunc CPU:0"] == swaps
    assert lms["copied_bytes"]["d2h"] == lms["report"]["swapped_out_bytes"]
    assert lms["peak_bytes"] < plain["peak_bytes"]
    assert lms["allocator_peaks"]["bfc_cpu_allocator_for_gpu"] > 0
    assert (tmp_path / "traces" / "lms.xplane.pb.gz").exists()


@pytest.mark.tf
@pytest.mark.long
def test_the_callback_trains_with_the_same_numbers(tmp_path: Path) -> None:
    exact = SMALL | {"deterministic": True, "way": "plain"}
    plain = work(tmp_path, "train", exact, "plain")
    budget = int(0.5 * plain["peak_bytes"])
    fitted = work(tmp_path, "fit", exact | {"budget": budget}, "fit")
    assert fitted["report"]["swap_count"] > 0
    assert fitted["losses"] == plain["losses"]
    assert fitted["weights_sha256"] == plain["weights_sha256"]


@pytest.mark.tf
@pytest.mark.slow
def test_the_link_is_timed(tmp_path: Path) -> None:
    found = work(tmp_path, "link", {"largest": 65536, "seconds": 0.001}, "link")
    assert {fit["directions"] for fit in found["fits"]} == {"h2d", "d2h", "both"}
    assert found["hardware"]["h2d"] == 1e9


@pytest.mark.tf
@pytest.mark.long
def test_a_step_is_seen_over_time(tmp_path: Path) -> None:
    found = work(tmp_path, "timeline", SMALL | {"budget": "700KiB"}, "timeline")
    assert found["median"]["seconds"] > 0
    assert found["utilisation"]["program"]["samples"] > 0
    for label in ("measured", "predicted"):
        assert (tmp_path / "traces" / f"timeline.{label}.trace.json.gz").exists()


@pytest.mark.tf
@pytest.mark.long
@pytest.mark.parametrize(
    "way",
    ["threshold", "RematScope", "recomputation heuristics", "swapping heuristics"],
)
def test_other_ways_train(way: str, tmp_path: Path) -> None:
    options = {"timestamped_allocator": True}
    settings = SMALL | {"way": way, "layout": False, "gpu_options": options}
    found = work(tmp_path, "train", settings | {"precision": "mixed_float16"}, "way")
    assert found["outcome"] == "done"


A_GPU = bool(list(Path("/dev").glob("nvidia[0-9]")))


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.skipif(not A_GPU, reason="no GPU is here: nothing is proved on one")
def test_the_short_form_holds_on_a_gpu(tmp_path: Path) -> None:
    assert main(["run", "--short", "--output", str(tmp_path)]) == 0


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.skipif(A_GPU, reason="a GPU is here")
def test_without_a_gpu_it_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new"
    assert main(["run", "--short", "--output", str(folder)]) == 3
    assert "no GPU found" in capfd.readouterr().err
    assert not folder.exists()
    assert main(["draw", "--output", str(folder)]) == 2
    assert "Measure first" in capfd.readouterr().err


@pytest.mark.tf
@pytest.mark.long
def test_a_rehearsal_goes_on_where_it_ended(tmp_path: Path) -> None:
    words = ["run", "--short", "--device", "cpu", "--output", str(tmp_path)]
    main([*words, "--trials", "swap: plain"])
    _, before = read_lines(tmp_path / "results.jsonl")
    main(words)
    _, after = read_lines(tmp_path / "results.jsonl")
    assert after[: len(before)] == before
    assert [row["outcome"] for row in after] == ["done"] * 7
    assert draw(tmp_path / "results.jsonl", tmp_path / "figure.png") in (0, 1)
    assert (tmp_path / "figure.png").exists()


def test_names_are_unique_and_needs_come_first() -> None:
    for short in (True, False):
        seen: set[str] = set()
        for trial in catalogue(FULL, short=short):
            shares = [trial.share_of, trial.memory_of]
            needs = {*trial.needs, *(share[0] for share in shares if share)}
            assert needs <= seen
            assert trial.name not in seen
            seen.add(trial.name)
    assert [trial.name for trial in catalogue(FULL, short=False)] == [
        trial.name for trial in catalogue(TINY, short=False)
    ]


def test_the_short_form_takes_less_than_eight_minutes() -> None:
    limits = [trial.limit for trial in catalogue(FULL, short=True)]
    assert max(limits) < 0.35 * 480
    assert {trial.part for trial in catalogue(FULL, short=True)} == {0, 1, 2, 5}


def runner(folder: Path, said: list[Any], seconds: float = 60.0) -> Runner:
    return Runner(
        folder=folder,
        device="cpu",
        settings={},
        deadline=time.monotonic() + seconds,
        rows=[],
        say=said.append,
    )


@pytest.mark.tf
def test_a_trial_that_takes_too_long_is_ended_and_the_next_one_runs(
    tmp_path: Path,
) -> None:
    said: list[Any] = []
    slow = Trial(part=0, name="slow", kind="machine", limit=0.3)
    after = Trial(part=1, name="after", kind="train", limit=1.0, needs=("slow",))
    assert runner(tmp_path, said).run([slow, after]) == []
    assert [row["outcome"] for row in said] == ["timed out", "skipped"]
    assert "=== slow" in (tmp_path / "log.txt").read_text()


def test_what_there_is_no_time_for_is_left(tmp_path: Path) -> None:
    trial = Trial(part=0, name="machine", kind="machine", limit=9.0)
    assert runner(tmp_path, [], seconds=1.0).run([trial]) == ["machine"]
    assert not (tmp_path / "results.jsonl").exists()


def _recorded(folder: Path, rows: list[dict[str, Any]]) -> tuple[Runner, list[Trial]]:
    """A run whose trials end as they are told, and what was tried."""
    tried: list[Trial] = []
    own = runner(folder, [])

    class Recorded(Runner):
        def _try(self, trial: Trial) -> dict[str, Any]:
            tried.append(trial)
            return rows.pop(0)

    return Recorded(**{name: getattr(own, name) for name in Runner.__slots__}), tried


def test_a_device_may_be_a_part_of_another_trial_s_peak(tmp_path: Path) -> None:
    base = Trial(part=4, name="a", kind="train", limit=1.0)
    after = Trial(part=4, name="b", kind="train", limit=1.0, memory_of=("a", 1.05))
    ended = {"outcome": "done", "error": None}
    run, tried = _recorded(tmp_path, [ended | {"peak_bytes": 1000}, ended])
    assert run.run([base, after]) == []
    assert [trial.memory for trial in tried] == [None, 1050]


def test_without_its_needs_a_share_of_a_peak_is_not_tried(tmp_path: Path) -> None:
    after = Trial(part=4, name="b", kind="train", limit=1.0, memory_of=("a", 1.05))
    run, tried = _recorded(tmp_path, [])
    run.run([after])
    assert (tried, run.rows[0]["outcome"]) == ([], "skipped")


def test_an_op_without_determinism_is_a_finding(tmp_path: Path) -> None:
    error = "UnimplementedError: a deterministic GPU implementation is not available"
    failed = {"outcome": "failed", "error": error}
    run, tried = _recorded(tmp_path, [failed, {"outcome": "done", "error": None}])
    settings = {"deterministic": True}
    run.run([Trial(part=2, name="a", kind="train", limit=1.0, settings=settings)])
    assert [trial.settings["deterministic"] for trial in tried] == [True, False]
    assert run.rows[0]["not_deterministic"] == error


def test_results_are_copied_out_after_each_trial(tmp_path: Path) -> None:
    run, _ = _recorded(tmp_path / "run", [{"outcome": "done", "error": None}])
    run.copy_to = tmp_path / "safe"
    run.run([Trial(part=0, name="machine", kind="machine", limit=1.0)])
    _, rows = read_lines(tmp_path / "safe" / "results.jsonl")
    assert [row["name"] for row in rows] == ["machine"]


def test_a_small_gpu_gives_what_it_has() -> None:
    rows = [{"name": "machine", "limit_bytes": 10 * GIB + 5}]
    assert device_memory("gpu", 16 * GIB, rows) == 10 * GIB
    assert device_memory("gpu", 4 * GIB, rows) == 4 * GIB
    assert device_memory("gpu", None, rows) is None


def row(name: str, **more: Any) -> dict[str, Any]:
    number = PARTS.index("swap" if name.startswith("swap") else "headline")
    known = {"part": number, "name": name, "may_fail": False, "seconds": 1.0}
    return known | {"outcome": "done", "error": None} | more


PLAIN = row("swap: plain", losses=[1.0], weights_sha256="a", peak_bytes=100)
LMS = row(
    "swap: lms",
    losses=[1.0],
    weights_sha256="a",
    peak_bytes=60,
    median_seconds=1.0,
    settings={"budget": 60},
    report={
        "swap_count": 2,
        "swapped_out_bytes": 40,
        "fits_unplanned": False,
        "predicted_peak_bytes": 60,
        "predicted_seconds": 1.0,
    },
    nodes={"ends": {"out _CopyFromGpuToHost GPU:0": 2}, "transfers": {}},
    copied_bytes={"d2h device to pinned": 41.0},
    allocator_peaks={"gpu_host_bfc": 40},
)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, None),
        ({"losses": [1.5]}, "equal bit for bit"),
        ({"peak_bytes": 61 + 64 * KIB}, "within the budget"),
        ({"nodes": {"ends": {"out Identity CPU:0": 2}}}, "in the graph"),
        ({"copied_bytes": {}}, "copied in each step"),
        ({"copied_bytes": {"d2h device to pinned": 39.0}}, "copied in each step"),
        ({"outcome": "crashed", "error": "status -11"}, "crashed, status -11"),
        ({"outcome": "out of memory", "error": "OOM"}, "ends well: OOM"),
    ],
)
def test_the_swap_is_judged(changed: dict[str, Any], reason: str | None) -> None:
    rows = [PLAIN, LMS | changed]
    failures = failed_parts(rows, judge_rows(rows))
    if reason is None:
        assert failures == {}
    else:
        assert reason in failures["swap"][0]


def test_the_case_study_is_judged(tmp_path: Path) -> None:
    slow = row("192 lms", median_seconds=1.2, report=None, peak_bytes=5)
    rows = [slow, row("192 plain", outcome="out of memory", error="OOM")]
    rows.append(row("192 whole GPU", median_seconds=1.0, peak_bytes=9))
    claims = judge_rows(rows)
    (reason,) = failed_parts(rows, claims)["headline"]
    assert "1.200 times" in reason
    assert [claim.found for claim in claims][:3] == ["not run", "out of memory", "done"]
    write_lines(tmp_path / "results.jsonl", {}, rows)
    assert draw(tmp_path / "results.jsonl", None) == 1


def test_nothing_is_claimed_of_what_did_not_run() -> None:
    assert [claim.holds for claim in judge_rows([])] == [None]


def test_evidence_is_read_from_graphs_and_spans() -> None:
    node = SimpleNamespace(
        name="lms/3/model/conv/out",
        op="_CopyFromGpuToHost",
        device="/job:a/device:GPU:0",
    )
    sent = SimpleNamespace(
        name="edge",
        op="_Send",
        device="/job:a/device:GPU:0",
        attr={
            "send_device": SimpleNamespace(s=b"/job:a/device:GPU:0"),
            "recv_device": SimpleNamespace(s=b"/job:a/device:CPU:0"),
        },
    )
    found = swap_nodes([SimpleNamespace(node=[node, sent])])
    assert found == {
        "ends": {"out _CopyFromGpuToHost GPU:0": 1},
        "transfers": {"GPU:0 to CPU:0": 1},
    }
    details = "kind_src:device kind_dst:pinned size:4096 dest:0 async:1"
    copy = Span(
        plane="/device:GPU:0",
        line="Stream #1",
        name="MemcpyD2H",
        start=0.0,
        end=1.0,
        facts={"memcpy_details": details},
    )
    given = Span(
        plane="/host:CPU",
        line="1",
        name="MemoryAllocation",
        start=0.0,
        end=0.0,
        facts={"allocator_name": "gpu_host_bfc", "bytes_allocated": 7},
    )
    assert copied([copy], [], 2) == {"d2h device to pinned": 2048.0}
    assert allocator_peaks([copy, given]) == {"gpu_host_bfc": 7}


def test_importing_it_needs_no_package_that_a_gpu_machine_may_lack() -> None:
    code = (
        "import sys\n"
        "for name in ('matplotlib', 'nibabel', 'scipy', 'pynvml', 'tensorflow'):\n"
        "    sys.modules[name] = None\n"
        "import experiments.gpu_validation.__main__, profiling.record\n"
        "import experiments.gpu_validation.drawing, experiments.gpu_validation.worker\n"
        "profiling.record.circumstances()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert ended.returncode == 0


def test_without_a_checkout_the_commit_is_what_one_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LMS_COMMIT", "1a2b3c")
    assert circumstances()["commit"] == "1a2b3c"
