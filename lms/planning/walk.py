"""Belady's walk over the steps: who leaves the device where, and who comes back.

The resident tensor whose next use is farthest away leaves: Belady's rule for paging
("A study of replacement algorithms for a virtual-storage computer", IBM Systems
Journal 5(2), 1966). A tensor is copied out once; a later eviction just drops the
device's copy.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lms.allocator import Arena
from lms.graph import GraphView
from lms.liveness import Buffer, reused_bytes
from lms.planning.steps import Step

__all__ = ["Journey", "Stay", "Walk", "walk_within"]

# How often the walk begins again with what it learned, at most.
_ROUNDS = 12


@dataclass(slots=True)
class Stay:
    """A time on the device that begins with a copy back."""

    first_read: int
    start: int
    reads: list[int]


@dataclass(slots=True)
class Journey:
    """What the walk does with one buffer; numbers are positions of steps."""

    evicted: list[int] = field(default_factory=list[int])
    stays: list[Stay] = field(default_factory=list[Stay])


def walk_within(
    graph: GraphView,
    steps: Sequence[Step],
    live: Sequence[Buffer],
    movable: frozenset[str],
    arena: Callable[[], Arena],
) -> "Walk | None":
    """Walk until every step fits; None if one does not, whatever is moved.

    What a step turns out to evict must be out before it starts, so the walk begins
    again knowing it, until nothing new turns out. A step may also fail although the
    bytes are there, because what it reads lies scattered: then even that is moved out
    and in at this step, and copies find places side by side.
    """
    drops: dict[int, set[int]] = {}
    compacted: set[int] = set()
    walk = None
    for _ in range(_ROUNDS):
        walk = Walk(graph, steps, live, movable, arena(), drops)
        failed = walk.run()
        if failed is not None:
            if failed in compacted:
                return None
            compacted.add(failed)
            walk.late.setdefault(failed, set()).update(steps[failed].reads)
        if not walk.late:
            return walk
        for number, buffers_out in walk.late.items():
            drops.setdefault(number, set()).update(buffers_out)
    return walk if walk is not None and len(walk.usage) == len(steps) else None


class Walk:
    """Belady's walk: who leaves at which step, who is back at which.

    Memory is real to it: every tensor takes its room and gives it back, so whatever
    the arena loses between tensors is made up for by one more eviction.
    """

    def __init__(
        self,
        graph: GraphView,
        steps: Sequence[Step],
        live: Sequence[Buffer],
        movable: frozenset[str],
        arena: Arena,
        drops: Mapping[int, set[int]],
    ) -> None:
        self._ops = graph.ops
        self._steps = steps
        self._live = live
        self._movable = movable
        self._arena = arena
        self._drops = drops
        self.late: dict[int, set[int]] = {}  # evictions that `drops` did not foresee
        self._chunk: dict[int, int] = {}  # resident buffers and their chunks
        self._reads: list[list[int]] = [[] for _ in live]
        for number, step in enumerate(steps):
            for i in step.reads:
                self._reads[i].append(number)
        self._upcoming = [0] * len(live)  # index into `_reads` of the next use
        self._farthest: list[tuple[int, int]] = []  # (-next use, buffer), may be stale
        self._at: dict[int, list[int]] = {}  # buffers by the position that makes them
        self._dying: dict[int, list[int]] = {}  # by the position that reads them last
        for i, buffer in enumerate(live):
            self._at.setdefault(buffer.producer, []).append(i)
            if not buffer.kept:
                self._dying.setdefault(buffer.last, []).append(i)
        self._number = 0
        self._most = 0
        self.journeys: list[Journey | None] = [None] * len(live)
        self.usage: list[int] = []

    def run(self) -> int | None:
        """Walk all steps; `journeys` and `usage` (bytes at each step) are the result.

        Returns:
            The step that does not fit with everything else out; None if all fit.
        """
        position = 0
        for number, step in enumerate(self._steps):
            self._number = number
            self._most = self._arena.in_use
            try:
                self._bring_in(step)
                for _ in range(step.length):
                    self._run_op(position)
                    position += 1
            except MemoryError:
                return number
            self._look_ahead(step)
            self.usage.append(self._most)
        return None

    def _bring_in(self, step: Step) -> None:
        """Drop what is known to be in the way; copy back what the step reads."""
        for i in sorted(self._drops.get(self._number, set()) & self._chunk.keys()):
            if self._live[i].root in self._movable:
                self._drop(i)
        for i in sorted(step.reads - self._chunk.keys()):
            self._take(i)
            stay = Stay(self._number, self._number, [])
            _known(self.journeys[i]).stays.append(stay)

    def _run_op(self, position: int) -> None:
        """Outputs take room, or a dying input's; then what dies gives its room back."""
        op = self._ops[position]
        dying = [i for i in self._dying.get(position, ()) if i in self._chunk]
        made = self._at.get(position, ())
        reused = reused_bytes(op, [self._live[i].size for i in dying])
        for i in made:
            if reused and self._live[i].size == reused:
                heir = next(j for j in dying if self._live[j].size == reused)
                self._chunk[i] = self._chunk.pop(heir)
                dying.remove(heir)
                reused = 0
            else:
                self._take(i)
        if op.scratch:
            self._arena.free(self._allocate(op.scratch))
        for i in (*dying, *(i for i in made if i in self._dying.get(position, ()))):
            if i in self._chunk:
                self._arena.free(self._chunk.pop(i))

    def _look_ahead(self, step: Step) -> None:
        """Note when what this step touched is needed next."""
        for i in sorted(step.reads | step.makes):
            if i in step.reads:
                self._upcoming[i] += 1
                journey = self.journeys[i]
                if journey is not None and journey.stays:
                    journey.stays[-1].reads.append(self._number)
            needed_again = self._upcoming[i] < len(self._reads[i])
            if needed_again and self._live[i].root in self._movable:
                use = self._reads[i][self._upcoming[i]]
                heapq.heappush(self._farthest, (-use, i))

    def _take(self, i: int) -> None:
        self._chunk[i] = self._allocate(self._live[i].size)

    def _allocate(self, size: int) -> int:
        """Room for `size` bytes, evicting until it is there."""
        while True:
            try:
                chunk = self._arena.allocate(size)
            except MemoryError:
                self._evict()
            else:
                self._most = max(self._most, self._arena.in_use)
                return chunk

    def _evict(self) -> None:
        """Drop the resident buffer whose next use is farthest, of those not in use."""
        step = self._steps[self._number]
        touched = step.reads | step.makes
        passed: list[tuple[int, int]] = []
        while self._farthest:
            entry = heapq.heappop(self._farthest)
            use, i = -entry[0], entry[1]
            upcoming = self._reads[i][self._upcoming[i] :][:1]
            if i not in self._chunk or upcoming != [use]:
                continue
            if i not in touched:
                break
            passed.append(entry)
        else:
            raise MemoryError(f"step {self._number} does not fit")
        for entry in passed:
            heapq.heappush(self._farthest, entry)
        self.late.setdefault(self._number, set()).add(i)
        self._drop(i)

    def _drop(self, i: int) -> None:
        """Take a buffer off the device at this step."""
        self._arena.free(self._chunk.pop(i))
        if self.journeys[i] is None:
            self.journeys[i] = Journey()
        _known(self.journeys[i]).evicted.append(self._number)


def _known(journey: Journey | None) -> Journey:
    if journey is None:
        raise AssertionError("a buffer that is not resident has been evicted")
    return journey
