"""Describes the link between host and GPU, and times copies."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from lms.machine.inventory import NoDriverError, ask, known, open_nvml
from lms.units import MIB, Bytes, Seconds
from profiling.counters import describe_gpu, describe_gpus
from profiling.cuda import describe_cuda_device, open_cuda_link
from profiling.link_standards import stated_link

__all__ = ["DIRECTIONS", "Timer", "describe_link", "open_link", "room_for_copies"]

DIRECTIONS: Final = ("h2d", "d2h", "both")

# Seconds of a copy by its bytes, direction and "is pinned"; "both" ends with the later.
Timer = Callable[[Bytes, str, bool], Seconds]


def describe_link() -> dict[str, Any]:
    """Describe the first GPU that CUDA shows this process, and its link.

    Returns:
        The facts of `describe_cuda_device`, "memories" (kinds of host memory), "stated"
        (the standard's bandwidth) and "devices", which are NVML's.

    Raises:
        CudaError: If there is no GPU.
    """
    found = describe_cuda_device(0) | {"memories": ["pinned", "pageable"]}
    try:
        api = open_nvml()
    except NoDriverError:
        return found | {"stated": None, "devices": []}
    # NVML counts GPUs in another order, and counts GPUs that are hidden from CUDA.
    handle = known(ask(api, api.nvmlDeviceGetHandleByPciBusId, found["bus"]))
    stated = stated_link(describe_gpu(api, handle))
    return found | {"stated": stated, "devices": describe_gpus(api)}


def room_for_copies(memory: Bytes) -> Bytes:
    """Return the largest power of two for copies in both directions at once.

    Example:
        >>> room_for_copies(3 * MIB) == MIB
        True
    """
    return 1 << (max(memory // 3, MIB).bit_length() - 1)


@contextmanager
def open_link(index: int, largest: Bytes) -> Iterator[Timer]:
    """Allocate buffers for copies; yield a function that times copies.

    Args:
        index: Number of the GPU.
        largest: Bytes of the largest copy.
    """
    with open_cuda_link(index, largest) as link:
        yield lambda size, directions, pinned: link.seconds(
            size, directions=directions, pinned=pinned
        )
