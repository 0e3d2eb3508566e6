"""The host's processor: cores that this process may use, and time that it lost.

What is timed on a shared virtual machine tells little while a hypervisor gives its
processors to others: a step whose threads wait for each other may take twice as long.
Linux counts such time as `steal` (proc_stat(5)); psutil reads it.
"""

import os
from pathlib import Path

import psutil

from lms.units import Seconds

__all__ = ["processor_name", "stolen_seconds", "usable_cores"]


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


def stolen_seconds() -> Seconds:
    """Time that others got since this machine started, of all cores together.

    Returns:
        Seconds; 0 where nobody counts them.

    Example:
        >>> stolen_seconds() >= 0
        True
    """
    try:
        return float(getattr(psutil.cpu_times(), "steal", 0.0))
    except (OSError, RuntimeError):  # a container that hides it
        return 0.0
