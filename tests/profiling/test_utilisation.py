import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lms.emulation import emulate
from profiling import drawing
from profiling.counters import describe_gpus, read_counters
from profiling.record import read_result
from profiling.utilisation import summarise
from tests.profiling.recorded import Recorded


def sampled(api: Recorded, at: float) -> dict[str, Any]:
    return {"at": at, "gpus": [read_counters(api, 0)], "sampler_cpu_seconds": at / 100}


def test_samples_come_to_means_shares_and_rates() -> None:
    samples = [sampled(Recorded(), float(i)) for i in range(4)]
    samples[-1]["gpus"][0]["nvlink_sent"] += 6_000_000
    found = summarise({"gpus": describe_gpus(Recorded())}, samples)
    assert found["sampler_cores"] == pytest.approx(0.01)
    (gpu,) = found["gpus"]
    assert gpu["gpu_utilisation"] == pytest.approx(0.87)
    assert gpu["throttling"] == ["software power cap", "software thermal slowdown"]
    assert gpu["nvlink_sent"] == 2_000_000


def test_a_device_that_disappears_leaves_what_it_told_before() -> None:
    samples = [sampled(Recorded(), 0.0), sampled(Recorded(lost=True), 1.0)]
    found = summarise({"gpus": describe_gpus(Recorded())}, samples)
    assert found["gpus"][0]["gpu_utilisation"] == pytest.approx(0.87)
    assert found["gpus"][0]["gpu_utilisation_missing"] == 1
    assert found["curve"]["gpu_utilisation"] == [[0.87, None]]


def on_card(*words: str) -> subprocess.CompletedProcess[str]:
    """The command on an emulated card, whose driver tells little."""
    command = [sys.executable, "-m", "profiling.utilisation", *words]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 60}
    return emulate.run(command, memory="64MiB", start_new_session=True, **options)


@pytest.mark.usefixtures("card")
def test_the_exit_code_is_the_command_s_and_a_missing_counter_is_named(
    tmp_path: Path,
) -> None:
    path = tmp_path / "use.json"
    # As Ctrl-C does, it sends a signal to all; another would break its last second.
    text = "import os, time\ntry: os.killpg(0, 2); time.sleep(60)\n"
    text += "except KeyboardInterrupt: time.sleep(1); raise SystemExit(7)"
    done = on_card(f"--output={path}", "--", sys.executable, "-c", text)
    assert done.returncode == 7, done.stderr
    assert "busy: unknown" in done.stdout
    found = read_result(path)
    assert found["settings"]["exit_code"] == 7
    assert set(found["gpus"][0]["gpu_utilisation"]) == {"not available"}
    assert found["gpus"][0]["used_memory"] >= 0


@pytest.mark.usefixtures("card")
def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    done = on_card(f"--output={tmp_path}/use.json", "--", "no-such-program")
    assert done.returncode == 2
    assert "got 'no-such-program'" in done.stderr


def test_each_gpu_is_drawn_and_what_it_did_not_tell_is_no_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(drawing, "save", lambda figure, _: drawn.append(figure))
    told = [[0.8, None], [0.5, 0.5], [None, None]]
    result = {"device": "d", "commit": "c", "machine": {"processor": "p", "cores": 2}}
    result |= {"seconds": 2, "curve": {"at": [0, 1], "gpu_utilisation": told}}
    drawing.FIGURES["utilisation"]({"run": result}, tmp_path)
    titles = [axes.get_title(loc="left") for axes in drawn[0].axes]
    assert titles == ["run, GPU 0: mean 80%", "run, GPU 1: mean 50%"]
