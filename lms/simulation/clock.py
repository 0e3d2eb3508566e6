"""A clock for simulations of events."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from lms.units import Seconds

__all__ = ["Clock"]


class Clock:
    """Calls functions in the order of their times; equal times in order of asking."""

    def __init__(self) -> None:
        self.now: Seconds = 0.0
        self._calls: list[tuple[Seconds, int, Callable[[], None]]] = []
        self._number = count()

    def at(self, when: Seconds, call: Callable[[], None]) -> None:
        """Have a function called at a time that is not past."""
        heappush(self._calls, (when, next(self._number), call))

    def run(self) -> None:
        """Call what is due until nothing is left."""
        while self._calls:
            self.now, _, call = heappop(self._calls)
            call()
