"""Counters and traces of this process's emulated card, kept by the card's driver."""

import ctypes
import os
from functools import cache
from typing import Any

from lms.emulation.build import DRIVER

__all__ = ["begin_trace", "counter", "end_trace", "now"]


@cache
def _driver() -> Any:
    library = ctypes.CDLL(DRIVER)
    if not hasattr(library, "lms_card_now"):
        raise OSError(
            f"{DRIVER} must be an emulated card's, got another driver's. Start the "
            "program with `python -m lms emulate`."
        )
    library.lms_card_counter.restype = ctypes.c_int64
    library.lms_card_now.restype = ctypes.c_double
    return library


def counter(name: str) -> int:
    """Read a counter of the card since the process began.

    Args:
        name: `h2d`, `d2h` or `d2d` for bytes copied; with `_copies` for their number,
            with `_pageable` for bytes of memory that was not pinned; `kernels`,
            `launches`, `computed`; `pinned_peak` in bytes; `busy_ns`, `busy_h2d_ns`,
            `busy_d2h_ns` for nanoseconds of the card's time; `races`, 0 where the card
            does not look for races.

    Raises:
        OSError: If the process has no emulated card.
        ValueError: If there is no such counter.
    """
    found = _driver().lms_card_counter(name.encode())
    if found < 0:
        raise ValueError(
            f"`name` must be a counter of the driver, got {name!r}. "
            "lms/emulation/native/driver.cc lists them."
        )
    return found


def now() -> float:
    """Return seconds on the card's clock, the clock of traces."""
    return _driver().lms_card_now()


def begin_trace() -> None:
    """Begin to record each kernel and copy."""
    _driver().lms_card_trace(None)


def end_trace(path: str) -> None:
    """Write the recorded kernels and copies, a line each.

    A line has the lane (0 kernels, 1 to the device, 2 to the host), seconds of begin,
    end and queueing by the host, bytes, name.

    Raises:
        OSError: If the file cannot be written; the record is kept.
    """
    if failed := _driver().lms_card_trace(path.encode()):
        raise OSError(failed, os.strerror(failed), path)
