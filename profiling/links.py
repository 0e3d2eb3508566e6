"""The emulated link, timed as tensors travel on it.

NumPy copies that take as long as the link would (`lms.machine.emulated_link`). How fast
a GPU's link carries swaps, `lms.tf.measure.measuring` measures, as swaps make copies.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import numpy as np

from lms.errors import LMSError
from lms.machine import emulate
from lms.machine.emulated_link import EmulatedLink, link_rates
from lms.units import GIB, MIB, Bytes, Seconds

__all__ = ["DIRECTIONS", "NoLinkError", "Timer", "describe_link", "open_link"]
__all__ += ["room_for_copies"]

DIRECTIONS: Final = ("h2d", "d2h", "both")

# Seconds of one copy of so many bytes; for "both", until both have ended.
Timer = Callable[[Bytes, str], Seconds]


class NoLinkError(LMSError):
    """There is no emulated link to be timed."""


def describe_link() -> dict[str, Any]:
    """The device of this process and its link.

    Returns:
        "device" (a name), "device_kind", "memory" in bytes, and "stated": what the link
        should give.

    Raises:
        NoLinkError: If there is no emulated link.
    """
    rates = link_rates()
    if rates is None:
        raise NoLinkError(
            "an emulated link must be there to be timed, got none. Start this with "
            "`python -m lms emulate --link v100-pcie`; a GPU's link is measured by "
            "`python -m experiments.gpu_validation`."
        )
    stated = {"h2d": rates.h2d, "d2h": rates.d2h, "latency": rates.latency}
    return {
        "device": "CPU as a device of limited memory",
        "device_kind": "emulated",
        "memory": emulate.device_limit() or GIB,
        "stated": {"link": "emulated"} | stated,
    }


def room_for_copies(memory: Bytes) -> Bytes:
    """The largest copy that a device has room for in both directions.

    Example:
        >>> room_for_copies(3 * GIB) == GIB
        True
    """
    return 1 << (max(memory // 3, MIB).bit_length() - 1)


@contextmanager
def open_link(largest: Bytes) -> Iterator[Timer]:
    """Take room for copies; the result times them.

    Args:
        largest: Bytes of the largest copy.
    """
    rates = link_rates()
    assert rates is not None
    link = EmulatedLink(rates)
    ends = [np.zeros(largest, np.uint8) for _ in range(4)]  # touched: pages exist

    def carry(size: Bytes, direction: str) -> None:
        pair = ends[:2] if direction == "h2d" else ends[2:]
        copy = partial(np.copyto, pair[0][:size], pair[1][:size])
        link.carry(size, copy, to_device=direction == "h2d")

    with ThreadPoolExecutor(2) as pool:

        def timer(size: Bytes, directions: str) -> Seconds:
            wanted = ("h2d", "d2h") if directions == "both" else (directions,)
            started = time.perf_counter()
            if len(wanted) == 1:
                carry(size, wanted[0])
            else:
                list(pool.map(partial(carry, size), wanted))
            return time.perf_counter() - started

        yield timer
