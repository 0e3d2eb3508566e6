"""The two things that a simulation of copies needs: a clock, and shared bandwidth."""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from lms.units import Seconds

__all__ = ["Clock", "Flow"]


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


@dataclass(slots=True)
class _Moving:
    left: float  # bytes
    link: float  # bytes per second at most
    ended: Callable[[], None]


class Flow:
    """Bandwidth of one direction, shared equally by the copies under way."""

    def __init__(self, clock: Clock, capacity: float) -> None:
        self._clock = clock
        self._capacity = capacity
        self._moving: dict[int, _Moving] = {}
        self._settled: Seconds = 0.0
        self._share = capacity
        self._version = 0
        self._number = count()

    def carry(self, size: float, link: float, ended: Callable[[], None]) -> None:
        """Begin to copy `size` bytes over a link of `link` bytes per second."""
        self._settle()
        self._moving[next(self._number)] = _Moving(size, link, ended)
        self._plan_ends()

    def _settle(self) -> None:
        passed = self._clock.now - self._settled
        for copy in self._moving.values():
            copy.left -= passed * min(copy.link, self._share)
        self._settled = self._clock.now

    def _plan_ends(self) -> None:
        self._version += 1
        self._share = self._capacity / max(1, len(self._moving))
        for number, copy in self._moving.items():
            seconds = max(0.0, copy.left) / min(copy.link, self._share)
            self._clock.at(self._clock.now + seconds, self._end(number, self._version))

    def _end(self, number: int, version: int) -> Callable[[], None]:
        def end() -> None:
            if version == self._version:
                self._settle()
                ended = self._moving.pop(number).ended
                self._plan_ends()
                ended()

        return end
