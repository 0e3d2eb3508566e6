"""Steps that were not disturbed: the hypervisor did not give the processor to others.

On a shared virtual machine steps take up to twice as long for seconds on end. Linux
counts what was taken (`lms.machine.host`); steps that were disturbed are left out
of medians, and the rows keep all of them.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from lms.machine.host import stolen_seconds

__all__ = ["delayed_seconds", "is_quiet", "quiet", "quiet_median", "timed"]
__all__ += ["wait_for_quiet"]

_MOST = 0.02  # of the cores' time
_TICK = 0.01  # what Linux counts in
_LEAST = 3  # steps that a median is taken of
_WATCHED, _SQUARE = 0.5, 800  # seconds to look for, rows of a matrix to compute with


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds that a call took, and seconds of all cores that others took meanwhile."""
    before, started = stolen_seconds(), time.perf_counter()
    run()
    return time.perf_counter() - started, stolen_seconds() - before


def delayed_seconds() -> float:
    """Seconds that threads of this process were ready for a core and had none, so far.

    Where one thread computes at a time, others had the core meanwhile. Linux counts it
    (`Documentation/scheduler/sched-stats.rst`); elsewhere it is 0.
    """
    waited = 0
    for thread in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # it has ended since
            waited += int(thread.read_text().split()[1])
    return waited / 1e9


def wait_for_quiet(longest: float = 60) -> None:
    """Return when the hypervisor leaves the cores alone, or after so many seconds.

    It takes time only from those who want it: so this computes meanwhile.
    """
    square = np.ones((_SQUARE, _SQUARE), np.float32)
    started = time.perf_counter()

    def compute() -> None:
        until = time.perf_counter() + _WATCHED
        while time.perf_counter() < until:
            np.matmul(square, square)

    while time.perf_counter() - started < longest:
        if is_quiet(*timed(compute)):
            return


def is_quiet(seconds: float, stolen: float) -> bool:
    """Whether a step was not disturbed: a tick, or 2 % of the cores, may be missing."""
    cores = os.cpu_count() or 1
    return stolen <= 1.5 * _TICK or stolen <= _MOST * cores * seconds


def quiet(seconds: Sequence[float], stolen: Sequence[float]) -> list[float]:
    """The steps that were not disturbed; if those are few, the least disturbed.

    Example:
        >>> quiet([1.0, 1.1, 1.2, 2.0], [0.0, 0.0, 0.01, 0.9])
        [1.0, 1.1, 1.2]
        >>> quiet([1.0, 2.0, 1.5, 1.9], [0.0, 0.9, 0.3, 0.7])
        [1.0, 1.5, 1.9]
    """
    pairs = list(zip(seconds, stolen, strict=True))
    found = [s for s, lost in pairs if is_quiet(s, lost)]
    if len(found) >= min(_LEAST, len(pairs)):
        return found
    least = sorted(range(len(pairs)), key=lambda i: pairs[i][1] / pairs[i][0])
    return [seconds[i] for i in sorted(least[:_LEAST])]


def quiet_median(row: Mapping[str, Any], skipped: int = 0) -> float:
    """Median seconds of a row's undisturbed steps, the first ones left out."""
    seconds = row["step_seconds"][skipped:]
    stolen = row["stolen_seconds"][skipped:]
    return statistics.median(quiet(seconds, stolen))
