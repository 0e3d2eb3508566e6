"""A link as two numbers: the latency of a copy, and bytes per second beyond.

    seconds = latency + bytes / bandwidth

The fit minimises the sum of relative absolute errors: relative, because sizes span six
powers of ten; absolute, so that a disturbed measurement does not pull the line. The
best line goes through two of the points (Bloomfield and Steiger, "Least absolute
deviations", 1983, section 1.3), so all pairs are tried; a line through zero needs one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from lms.units import Bytes, Seconds

__all__ = ["LinkFit", "fit_link"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFit:
    """The numbers of one direction of a link.

    Args:
        latency: Seconds of a copy of no bytes.
        bandwidth: Bytes per second beyond the latency.
        error: Mean relative absolute error of the line at the points.
    """

    latency: Seconds
    bandwidth: float
    error: float


def fit_link(points: Sequence[tuple[Bytes, Seconds]]) -> LinkFit:
    """Fit latency and bandwidth.

    Args:
        points: Bytes of a copy and its median seconds, above 0; two sizes at least.

    Raises:
        ValueError: If there are fewer than two sizes.

    Example:
        >>> fit = fit_link([(1000, 0.003), (2000, 0.004), (9000, 0.011)])
        >>> round(fit.latency, 6), round(fit.bandwidth)
        (0.002, 1000000)
    """
    if len({size for size, _ in points}) < 2:
        raise ValueError(
            f"`points` must have two sizes at least, got {len(points)} points. "
            "Measure more sizes."
        )
    lines = _lines(points)
    latency, slope = min(lines, key=lambda line: (_error(points, *line), line))
    return LinkFit(
        latency=latency, bandwidth=1 / slope, error=_error(points, latency, slope)
    )


def _lines(
    points: Sequence[tuple[Bytes, Seconds]],
) -> Iterator[tuple[Seconds, float]]:
    """Yield latency and seconds per byte of each physically possible line."""
    for size, seconds in points:
        yield 0.0, seconds / size
    for (size, seconds), (other, longer) in combinations(sorted(points), 2):
        if other == size or longer <= seconds:
            continue
        slope = (longer - seconds) / (other - size)
        if seconds >= slope * size:
            yield seconds - slope * size, slope


def _error(
    points: Sequence[tuple[Bytes, Seconds]], latency: Seconds, slope: float
) -> float:
    errors = (abs(latency + slope * size - s) / s for size, s in points)
    return sum(errors) / len(points)
