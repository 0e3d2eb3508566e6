"""A buffer of parameters in shared memory that outlives its members.

    /dev/shm/tflms-NAME:  header | slot 0: count, copy, copy | slot 1: ...

Each member is the only writer of its slot, so no member waits for another: a member
that is stopped or killed while it writes stops no other. A push writes the older of two
copies, then raises the count: a counted copy is complete. A reader reads again if the
count changed meanwhile. A slot belongs to the process that holds its lock, which Linux
releases when the process ends; pushed values stay.

Assumption: writes of a process become visible in their order, as on x86-64.
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

# Names the buffer; `python -m lms launch --groups` sets this variable.
BUFFER_VARIABLE: Final = "LMS_BUFFER"

# Most members at one time.
SLOTS: Final = 64

_VERSION: Final = 1  # of this layout of the file
_HEAD: Final = 4096  # bytes before the first slot, and before each slot's copies
_READS: Final = 100  # reads of a slot that is written meanwhile, until it is left out

# Seconds that a beginner waits for another one, and between two looks.
_PATIENCE: Final[Seconds] = 15.0
_POLL: Final[Seconds] = 0.05

_FOLDER: Final = Path("/dev/shm")  # POSIX shared memory


def buffer_path(name: str) -> Path:
    """Return the path of a buffer's file.

    Raises:
        ValueError: If the name is empty or has a slash.
        UnsupportedError: If this system has no POSIX shared memory.
    """
    if not name or "/" in name:
        raise ValueError(
            f"a buffer must have a name without '/', got {name!r}. Use letters."
        )
    if not _FOLDER.is_dir():
        raise UnsupportedError(f"{_FOLDER} is missing. Run loose groups on Linux.")
    return _FOLDER / f"tflms-{name}"


class Member(NamedTuple):
    """A slot and its number of pushes; step and age in seconds of the last push."""

    slot: int
    pushes: int
    step: int
    age: Seconds


class Buffer:
    """An open buffer and this process's slot; the first member makes the file.

    Args:
        name: The buffer's name on this host.
        like: Arrays of the shared shapes and types, by name.

    Raises:
        WorkersError: If the buffer is of another model, or all slots are taken.
    """

    def __init__(self, name: str, like: Mapping[str, Any]) -> None:
        self.path = buffer_path(name)
        self._like = {key: np.asarray(value) for key, value in like.items()}
        self._size = sum(one.nbytes for one in self._like.values())
        self._pitch = _HEAD + 2 * -(-self._size // _HEAD) * _HEAD
        self._open()

    def push(self, values: Sequence[Any], step: int) -> None:
        """Publish values of a step, in the order of `like`: all values, or none.

        A buffer whose file was deleted is made anew.
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
        """Return step and values of the last push; the first member pushes its own.

        So all begin alike. A member that stops while it begins delays others by 15 s.
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
        """Read the last push of each slot: its count and its arrays."""
        found = {}
        for member in self.members():
            values = self._read(member.slot)
            if values is not None:
                found[member.slot] = values
        return found

    def members(self) -> list[Member]:
        """List members that ever pushed, the most recent push first."""
        now = time.monotonic_ns()
        found = [
            Member(slot, int(pushes), int(step), (now - int(at)) / 1e9)
            for slot, (pushes, at, step) in enumerate(self._counts)
            if pushes
        ]
        return sorted(found, key=lambda member: member.age)

    def close(self) -> None:
        """Release the slot; pushed values stay."""
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
        """Return a checksum of names, shapes, types and the layout's version."""
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
        """Write the file under a temporary name, then rename it unless it exists."""
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
                os.posix_fallocate(self._file, at, self._pitch)  # fails early
                return slot
        os.close(self._file)
        raise WorkersError(
            f"a buffer must have {SLOTS} members at most, got more. Use fewer groups."
        )

    def _lock(self, at: int) -> bool:
        """Try to take the lock of a byte."""
        try:
            self._set_lock(fcntl.F_WRLCK, at)
        except OSError:
            return False
        return True

    def _set_lock(self, kind: int, at: int) -> None:
        """Set a lock of the open file, not of the process: fcntl(2), struct flock."""
        lock = struct.pack("hhqqi", kind, os.SEEK_SET, at, 1, 0)
        fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, lock)
