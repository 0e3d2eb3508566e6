"""Processor time that a hypervisor gave to others while this machine wanted it.

What is timed on a shared virtual machine tells little while that happens: a step whose
threads wait for each other may take twice as long. Linux counts such time as `steal` in
/proc/stat (proc_stat(5)), in ticks of all cores together.
"""

import os
from pathlib import Path

from lms.units import Seconds

__all__ = ["stolen_seconds"]

_STAT = Path("/proc/stat")
_STEAL = 8  # user nice system idle iowait irq softirq steal, after the word "cpu"


def stolen_seconds(stat: Path = _STAT) -> Seconds:
    """Since this machine started, of all cores together; 0 where nobody counts it.

    Args:
        stat: The file that counts.

    Example:
        >>> stolen_seconds() >= 0
        True
    """
    try:
        words = stat.read_text().split("\n", 1)[0].split()
        return int(words[_STEAL]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError, AttributeError):
        return 0.0  # not Linux, or a container that hides it
