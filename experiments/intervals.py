"""How sure a median is: an interval that holds it, and what a claim may say then.

Of n independent values the k-th least and the k-th largest have the median between them
in all but 2 * P(Binomial(n, 1/2) < k) of cases, whatever the values' distribution
(David, Nagaraja: "Order Statistics", 2003, section 7.1). Steps of one training are not
quite independent, so an interval is rather too narrow than too wide.
"""

import math
import statistics
from collections.abc import Sequence

__all__ = ["holds", "median_interval", "ratio_interval", "spanned", "undecided"]

_SURE = 0.95
_SURE_OF_EACH = 0.975  # of two medians, so that both are held in 95 %


def median_interval(
    values: Sequence[float], sure: float = _SURE
) -> tuple[float, float]:
    """Ends of the narrowest interval that holds the median so surely.

    Args:
        values: At least one; where they are too few for that, their range is returned.
        sure: Probability, below 1.

    Example:
        >>> median_interval(range(1, 11)), median_interval([3, 1, 2])
        ((2, 9), (1, 3))
    """
    ordered, count = sorted(values), len(values)
    outside, below = 0.0, 0  # how many of each end are left out
    for k in range(count // 2):
        outside += 2 * math.comb(count, k) / 2**count
        if outside > 1 - sure:
            break
        below = k
    return ordered[below], ordered[count - 1 - below]


def ratio_interval(
    values: Sequence[float], over: Sequence[float]
) -> tuple[float, float]:
    """Ends of an interval that holds one median over another: each is held surely.

    Example:
        >>> ratio_interval([2.0] * 9, [1.0] * 9)
        (2.0, 2.0)
    """
    low, high = median_interval(values, _SURE_OF_EACH)
    least, most = median_interval(over, _SURE_OF_EACH)
    return low / most, high / least


def holds(interval: tuple[float, float], most: float) -> bool | None:
    """Whether what is in the interval is at most so much; None if that is not decided.

    Example:
        >>> [holds((1.0, 1.1), most) for most in (1.2, 1.05, 0.9)]
        [True, None, False]
    """
    low, high = interval
    return None if low <= most < high else high <= most


def undecided(interval: tuple[float, float], most: float) -> str:
    """What a sentence says of a claim that is not decided; else nothing.

    Example:
        >>> undecided((1.0, 1.1), 1.05), undecided((1.0, 1.1), 1.2)
        (' (at most 1.05: not decided)', '')
    """
    said = f" (at most {most:.2f}: not decided)"
    return said if holds(interval, most) is None else ""


def spanned(values: Sequence[float]) -> str:
    """Quartiles for a table.

    Example:
        >>> spanned([1.0, 2.0, 3.0]), spanned([1.0])
        ('1.50 to 2.50', '1.00')
    """
    if len(values) < 2:
        return f"{values[0]:.2f}"
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{low:.2f} to {high:.2f}"
