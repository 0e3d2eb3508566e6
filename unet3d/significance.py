"""Paired tests of two sets of predictions, corrected for their number.

Sources: Wilcoxon, Biometrics Bulletin 1(6), 1945, by way of scipy; Holm, Scandinavian
Journal of Statistics 6(2), 1979, for the correction.

Known weakness: with five subjects or fewer no two-sided p-value can be below 0.05.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

__all__ = ["Comparison", "holm", "wilcoxon"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A paired test of two sets on one region.

    Args:
        region: One of `unet3d.schemes.REGIONS`.
        first: Name of a set.
        second: Name of another.
        subjects: Pairs in which both have a score.
        median_difference: Of second minus first.
        p: Two-sided.
        corrected_p: By Holm's method, over all tests of one measure.
    """

    region: str
    first: str
    second: str
    subjects: int
    median_difference: float
    p: float
    corrected_p: float


def wilcoxon(first: Sequence[float], second: Sequence[float]) -> float:
    """Two-sided p-value of the signed-rank test; pairs with a NaN are left out.

    Returns:
        In [0, 1]; 1 where no pair differs, NaN where there is none.

    Example:
        >>> wilcoxon([1, 2, 3, 4, 5], [2, 4, 6, 8, 10])  # 2 of 2^5 signs are as extreme
        0.0625
    """
    differences = np.subtract(second, first)
    differences = differences[np.isfinite(differences)]
    if differences.size == 0:
        return float("nan")
    if not differences.any():
        return 1.0
    result: Any = stats.wilcoxon(differences)
    return float(result.pvalue)


def holm(values: Sequence[float]) -> tuple[float, ...]:
    """Correct p-values for their number; NaNs stay and do not count.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        (0.03, 0.06, 0.06)
    """
    known = [k for k, value in enumerate(values) if not np.isnan(value)]
    corrected = [float(value) for value in values]
    largest = 0.0
    for rank, k in enumerate(sorted(known, key=lambda k: values[k])):
        largest = max(largest, min(1.0, (len(known) - rank) * values[k]))
        corrected[k] = largest
    return tuple(corrected)
