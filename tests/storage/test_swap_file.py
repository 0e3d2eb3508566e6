"""A file that holds what memory cannot, and leaves nothing behind."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lms.errors import HostMemoryError
from lms.storage.swap_file import SwapFile, check_folder, free_bytes
from lms.units import MIB

_WAITS = """
import sys
from pathlib import Path
from lms.storage.swap_file import SwapFile
file = SwapFile(Path(sys.argv[1]), 64 << 20)
print("there", flush=True)
sys.stdin.read()
"""


def test_bytes_come_back_from_their_places(tmp_path: Path) -> None:
    file = SwapFile(tmp_path, MIB)
    file.write(5, memoryview(b"first"))
    file.write(MIB - 4, memoryview(b"last"))
    room = bytearray(5)
    file.read(5, memoryview(room))
    assert room == b"first"
    assert not list(tmp_path.iterdir())  # it has no name
    file.close()


def test_what_comes_in_parts_is_read_and_written_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, pwrite, preadv = SwapFile(tmp_path, 64), os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda f, data, at: pwrite(f, data[:3], at))
    monkeypatch.setattr(os, "preadv", lambda f, into, at: preadv(f, [into[0][:3]], at))
    file.write(0, memoryview(b"0123456789"))
    room = bytearray(10)
    file.read(0, memoryview(room))
    assert room == b"0123456789"
    with pytest.raises(OSError, match="ends too early"):
        file.read(60, memoryview(bytearray(8)))


def test_a_full_disk_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(HostMemoryError, match=r"must have room for 1.00 MiB .* has "):
        SwapFile(tmp_path, MIB)


def test_more_than_the_disk_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HostMemoryError, match="Delete files there"):
        SwapFile(tmp_path, free_bytes(tmp_path) + (1 << 40))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_no_bytes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WAITS, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        files = [str(p.readlink()) for p in Path(f"/proc/{process.pid}/fd").iterdir()]
        held = [name for name in files if str(tmp_path) in name]
        process.send_signal(signal.SIGKILL)
    assert len(held) == 1
    assert held[0].endswith("(deleted)")  # its bytes belong to the process alone
    assert not list(tmp_path.iterdir())


def test_a_folder_must_be_one_and_not_in_memory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ValueError, match="must be a folder that exists"):
        check_folder(file)
    if Path("/dev/shm").is_dir():
        with pytest.raises(ValueError, match="which lies in memory"):
            check_folder("/dev/shm")
    assert check_folder(str(tmp_path)) == tmp_path
