"""The validation on a GPU, rehearsed on an emulated card; and what it concludes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.gpu_validation.__main__ import main
from experiments.gpu_validation.claims import judge_rows
from experiments.gpu_validation.running import Runner
from lms.emulation import emulate
from profiling.record import circumstances, read_json

ROOT = Path(__file__).parents[2]
NET = {"size": 16, "filters": 4, "depth": 2, "way": "plain", "steps": 2, "seconds": 9}


def work(folder: Path, kind: str, settings: dict[str, Any], slow: float) -> Any:
    """What one trial's process found, on an emulated card in slow motion."""
    card: Any = {"card": "t4", "slow_motion": slow}
    output = folder / "trials" / f"{kind}.json"
    output.parent.mkdir(exist_ok=True)
    asked = {"kind": kind, "memory": None, "settings": settings}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "experiments.gpu_validation.worker"),
            *(f"--trial={json.dumps(asked)}", f"--output={output}"),
        ],
        env=emulate.environment("128MiB", **card) | {"LMS_CACHE": str(folder / "c")},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return read_json(output)


@pytest.mark.tf
@pytest.mark.slow
def test_a_swap_in_is_late_without_the_edge_and_starts_at_its_trigger_with_it(
    tmp_path: Path,
) -> None:
    found = work(tmp_path, "transports", {"flops": 1e9, "runs": 1}, 1000)["transports"]
    kernel = found["copy ops"]["kernel_seconds"]
    for way in ("copy ops", "send and receive"):
        assert found[way]["late_seconds"] < kernel / 2, way
        assert found[way]["hidden"] > 0.9, way
    for way in ("identity on the host", "copy ops, launches run ahead"):
        assert found[way]["late_seconds"] > kernel / 2, way


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.long
def test_a_planned_step_has_plain_s_numbers_and_its_copies_overlap_kernels(
    tmp_path: Path,
) -> None:
    plain = work(tmp_path, "train", NET | {"traced": 1}, 30)
    planned = {"way": "lms", "traced": 1, "budget": int(0.7 * plain["peak_bytes"])}
    lms = work(tmp_path, "train", NET | planned, 30)
    rows = [
        row("unet plain", **plain | {"settings": NET}),
        row("unet lms", **lms | {"settings": NET | planned}),
    ]
    claims = {claim.text.partition(": ")[2]: claim for claim in judge_rows(rows)}
    for text in (
        "numbers are plain's bit for bit",
        "the peak is at most the promise, in 2 steps",
        "as many bytes are copied as planned, h2d",
        "as many bytes are copied as planned, d2h",
    ):
        assert claims[text].holds, claims[text]
    assert lms["report"]["swap_count"] > 0
    assert lms["lanes"]["h2d_hidden"] > 0
    assert lms["nodes"]["ends"]["out _CopyFromGpuToHost GPU:0"] > 0


A_GPU = bool(list(Path("/dev").glob("nvidia[0-9]")))


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.skipif(not A_GPU, reason="no GPU is here: nothing is proved on one")
def test_the_short_form_holds_on_a_gpu(tmp_path: Path) -> None:
    assert main(["run", "--short", "--output", str(tmp_path)]) == 0


def test_without_a_gpu_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {"outcome": "failed", "error": "TensorFlow sees no GPU."}
    monkeypatch.setattr(Runner, "_tried", lambda *_: dict(told, seconds=1))
    assert main(["run", "--short", "--output", str(tmp_path / "new")]) == 3
    assert "TensorFlow sees no GPU" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def row(name: str, **more: Any) -> dict[str, Any]:
    found = {"name": name, "kind": "train", "may_fail": False, "seconds": 1.0}
    return found | {"outcome": "done", "error": None, "settings": {}} | more


@pytest.mark.parametrize(
    ("found", "holds"),
    [
        ({"hidden": 1.0, "late_seconds": 0.0, "kernel_seconds": 1.0}, True),
        ({"hidden": 0.2, "late_seconds": 0.0, "kernel_seconds": 1.0}, False),
        ({"hidden": 1.0, "late_seconds": 2.0, "kernel_seconds": 1.0}, False),
        ({"hidden": 16.36, "late_seconds": 0.0, "kernel_seconds": 1.0}, None),
        ({"error": "the trace shows no copy"}, None),
    ],
)
def test_a_share_above_one_is_not_measured(found: dict[str, Any], holds: Any) -> None:
    (claim,) = judge_rows([row("transports", transports={"copy ops": found})])
    assert claim.holds is holds


def test_what_ended_badly_fails_but_where_that_is_a_finding() -> None:
    rows = [row("a", outcome="crashed"), row("b", outcome="crashed", may_fail=True)]
    rows += [row("largest XLA", outcome="out of memory", may_fail=True)]
    rows += [row("largest lms")]
    assert [claim.holds for claim in judge_rows(rows)] == [False, True]


def test_importing_it_needs_no_package_that_a_gpu_machine_may_lack() -> None:
    code = (
        "import sys\n"
        "for name in ('matplotlib', 'nibabel', 'scipy', 'pynvml', 'tensorflow'):\n"
        "    sys.modules[name] = None\n"
        "import experiments.gpu_validation.__main__, profiling.record\n"
        "import experiments.gpu_validation.worker\n"
        "profiling.record.circumstances()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert ended.returncode == 0


def test_without_a_checkout_the_commit_is_what_one_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LMS_COMMIT", "0123abc")
    assert circumstances()["commit"] == "0123abc"
