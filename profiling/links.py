"""The link of a GPU, which can be timed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from lms.machine.inventory import NoDriverError, open_nvml
from lms.units import MIB, Bytes, Seconds
from profiling.counters import describe_gpus
from profiling.cuda import CudaError, describe_cuda_device, open_cuda_link
from profiling.link_standards import stated_link

__all__ = ["DIRECTIONS", "Timer", "describe_link", "open_link", "room_for_copies"]

DIRECTIONS: Final = ("h2d", "d2h", "both")

# Seconds of one copy of so many bytes; for "both", until both have ended.
Timer = Callable[[Bytes, str, bool], Seconds]


def describe_link() -> dict[str, Any]:
    """The device of this process and its link.

    Returns:
        "device" (a name), "memory" in bytes, "memories" that the host's side can be in,
        "stated" (what the link should give) and "devices".

    Raises:
        NoDriverError: If there is no GPU.
    """
    devices, stated = _devices()
    first = devices[0]
    return {
        "device": first["name"],
        "memory": first["memory"],
        "memories": ["pinned", "pageable"],
        "stated": stated,
        "devices": devices,
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
        >>> room_for_copies(3 * MIB) == MIB
        True
    """
    return 1 << (max(memory // 3, MIB).bit_length() - 1)


@contextmanager
def open_link(index: int, largest: Bytes) -> Iterator[Timer]:
    """Take room for copies; the result times them.

    Args:
        index: Which GPU.
        largest: Bytes of the largest copy.
    """
    with open_cuda_link(index, largest) as link:
        yield lambda size, directions, pinned: link.seconds(
            size, directions=directions, pinned=pinned
        )
