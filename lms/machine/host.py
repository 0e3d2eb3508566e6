"""The host: cores that this process may use, memory to pin.

Tensors leave a GPU through TensorFlow's pool of pinned memory, `gpu_host_bfc`. The pool
is created with the devices, grows by doubling regions, and never shrinks. Pinned memory
is taken at once, pageable memory when it is touched. The pool's limit, 128 GiB in 2.21,
may exceed the host's memory: then Linux kills processes.

Sources: `GPUProcessState::GetGpuHostAllocator` in gpu_process_state.cc and
`BFCAllocator::Extend` in bfc_allocator.cc of TensorFlow.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

from lms.units import GIB, MIB, Bytes

__all__ = ["PINNED_VARIABLE", "is_number", "pinned_limit", "processor_name"]
__all__ += ["swappable", "usable_cores"]

PINNED_VARIABLE: Final = "TF_GPU_HOST_MEM_LIMIT_IN_MB"

_MOST: Final = 128 * GIB  # TensorFlow's own limit of pinned memory

# 1/32 of the free memory is left to programs that grow meanwhile, this one too, and
# 1/32 to the allocator's bookkeeping: 8 bytes for each 256.
_MARGIN, _NOTES = 32, 32


def pinned_limit(environ: Mapping[str, str] = os.environ) -> Bytes:
    """Return the bytes that TensorFlow may pin: by the variable, else its own limit.

    Example:
        >>> pinned_limit({}) // GIB, pinned_limit({PINNED_VARIABLE: "2048"}) // GIB
        (128, 2)
    """
    written = environ.get(PINNED_VARIABLE, "")
    return int(written) * MIB if is_number(written) else _MOST


def is_number(written: str) -> bool:
    """Tell whether TensorFlow can read a limit; it ignores other texts."""
    return re.fullmatch(r"\s*[0-9]+\s*", written) is not None


def swappable(free: Bytes, limit: Bytes) -> Bytes:
    """Return the bytes of host memory that swapped tensors may take.

    Args:
        free: Bytes that programs may still take.
        limit: Bytes that may be pinned.

    Example:
        >>> swappable(64 * GIB, 128 * GIB) / GIB, swappable(64 * GIB, 8 * GIB) / GIB
        (60.0, 8.0)
    """
    return min(limit, free - free // _MARGIN - free // _NOTES)


def processor_name() -> str | None:
    """Return the processor's model from Linux, which psutil lacks; None if missing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    pairs = (line.partition(":") for line in lines)
    names = (value.strip() for key, _, value in pairs if key.strip() == "model name")
    return next(names, None)


def usable_cores() -> int:
    """Return the number of cores for this process; all cores if unknown.

    Example:
        >>> usable_cores() >= 1
        True
    """
    try:
        return len(psutil.Process().cpu_affinity() or ()) or os.cpu_count() or 1
    except AttributeError:  # macOS
        return os.cpu_count() or 1
