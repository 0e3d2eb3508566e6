import sys
from pathlib import Path
from typing import Any

import pytest

from lms.machine.nvml import NoDriverError, describe_gpus, open_nvml
from profiling import utilisation
from profiling.counters import read_counters
from profiling.record import read_result
from profiling.utilisation import summarise
from tests.profiling.recorded import A100, Recorded, RecordedError


def sampled(api: Recorded, at: float, running: int) -> dict[str, Any]:
    return {
        "at": at,
        "program": {"running": running, "threads": 2, "cpu_seconds": at / 2},
        "gpus": [read_counters(api, 0)],
        "sampler_cpu_seconds": at / 100,
    }


def test_samples_come_to_means_and_shares() -> None:
    api = Recorded()
    head = {"gpus": describe_gpus(api), "no_driver": None}
    found = summarise(head, [sampled(api, float(i), i % 2) for i in range(4)])
    assert found["program"]["utilisation"] == 0.5
    assert found["program"]["cores"] == pytest.approx(0.5)
    assert found["program"]["sampler_cores"] == pytest.approx(0.01)
    (gpu,) = found["gpus"]
    assert gpu["gpu_utilisation"] == pytest.approx(0.87)
    assert gpu["throttling"] == ["software power cap", "software thermal slowdown"]


def test_nvlink_counters_become_a_rate() -> None:
    head = {"gpus": describe_gpus(Recorded()), "no_driver": None}
    samples = [sampled(Recorded(), 0.0, 1), sampled(Recorded(), 2.0, 1)]
    samples[1]["gpus"][0]["nvlink_sent"] += 6_000_000
    (gpu,) = summarise(head, samples)["gpus"]
    assert gpu["nvlink_sent"] == 3_000_000


def test_a_counter_that_was_never_there_keeps_its_reason() -> None:
    api = Recorded(A100 | {"nvmlDeviceGetPowerUsage": RecordedError(3)})
    head = {"gpus": describe_gpus(api), "no_driver": None}
    (gpu,) = summarise(head, [sampled(api, 0.0, 1)])["gpus"]
    assert gpu["power"] == {"not available": "Not Supported"}


def test_a_device_that_disappears_leaves_what_it_told_before() -> None:
    head = {"gpus": describe_gpus(Recorded()), "no_driver": None}
    samples = [sampled(Recorded(), 0.0, 1), sampled(Recorded(lost=True), 1.0, 1)]
    found = summarise(head, samples)
    assert found["gpus"][0]["gpu_utilisation"] == pytest.approx(0.87)
    assert found["gpus"][0]["gpu_utilisation_missing"] == 1
    assert found["curve"]["gpu_utilisation"] == [[0.87, None]]


def test_the_exit_code_is_the_command_s(tmp_path: Path) -> None:
    path = tmp_path / "use.json"
    words = [f"--output={path}", "--interval=0.02", "--"]
    code = utilisation.main([*words, sys.executable, "-c", "raise SystemExit(7)"])
    assert code == 7
    assert read_result(path)["settings"]["exit_code"] == 7


def test_a_program_that_computes_is_seen_to_run(tmp_path: Path) -> None:
    path = tmp_path / "use.json"
    program = "import itertools; [i for i in range(30_000_000) if i < 0]"
    words = [f"--output={path}", "--interval=0.02", "--"]
    assert utilisation.main([*words, sys.executable, "-c", program]) == 0
    found = read_result(path)["program"]
    assert found["utilisation"] > 0
    assert found["samples"] > 1


def test_a_program_that_does_not_exist_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        utilisation.main([f"--output={tmp_path}/use.json", "--", "no-such-program"])
    assert "got 'no-such-program'" in capsys.readouterr().err


def test_where_a_gpu_is_needed_and_no_driver_is_the_code_is_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        open_nvml()
    except NoDriverError:
        pass
    else:
        pytest.skip("there is a driver")
    words = [f"--output={tmp_path}/use.json", "--need-gpu", "--", "true"]
    assert utilisation.main(words) == 3
    assert "no NVIDIA driver found" in capsys.readouterr().err
