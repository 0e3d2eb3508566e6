"""How fast a disk takes and gives what is swapped: not how fast the page cache does."""

import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from lms.errors import HostMemoryError
from lms.machine.hardware import Hardware
from lms.storage.swap_file import SwapFile
from lms.units import MIB, format_bytes

__all__ = ["measured_rates", "with_file_rates"]

# Written and read in pieces: large enough that calls do not matter.
_PIECE, _PIECES = 4 * MIB, 8


def with_file_rates(hardware: Hardware, folder: Path | None) -> Hardware:
    """The hardware with the rates of files in a folder; None leaves them.

    Args:
        hardware: The device and its link.
        folder: Where files may be.
    """
    if folder is None:
        return hardware
    write, read = measured_rates(folder)
    return replace(hardware, file_write=write, file_read=read)


@cache
def measured_rates(folder: Path) -> tuple[float, float]:
    """Bytes per second that are written and read there, once the disk has them.

    Raises:
        HostMemoryError: If the folder does not take them.
    """
    size = _PIECE * _PIECES
    data = np.random.default_rng(0).bytes(_PIECE)
    file = SwapFile(folder, size)
    try:
        begun = time.perf_counter()
        for number in range(_PIECES):
            file.write(number * _PIECE, memoryview(data))
        file.forget_cached()
        written, room = time.perf_counter(), memoryview(bytearray(_PIECE))
        for number in range(_PIECES):
            file.read(number * _PIECE, room)
        ended = time.perf_counter()
    except OSError as error:
        raise HostMemoryError(
            f"`swap_folder` must take {format_bytes(size)} to be measured, "
            f"{str(folder)!r} does not ({error.strerror}). Name another folder."
        ) from error
    finally:
        file.close()
    return size / (written - begun), size / (ended - written)
