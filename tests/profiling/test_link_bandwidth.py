import sys
from pathlib import Path
from typing import Any

import pytest

from lms.emulation import emulate
from lms.machine.hardware import LinkRates
from profiling import link_bandwidth
from profiling.record import read_result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one run on an emulated link of two speeds wrote."""
    folder = tmp_path_factory.mktemp("link")
    words = ["--largest=1MiB", "--smallest=16KiB", "--seconds=0.02"]
    words.append(f"--output={folder}/link.json")
    emulate.run(
        [sys.executable, "-m", "profiling.link_bandwidth", *words],
        memory="64MiB",
        link=LinkRates(h2d=4e8, d2h=2e8, latency=1e-4),
        check=True,
        timeout=120,
    )
    return folder


def test_no_copy_is_faster_than_the_link(folder: Path) -> None:
    result = read_result(folder / "link.json")
    fits = {fit["directions"]: fit["bandwidth"] for fit in result["fits"]}
    assert 0 < fits["h2d"] <= 4e8 * 1.01
    assert 0 < fits["d2h"] <= 2e8 * 1.01


def test_without_link_and_driver_the_exit_code_and_the_words_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> Any:
        raise link_bandwidth.LMSError("no NVIDIA driver found")

    monkeypatch.setattr(link_bandwidth, "describe_link", refuse)
    assert link_bandwidth.main([f"--output={tmp_path}/link.json"]) == 3
    assert "no NVIDIA driver found" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
