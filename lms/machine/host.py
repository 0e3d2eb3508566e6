"""The host: cores that this process may use, memory to pin.

Tensors leave a GPU through TensorFlow's pool of pinned memory, `gpu_host_bfc`. It is
made with the devices, grows by regions that double, and gives none back. Its memory is
taken at once, unlike other memory. Its own limit, 128 GiB in 2.21, may be more than the
host has: then Linux ends programs.

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

_MOST: Final = 128 * GIB

# One part of so many is left to programs that take more meanwhile, this one too, and
# one to the allocator's notes on each of its pieces: eight bytes of 256.
_MARGIN, _NOTES = 32, 32


def pinned_limit(environ: Mapping[str, str] = os.environ) -> Bytes:
    """Bytes that TensorFlow may pin: by the variable, else by its own limit.

    Example:
        >>> pinned_limit({}) // GIB, pinned_limit({PINNED_VARIABLE: "2048"}) // GIB
        (128, 2)
    """
    written = environ.get(PINNED_VARIABLE, "")
    return int(written) * MIB if is_number(written) else _MOST


def is_number(written: str) -> bool:
    """Tell whether TensorFlow understands a limit; others it leaves aside."""
    return re.fullmatch(r"\s*[0-9]+\s*", written) is not None


def swappable(free: Bytes, limit: Bytes) -> Bytes:
    """Host memory that swapped tensors may take.

    Args:
        free: What programs may still take.
        limit: What may be pinned.

    Example:
        >>> swappable(64 * GIB, 128 * GIB) / GIB, swappable(64 * GIB, 8 * GIB) / GIB
        (60.0, 8.0)
    """
    return min(limit, free - free // _MARGIN - free // _NOTES)


def processor_name() -> str | None:
    """The processor's model, which psutil does not say; None where Linux does not."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    pairs = (line.partition(":") for line in lines)
    names = (value.strip() for key, _, value in pairs if key.strip() == "model name")
    return next(names, None)


def usable_cores() -> int:
    """Cores that this process may use; all of the machine's where nobody says.

    Example:
        >>> usable_cores() >= 1
        True
    """
    try:
        return len(psutil.Process().cpu_affinity() or ()) or os.cpu_count() or 1
    except AttributeError:  # macOS
        return os.cpu_count() or 1
