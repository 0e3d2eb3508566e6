"""The links that can be timed: an emulated device's, and a GPU's.

An emulated link is timed as tensors travel on it: NumPy copies that take as long as the
link would (`lms.machine.emulated_link`). It knows no pinned memory.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Final

import numpy as np

from lms.machine import emulate
from lms.machine.emulated_link import EmulatedLink, link_rates
from lms.machine.nvml import NoDriverError, describe_gpus, open_nvml
from lms.units import GIB, MIB, Bytes, Seconds
from profiling.cuda import CudaError, describe_cuda_device, open_cuda_link
from profiling.link_standards import stated_link

__all__ = ["DIRECTIONS", "Timer", "describe_link", "open_link", "room_for_copies"]

DIRECTIONS: Final = ("h2d", "d2h", "both")

# Seconds of one copy of so many bytes; for "both", until both have ended.
Timer = Callable[[Bytes, str, bool], Seconds]


def describe_link() -> dict[str, Any]:
    """The device of this process and its link.

    Returns:
        "device" (a name), "device_kind" (emulated or gpu), "memory" in bytes,
        "memories" that the host's side can be in, "stated" (what the link should give)
        and "devices".

    Raises:
        NoDriverError: If there is neither an emulated link nor a GPU.
    """
    rates = link_rates()
    if rates is None:
        devices, stated = _devices()
        first = devices[0]
        return {
            "device": first["name"],
            "device_kind": "gpu",
            "memory": first["memory"],
            "memories": ["pinned", "pageable"],
            "stated": stated,
            "devices": devices,
        }
    stated = {
        "link": "emulated" + ("" if rates.bus is None else ", on a shared bus"),
        "h2d": rates.h2d,
        "d2h": rates.d2h,
        "latency": rates.latency,
    }
    return {
        "device": "CPU as a device of limited memory",
        "device_kind": "emulated",
        "memory": emulate.device_limit() or GIB,
        "memories": ["ordinary"],
        "stated": stated,
        "devices": [],
    }


def _devices() -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """GPUs by NVML, and the first one's link; by CUDA alone where NVML is missing."""
    try:
        devices = describe_gpus(open_nvml())
    except NoDriverError as missing:
        try:
            name, memory = describe_cuda_device(0)
        except CudaError:
            raise missing from None
        return [{"index": 0, "name": name, "memory": memory}], None
    if not isinstance(devices[0]["memory"], int):  # as of some integrated GPUs
        devices[0]["memory"] = describe_cuda_device(0)[1]
    return devices, stated_link(devices[0])


def room_for_copies(memory: Bytes) -> Bytes:
    """The largest copy that a device has room for in both directions.

    Example:
        >>> room_for_copies(3 * GIB) == GIB
        True
    """
    return 1 << (max(memory // 3, MIB).bit_length() - 1)


def open_link(kind: str, index: int, largest: Bytes) -> AbstractContextManager[Timer]:
    """Take room for copies; the result times them.

    Args:
        kind: "emulated" or "gpu".
        index: Which GPU.
        largest: Bytes of the largest copy.
    """
    return _emulated(largest) if kind == "emulated" else _gpu(index, largest)


@contextmanager
def _gpu(index: int, largest: Bytes) -> Iterator[Timer]:
    with open_cuda_link(index, largest) as link:
        yield lambda size, directions, pinned: link.seconds(
            size, directions=directions, pinned=pinned
        )


@contextmanager
def _emulated(largest: Bytes) -> Iterator[Timer]:
    rates = link_rates()
    assert rates is not None
    link = EmulatedLink(rates)
    ends = [np.zeros(largest, np.uint8) for _ in range(4)]  # touched: pages exist

    def carry(size: Bytes, direction: str) -> None:
        pair = ends[:2] if direction == "h2d" else ends[2:]
        copy = partial(np.copyto, pair[0][:size], pair[1][:size])
        link.carry(size, copy, to_device=direction == "h2d")

    with ThreadPoolExecutor(2) as pool:

        def timer(size: Bytes, directions: str, pinned: bool) -> Seconds:  # noqa: ARG001, FBT001
            wanted = ("h2d", "d2h") if directions == "both" else (directions,)
            started = time.perf_counter()
            if len(wanted) == 1:
                carry(size, wanted[0])
            else:
                list(pool.map(partial(carry, size), wanted))
            return time.perf_counter() - started

        yield timer
