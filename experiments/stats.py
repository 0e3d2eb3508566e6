"""Numbers of rows: ends of trainings, steps, statistics over processes.

A value is of one process, such as the median of its steps: steps of one process are not
independent. Two ways differ for certain only where the intervals of at least three
processes each do not cross.
"""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Estimate", "Row", "Rows", "commits", "differ", "ending", "estimate"]
__all__ += ["promised", "ratio", "said", "step_of", "trained"]

Row = Mapping[str, Any]
Rows = Sequence[Row]

_ENOUGH = 3  # least processes for a meaningful interval
_SURE = 0.95
_WARM = 2  # steps that initialise


def trained(row: Row) -> bool:
    """Tell whether a training made its steps.

    Example:
        >>> trained({"error": None}), trained({"error": "OOM"})
        (True, False)
    """
    return not row["error"] and not row.get("refused")


def commits(rows: Rows) -> str:
    """List the commits of rows with their counts, the most frequent first.

    Example:
        >>> commits([{"commit": "0123456789ab"}, {"commit": "cd"}, {"commit": "cd"}])
        'cd (2), 0123456 (1)'
    """
    known = (row["commit"] for row in rows if row.get("commit"))
    short = (one[:7] + "-dirty" * one.endswith("-dirty") for one in known)
    return ", ".join(f"{one} ({n})" for one, n in Counter(short).most_common())


def ending(row: Row) -> str:
    """Return the reason why a training ended early; empty if it did not."""
    return row["error"] or (row.get("refused") or {}).get("error") or ""


def step_of(row: Row) -> float:
    """Return the median step of a process, without initialising steps.

    Example:
        >>> step_of({"step_seconds": [9.0, 8.0, 1.0, 3.0, 2.0]})
        2.0
    """
    seconds = row["step_seconds"]
    return statistics.median(seconds[_WARM:] or seconds[-1:])


def promised(row: Row, plain: float | None) -> float | None:
    """Return the predicted step over plain Keras's measured step."""
    own = (row.get("report") or {}).get("predicted_seconds")
    return own / plain if own and plain else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A median over processes, the ends of its interval, and their number."""

    median: float
    low: float
    high: float
    processes: int


def estimate(values: Sequence[float]) -> Estimate:
    """Return the median, with order statistics as its interval of 95 %.

    Of fewer than six values the ends are the interval, of a lower confidence.

    Example:
        >>> estimate([3.0, 1.0, 2.0])
        Estimate(median=2.0, low=1.0, high=3.0, processes=3)
        >>> estimate(range(1, 10)).low, estimate(range(1, 10)).high
        (2, 8)
    """
    ordered, count = sorted(values), len(values)
    outside, below = 0.0, 0  # values left out at each end
    for k in range(count // 2):
        outside += 2 * math.comb(count, k) / 2**count
        if outside > 1 - _SURE:
            break
        below = k
    middle = statistics.median(ordered)
    low, high = ordered[below], ordered[count - 1 - below]
    return Estimate(median=middle, low=low, high=high, processes=count)


def ratio(own: Estimate, base: Estimate) -> Estimate:
    """Divide two estimates; the interval is as wide as both make it.

    Example:
        >>> two = estimate([2.0, 2.0, 4.0])
        >>> ratio(two, estimate([1.0, 1.0, 2.0])).high
        4.0
    """
    return Estimate(
        median=own.median / base.median,
        low=own.low / base.high,
        high=own.high / base.low,
        processes=min(own.processes, base.processes),
    )


def differ(one: Estimate, other: Estimate) -> bool:
    """Tell whether two estimates differ for certain.

    Example:
        >>> low, high = estimate([1.0, 1.1, 1.2]), estimate([1.3, 1.4, 1.5])
        >>> differ(low, high), differ(low, low), differ(low, estimate([9.0]))
        (True, False, False)
    """
    enough = min(one.processes, other.processes) >= _ENOUGH
    return enough and (one.high < other.low or other.high < one.low)


def said(value: Estimate) -> str:
    """Write the median, and its interval where there is one.

    Example:
        >>> said(estimate([1.0, 2.0, 3.0])), said(estimate([1.0]))
        ('2.00 (1.00 to 3.00, 3 processes)', '1.00 (one process)')
    """
    if value.processes == 1:
        return f"{value.median:.2f} (one process)"
    ends = f"{value.low:.2f} to {value.high:.2f}"
    return f"{value.median:.2f} ({ends}, {value.processes} processes)"
