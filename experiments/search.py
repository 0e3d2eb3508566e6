"""The largest size that works, searched by trials: upward, or by halves.

    start ──coarse──> ... ──coarse──> the first that fails      then, from the last that
                                                                worked, in fine steps

Coarse steps skip no failure that matters: a size counts only if its own trial worked.
A trial may be tried more than once, since what is near the edge fails by chance.
"""

from collections.abc import Callable, Iterator

__all__ = ["bisect", "climb"]


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


def bisect(works: Callable[[int], bool], count: int) -> Iterator[tuple[int, bool]]:
    """Halve the sizes that may be the largest; yield each with how it went.

    Args:
        works: Tries a size.
        count: Sizes are from 0 on and below it.

    Example:
        >>> [size for size, _ in bisect(lambda n: n <= 5, 16)]
        [8, 4, 6, 5]
        >>> list(bisect(lambda n: False, 2))
        [(1, False), (0, False)]
    """
    low, high = 0, count
    while low < high:
        size = (low + high) // 2
        worked = works(size)
        yield size, worked
        low, high = (size + 1, high) if worked else (low, size)
