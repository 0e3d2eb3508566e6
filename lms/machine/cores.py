"""Cores of the host that this process may use."""

import os

__all__ = ["usable_cores"]


def usable_cores() -> int:
    """How many; all of the machine's where the system does not say.

    As `os.process_cpu_count` of Python 3.13.

    Example:
        >>> usable_cores() >= 1
        True
    """
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1
