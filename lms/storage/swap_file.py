"""Room on a disk for bytes that memory cannot hold: a file without a name.

It is deleted as soon as it is made, so no end of the process leaves it behind, and all
of its bytes are reserved before the first is written. It is read and written by calls
(pread, pwrite), never mapped: an error is an `OSError` where it happens, not the end of
the process.

Known weakness: the system may keep what is written in memory too, as long as nobody
needs that (the page cache).
"""

import os
import tempfile
import weakref
from pathlib import Path

import psutil

from lms.errors import HostMemoryError
from lms.units import Bytes, format_bytes

__all__ = ["SwapFile", "check_folder", "free_bytes"]

_IN_MEMORY = ("tmpfs", "ramfs")


def check_folder(folder: str | Path) -> Path:
    """A folder that can hold swapped tensors.

    Raises:
        ValueError: If it is none, cannot be written to, or lies in memory itself.

    Example:
        >>> check_folder("/nowhere")
        Traceback (most recent call last):
        ...
        ValueError: `swap_folder` must be a folder that exists, got '/nowhere'. Make it.
    """
    path = Path(folder)
    if not path.is_dir():
        raise ValueError(
            f"`swap_folder` must be a folder that exists, got {str(path)!r}. Make it."
        )
    if not os.access(path, os.W_OK | os.X_OK):
        raise ValueError(
            f"`swap_folder` must be a folder that may be written to, got {str(path)!r}."
            " Name another one, or change its permissions."
        )
    kind = _file_system(path)
    if kind in _IN_MEMORY:
        raise ValueError(
            f"`swap_folder` must be on a disk, got {str(path)!r}, which lies in memory "
            f"({kind}). Name a folder on a disk."
        )
    return path


def free_bytes(folder: Path) -> Bytes:
    """Bytes that a user's files may still take there."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


class SwapFile:
    """Bytes in a file that has no name.

    Args:
        folder: Where.
        size: How many.

    Raises:
        HostMemoryError: If there is no room for them.

    Example:
        >>> file = SwapFile(Path(tempfile.gettempdir()), 8)
        >>> file.write(4, memoryview(b"text"))
        >>> read = bytearray(4)
        >>> file.read(4, memoryview(read))
        >>> bytes(read)
        b'text'
        >>> file.close()
    """

    def __init__(self, folder: Path, size: Bytes) -> None:
        self.folder = folder
        self.size = size
        if size > free_bytes(folder):  # or other programs' last bytes would be taken
            raise HostMemoryError(_too_full(folder, size))
        self._number = _without_name(folder)
        self.close = weakref.finalize(self, os.close, self._number)
        try:
            os.posix_fallocate(self._number, 0, max(1, size))
        except OSError as error:
            self.close()
            raise HostMemoryError(_too_full(folder, size)) from error

    def write(self, offset: Bytes, source: memoryview) -> None:
        """Write bytes from a place on.

        Raises:
            OSError: If they cannot be written.
        """
        done = 0
        while done < len(source):
            done += os.pwrite(self._number, source[done:], offset + done)

    def read(self, offset: Bytes, into: memoryview) -> None:
        """Read bytes from a place on, as many as there is room for.

        Raises:
            OSError: If they cannot be read.
        """
        done = 0
        while done < len(into):
            got = os.preadv(self._number, [into[done:]], offset + done)
            if not got:
                raise OSError(f"the file in {str(self.folder)!r} ends too early")
            done += got

    def forget_cached(self) -> None:
        """Write all to the disk, and let the system's memory forget it."""
        os.fdatasync(self._number)
        os.posix_fadvise(self._number, 0, 0, os.POSIX_FADV_DONTNEED)


def _too_full(folder: Path, size: Bytes) -> str:
    return (
        f"`swap_folder` must have room for {format_bytes(size)} of swapped tensors, "
        f"{str(folder)!r} has {format_bytes(free_bytes(folder))}. Delete files there, "
        "or name another folder."
    )


def _without_name(folder: Path) -> int:
    """The number of a new file that is deleted already."""
    unnamed = getattr(os, "O_TMPFILE", None)
    if unnamed is not None:
        try:
            return os.open(folder, unnamed | os.O_RDWR, 0o600)
        except OSError:
            pass  # not every file system has such
    number, name = tempfile.mkstemp(prefix="lms-swap-", dir=folder)
    Path(name).unlink()
    return number


def _file_system(path: Path) -> str:
    """The kind of file system that a path is on; empty where nobody says."""
    try:
        mounts = psutil.disk_partitions(all=True)
    except OSError:
        return ""
    places = {Path(mount.mountpoint): mount.fstype for mount in mounts}
    resolved = path.resolve()
    known = (places[p] for p in (resolved, *resolved.parents) if p in places)
    return next(known, "")
