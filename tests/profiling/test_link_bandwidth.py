import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.progress import Progress

from lms.emulation import emulate
from lms.emulation.card import LinkRates
from lms.machine.inventory import NoDriverError
from lms.units import MIB
from profiling import cuda, link_bandwidth, overhead, utilisation
from profiling.record import read_result


@pytest.mark.usefixtures("card")
def test_no_copy_is_faster_than_the_link(tmp_path: Path) -> None:
    words = ["--largest=1MiB", "--smallest=16KiB", "--seconds=0.02"]
    words.append(f"--output={tmp_path}/link.json")
    command = [sys.executable, "-m", "profiling.link_bandwidth", *words]
    link = LinkRates(h2d=4e8, d2h=2e8, latency=1e-4)
    emulate.run(command, memory="64MiB", link=link, check=True, timeout=120)
    result = read_result(tmp_path / "link.json")
    fits = {fit["directions"]: fit["bandwidth"] for fit in result["fits"]}
    assert 0 < fits["h2d"] <= 4e8 * 1.01
    assert 0 < fits["d2h"] <= 2e8 * 1.01
    assert result["stated"] == {"link": "PCIe 1 x16", "bandwidth": 4e9}


def test_what_is_measured_and_for_how_long_is_said_first() -> None:
    about = {"memories": ["pinned", "pageable"]}
    settings = {"smallest": 4096, "largest": 16384, "seconds_per_point": 0.5}
    said = link_bandwidth._announced(about, settings)
    assert "3 sizes to 16.00 KiB, h2d, d2h, both, from pinned and pageable" in said
    assert "about 9 s at 10 GB/s" in said


@pytest.mark.parametrize("command", [link_bandwidth, overhead, utilisation])
def test_without_a_driver_the_exit_code_and_the_words_say_so(
    command: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse() -> Any:
        raise NoDriverError("no NVIDIA driver found")

    first = "describe_link" if command is link_bandwidth else "open_gpus"
    monkeypatch.setattr(command, first, refuse)
    subject = [] if command is link_bandwidth else ["true"]
    assert command.main([f"--output={tmp_path}/it.json", *subject]) == 3
    assert "no NVIDIA driver found" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_measured_is_refused_at_once() -> None:
    about = {"memory": 64 * MIB, "count": 2}
    small = ["--smallest=1MiB", "--largest=1MiB"]
    for words, said in ((["--devices=3"], "1 to the 2 that"), (small, "two powers")):
        options = link_bandwidth._parser().parse_args(["--output=it.json", *words])
        with pytest.raises(ValueError, match=said):
            link_bandwidth._settings(options, about)


def test_all_devices_copy_at_once_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_bandwidth, "_at_once", lambda count, _: [1e9] * count)
    about = {"devices": 3, "largest": MIB, "seconds_per_point": 1, "memories": [""]}
    rows = link_bandwidth._measure_together(about, about, Progress())
    assert [row["devices"] for row in rows] == [1] * 3 + [2] * 3 + [3] * 3


def test_a_device_that_cannot_copy_ends_the_others() -> None:
    with pytest.raises(link_bandwidth.LMSError, match="could not copy on 2 devices"):
        link_bandwidth._at_once(2, (1024, "neither", True, 0.01))


def test_advice_is_that_of_the_error() -> None:
    driver = SimpleNamespace(cuGetErrorName=lambda *_: 0)
    for code, advice in ((2, "--largest"), (100, "hides GPUs"), (719, "nvidia-smi")):
        with pytest.raises(cuda.CudaError, match=advice):
            cuda._check(driver, "cuMemAlloc", code)
