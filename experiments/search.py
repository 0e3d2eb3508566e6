"""The largest size that works, searched upward by trials.

    start ──coarse──> ... ──coarse──> the first that fails      then, from the last that
                                                                worked, in fine steps

Coarse steps skip no failure that matters: a size counts only if its own trial worked.
A trial may be tried more than once, since what is near the edge fails by chance.
"""

from collections.abc import Callable, Iterator

__all__ = ["climb"]


def climb(
    works: Callable[[int], bool], *, start: int, coarse: int, fine: int
) -> Iterator[tuple[int, bool]]:
    """Try sizes until the next finer one fails; yield each with how it went.

    Args:
        works: Tries a size.
        start: The first to be tried; at least 1.
        coarse: The first steps, a multiple of `fine`.
        fine: The last steps; the result's granularity.

    Raises:
        ValueError: If the steps break these rules.

    Example:
        >>> [size for size, _ in climb(lambda n: n <= 50, start=10, coarse=20, fine=5)]
        [10, 30, 50, 70, 55]
        >>> list(climb(lambda n: False, start=8, coarse=8, fine=8))
        [(8, False)]
    """
    if fine < 1 or coarse % fine:
        raise ValueError(
            f"`coarse` must be a multiple of `fine`, got {coarse} and {fine}. "
            "Change one of them."
        )
    size = start
    while works(size):
        yield size, True
        size += coarse
    yield size, False
    if size == start:
        return
    for between in range(size - coarse + fine, size, fine):
        worked = works(between)
        yield between, worked
        if not worked:
            return
