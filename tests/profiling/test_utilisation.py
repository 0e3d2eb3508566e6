import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lms.emulation import emulate
from lms.machine.inventory import NoDriverError
from profiling import utilisation
from profiling.counters import describe_gpus, read_counters
from profiling.record import read_result
from profiling.utilisation import summarise
from tests.profiling.recorded import Recorded


def sampled(api: Recorded, at: float) -> dict[str, Any]:
    return {"at": at, "gpus": [read_counters(api, 0)], "sampler_cpu_seconds": at / 100}


def test_samples_come_to_means_and_shares() -> None:
    api = Recorded()
    head = {"gpus": describe_gpus(api)}
    found = summarise(head, [sampled(api, float(i)) for i in range(4)])
    assert found["sampler_cores"] == pytest.approx(0.01)
    (gpu,) = found["gpus"]
    assert gpu["gpu_utilisation"] == pytest.approx(0.87)
    assert gpu["throttling"] == ["software power cap", "software thermal slowdown"]


def test_nvlink_counters_become_a_rate() -> None:
    head = {"gpus": describe_gpus(Recorded())}
    samples = [sampled(Recorded(), 0.0), sampled(Recorded(), 2.0)]
    samples[1]["gpus"][0]["nvlink_sent"] += 6_000_000
    (gpu,) = summarise(head, samples)["gpus"]
    assert gpu["nvlink_sent"] == 3_000_000


def test_a_device_that_disappears_leaves_what_it_told_before() -> None:
    head = {"gpus": describe_gpus(Recorded())}
    samples = [sampled(Recorded(), 0.0), sampled(Recorded(lost=True), 1.0)]
    found = summarise(head, samples)
    assert found["gpus"][0]["gpu_utilisation"] == pytest.approx(0.87)
    assert found["gpus"][0]["gpu_utilisation_missing"] == 1
    assert found["curve"]["gpu_utilisation"] == [[0.87, None]]


def on_card(*words: str) -> subprocess.CompletedProcess[str]:
    """The command on an emulated card, whose driver tells little."""
    command = [sys.executable, "-m", "profiling.utilisation", *words]
    return emulate.run(
        command, memory="64MiB", capture_output=True, text=True, timeout=60
    )


def test_the_exit_code_is_the_command_s_and_a_missing_counter_is_named(
    tmp_path: Path,
) -> None:
    path = tmp_path / "use.json"
    program = [sys.executable, "-c", "raise SystemExit(7)"]
    done = on_card(f"--output={path}", "--interval=0.02", "--", *program)
    assert done.returncode == 7, done.stderr
    assert "busy: not told" in done.stdout
    found = read_result(path)
    assert found["settings"]["exit_code"] == 7
    assert set(found["gpus"][0]["gpu_utilisation"]) == {"not available"}
    assert found["gpus"][0]["used_memory"] >= 0


def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    done = on_card(f"--output={tmp_path}/use.json", "--", "no-such-program")
    assert done.returncode == 2
    assert "got 'no-such-program'" in done.stderr


def test_without_a_driver_the_code_is_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> Any:
        raise NoDriverError("no NVIDIA driver found", reason="not found")

    monkeypatch.setattr(utilisation, "open_nvml", refuse)
    assert utilisation.main([f"--output={tmp_path}/use.json", "--", "true"]) == 3
    assert "no NVIDIA driver found" in capsys.readouterr().err
