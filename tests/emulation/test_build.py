"""The card is compiled once, whole or not at all.

A compiler that only touches its output stands for g++ here.
"""

import errno
import os
import platform
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import pytest

from lms.emulation import build
from lms.errors import UnsupportedError

pytestmark = pytest.mark.skipif(
    find_spec("tensorflow") is None,
    reason="TensorFlow is missing: nothing to build for",
)

TOUCH = 'while [ "$1" != "-o" ]; do shift; done; touch "$2"'
BUILD = "from lms.emulation.build import built; print(built())"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LMS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "emulation"


def compiler(folder: Path, body: str = TOUCH) -> str:
    """A program that notes each call and does what `body` says."""
    path = folder / "compiler"
    path.write_text(f'#!/bin/sh\necho x >> "{folder}/calls"\n{body}\n')
    path.chmod(0o755)
    return str(path)


def start(cxx: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BUILD],
        env={**os.environ, "CXX": cxx},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_is_compiled_once_and_says_so(
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path))
    folder = build.built()
    said = f"Compiling the emulated card for TensorFlow {build._version()}: one to four"
    assert f"{said} minutes, once.\n" in capsys.readouterr().err
    names = {path.name for path in folder.iterdir()}
    assert {build.COMPUTING, build.DRY, build.DRIVER, "libcudnn.so.9"} <= names
    calls = (tmp_path / "calls").read_text()
    assert build.built() == folder
    assert (tmp_path / "calls").read_text() == calls
    assert capsys.readouterr().err == ""
    (folder / "libcudnn.so.9").unlink()  # as one who cleans up old files does
    assert {path.name for path in build.built().iterdir()} == names
    monkeypatch.setattr(build.missing, "__file__", str(tmp_path / "calls"))
    assert build.built() != folder


def test_a_missing_function_is_told_unless_no_step_needs_it() -> None:
    names = ["cuGetExportTable", "cuFuncGetModule"]
    needless, needed = build.missing.missing_functions(names).splitlines()[-3:-1]
    assert "cuGetExportTable(" in needless
    assert "return 801;" in needless
    assert "is missing" not in needless
    assert "cuFuncGetModule is missing" in needed


def test_two_that_start_at_once_compile_once(cache: Path, tmp_path: Path) -> None:
    cxx = compiler(tmp_path, f"sleep 0.2; {TOUCH}")
    first, second = start(cxx), start(cxx)
    said = [process.communicate(timeout=60) for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0)
    assert said[0][0] == said[1][0]
    alone = len(build._LIBRARIES) + 3
    assert len((tmp_path / "calls").read_text().split()) == alone


def test_where_files_cannot_be_locked_each_compiles_for_itself(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_lock = Mock(side_effect=OSError(errno.ENOLCK, "No locks available"))
    monkeypatch.setattr(build.fcntl, "flock", no_lock)
    monkeypatch.setenv("CXX", compiler(tmp_path))
    other = cache / "unfinished-other"
    other.mkdir(parents=True)
    folder = build.built()
    build._build(build._tools(), folder)  # as if the other one had been faster
    assert {path.name for path in cache.iterdir()} == {folder.name, "lock", other.name}


def test_a_temporary_folder_that_others_can_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMS_CACHE", "off")
    monkeypatch.setenv("CXX", compiler(tmp_path))
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path))
    folder = build.built().parent
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o770)
    with pytest.raises(UnsupportedError, match=r"you alone can write.* mode 770"):
        build.built()


def test_a_build_that_was_killed_leaves_nothing_that_counts(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = start(compiler(tmp_path, "sleep 5"))
    while not list(cache.glob("unfinished-*")):
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    monkeypatch.setenv("CXX", compiler(tmp_path))
    folder = build.built()
    assert {path.name for path in cache.iterdir()} == {folder.name, "lock"}


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("CXX", "failing", "compile the emulated card: no such header"),
        ("CXX", "no-such-compiler", r"got no 'no-such-compiler'\. Install"),
        ("LMS_CACHE", "failing", r"folder that can be written.*LMS_CACHE"),
    ],
)
def test_what_stops_a_build_is_said_and_nothing_is_left(
    variable: str,
    value: str,
    said: str,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing = compiler(tmp_path, "echo no such header >&2; exit 1")
    monkeypatch.setenv("CXX", failing)
    monkeypatch.setenv(variable, failing if value == "failing" else value)
    with pytest.raises(UnsupportedError, match=said):
        build.built()
    assert {path.name for path in cache.glob("*")} <= {"lock"}


def test_another_processor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    with pytest.raises(UnsupportedError, match=r"Linux on x86-64, got linux on arm64"):
        build.built()


@pytest.mark.parametrize(
    ("is_cuda", "version", "said"),
    [
        ("False", "2.21.0", "got one without, as `tensorflow-cpu` is"),
        ("True", "2.20.0", r"TensorFlow 2\.21\.x or 2\.22\.x, got 2\.20\.0"),
    ],
)
def test_another_tensorflow_is_refused(
    is_cuda: str,
    version: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    info = tmp_path / "tensorflow" / "python" / "platform" / "build_info.py"
    info.parent.mkdir(parents=True)
    info.write_text(f"build_info = dict([('is_cuda_build', {is_cuda})])")
    (tmp_path / "tensorflow" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(build.metadata, "version", lambda _: version)
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    with pytest.raises(UnsupportedError, match=said):
        build.built()
