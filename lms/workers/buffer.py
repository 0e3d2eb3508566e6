"""A buffer of parameters that outlives those who share it: `read`, `push`, `members`.

    /dev/shm/tflms-NAME:  header | slot 0: count, copy, copy | slot 1: ...

Each member has a slot of its own and is the only one who writes into it, so nobody ever
waits for another: a member that is stopped or killed while it writes stops nobody. It
writes into the copy that is not the last one, and then counts: what was counted is
whole. A reader whose copy was begun anew meanwhile reads again. A slot belongs to who
holds its lock, which Linux takes from a process that ends; what was pushed stays.

Assumption: writes of one process are seen by others in their order, as on x86-64.
Known weaknesses: one host. A user who may read and write the file is trusted.
"""

import fcntl
import json
import mmap
import os
import struct
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from lms.errors import UnsupportedError, WorkersError
from lms.units import Seconds

__all__ = ["BUFFER_VARIABLE", "SLOTS", "Buffer", "Member", "buffer_path"]

# Says which buffer it is: `python -m lms launch --groups` sets it.
BUFFER_VARIABLE: Final = "LMS_BUFFER"

# The most members at one time.
SLOTS: Final = 64

_VERSION: Final = 1  # of this layout of the file
_HEAD: Final = 4096  # bytes before the first slot, and before each slot's copies
_READS: Final = 100  # a reader gives up a slot whose writer is faster than it is

_PATIENCE: Final[Seconds] = 15.0
_POLL: Final[Seconds] = 0.05

_FOLDER: Final = Path("/dev/shm")  # POSIX shared memory


def buffer_path(name: str) -> Path:
    """The file of a buffer.

    Raises:
        ValueError: If it is no name.
        UnsupportedError: If this system has no POSIX shared memory.
    """
    if not name or "/" in name:
        raise ValueError(
            f"a buffer must have a name without '/', got {name!r}. Use letters."
        )
    if not _FOLDER.is_dir():
        raise UnsupportedError(f"loose groups need {_FOLDER}, as Linux has it.")
    return _FOLDER / f"tflms-{name}"


class Member(NamedTuple):
    """One who has pushed: its place, how often, the last one's step, seconds since."""

    slot: int
    pushes: int
    step: int
    age: Seconds


class Buffer:
    """A buffer that is open, with a slot of one's own; it is made by who comes first.

    Args:
        name: Its name on this host.
        like: Arrays of the shapes and types that are shared, by name.

    Raises:
        WorkersError: If it is of another model, or all slots are taken.
    """

    def __init__(self, name: str, like: Mapping[str, Any]) -> None:
        self.path = buffer_path(name)
        self._like = {key: np.asarray(value) for key, value in like.items()}
        self._size = sum(one.nbytes for one in self._like.values())
        self._pitch = _HEAD + 2 * -(-self._size // _HEAD) * _HEAD
        self._open()

    def push(self, values: Sequence[Any], step: int) -> None:
        """Let all see these values of a step, in the order of `like`: all, or none.

        A buffer that was lost is made anew.
        """
        if not self._is_there():
            self.close()
            self._open()
        count = int(self._counts[self.slot, 0])
        target = self._copy(self.slot, count + 1)
        place = 0
        for value, like in zip(values, self._like.values(), strict=True):
            own = np.ascontiguousarray(value, like.dtype).reshape(-1).view(np.uint8)
            target[place : place + own.size] = own
            place += own.size
        self._counts[self.slot, 1] = time.monotonic_ns()
        self._counts[self.slot, 2] = step
        self._counts[self.slot, 0] = count + 1

    def begin(self, values: Sequence[Any]) -> tuple[int, list[Any]]:
        """The step and values that were pushed last; these are, if there are none.

        So all begin alike. Who has begun and does not go on is waited for 15 seconds.
        """
        until = time.monotonic() + _PATIENCE
        while not self._lock(0) and time.monotonic() < until:
            time.sleep(_POLL)
        try:
            if not self.members():
                self.push(values, 0)
            pushed = self.read()
            last = next(one for one in self.members() if one.slot in pushed)
            return last.step, pushed[last.slot][1]
        finally:
            self._set_lock(fcntl.F_UNLCK, 0)

    def read(self) -> dict[int, tuple[int, list[Any]]]:
        """Read the last values of all who ever pushed: how many pushes, and arrays."""
        found = {}
        for member in self.members():
            values = self._read(member.slot)
            if values is not None:
                found[member.slot] = values
        return found

    def members(self) -> list[Member]:
        """All who ever pushed, the one who did so last first."""
        now = time.monotonic_ns()
        found = [
            Member(slot, int(pushes), int(step), (now - int(at)) / 1e9)
            for slot, (pushes, at, step) in enumerate(self._counts)
            if pushes
        ]
        return sorted(found, key=lambda member: member.age)

    def close(self) -> None:
        """Leave the slot; what was pushed stays."""
        del self._counts, self._bytes
        os.close(self._file)

    def _read(self, slot: int) -> tuple[int, list[Any]] | None:
        for _ in range(_READS):
            count = int(self._counts[slot, 0])
            whole = self._copy(slot, count).copy()
            if int(self._counts[slot, 0]) == count:
                return count, self._arrays(whole)
        return None

    def _arrays(self, whole: Any) -> list[Any]:
        ends = np.cumsum([one.nbytes for one in self._like.values()])
        parts = zip(np.split(whole, ends[:-1]), self._like.values(), strict=True)
        return [part.view(like.dtype).reshape(like.shape) for part, like in parts]

    def _copy(self, slot: int, count: int) -> Any:
        half = (self._pitch - _HEAD) // 2
        begin = _HEAD + slot * self._pitch + _HEAD + (count % 2) * half
        return self._bytes[begin : begin + self._size]

    def _open(self) -> None:
        self._make()
        self._file = os.open(self.path, os.O_RDWR)
        if os.pread(self._file, len(self._header()), 0) != self._header():
            os.close(self._file)
            raise WorkersError(
                f"the buffer {self.path.name} must be of this model, got one of "
                "another model, or of another version. Name another buffer, or "
                f"delete {self.path}."
            )
        self._bytes = np.frombuffer(mmap.mmap(self._file, 0), np.uint8)
        slots = self._bytes[_HEAD:].reshape(SLOTS, self._pitch)
        self._counts = slots[:, :24].view(np.uint64)
        self.slot = self._claim()

    def _header(self) -> bytes:
        """Bytes that differ between buffers of unlike models."""
        told = [
            (key, one.shape, one.dtype.str, _VERSION) for key, one in self._like.items()
        ]
        return zlib.crc32(json.dumps(told).encode()).to_bytes(8, "little")

    def _is_there(self) -> bool:
        try:
            return self.path.stat().st_ino == os.fstat(self._file).st_ino
        except FileNotFoundError:
            return False

    def _make(self) -> None:
        """Make it whole under another name, then give it its own if nobody has."""
        if self.path.exists():
            return
        own = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        with own.open("wb") as file:
            file.write(self._header())
            file.truncate(_HEAD + SLOTS * self._pitch)
        try:
            self.path.hardlink_to(own)
        except FileExistsError:
            pass
        finally:
            own.unlink()

    def _claim(self) -> int:
        for slot in range(SLOTS):
            at = _HEAD + slot * self._pitch
            if self._lock(at):
                os.posix_fallocate(self._file, at, self._pitch)  # or fail before a step
                return slot
        os.close(self._file)
        raise WorkersError(
            f"a buffer must have {SLOTS} members at most, got more. Use fewer groups."
        )

    def _lock(self, at: int) -> bool:
        """Take the lock of a byte, if nobody has it."""
        try:
            self._set_lock(fcntl.F_WRLCK, at)
        except OSError:
            return False
        return True

    def _set_lock(self, kind: int, at: int) -> None:
        """A lock of the open file, not of the process: fcntl(2), struct flock."""
        lock = struct.pack("hhqqi", kind, os.SEEK_SET, at, 1, 0)
        fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, lock)
