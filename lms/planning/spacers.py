"""Spacers: make a best-fit allocator choose planned addresses.

    |  a  |........|  b  |..............|     c is planned behind b, but fits best here
    |  a  |spacer..|  b  |......c.......|                    ^

A spacer is a chunk that an op takes and nobody writes. Before a chunk is taken, better
holes are filled by spacers of exactly their size, and so is the part of its own hole
below its address. A spacer stays until its room is needed.

An op that takes several chunks takes them in an order that is not known. So each of
them gets a hole of just its size, which best fit prefers to larger holes.

Known weakness: of equal chunks that one op takes, the first of its turn is assumed to
be taken first, and outputs before scratch.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lms.planning.addresses import Turn
from lms.simulation.allocator import BestFitAllocator
from lms.units import Bytes

__all__ = ["Spaced", "Spacer", "place_spacers"]

# A turn is played at most 8 times, each time with one more hole filled.
_PLAYS = 8


@dataclass(frozen=True, slots=True)
class Spacer:
    """A spacer that is taken, or given back: then its size is 0."""

    number: int
    size: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Spaced:
    """A step whose chunks lie at planned addresses.

    Args:
        before: Spacers to take and to give back before a turn, by the turn's number.
        peak: The most bytes in use at once, spacers included.
    """

    before: Mapping[int, Sequence[Spacer]]
    peak: Bytes


def place_spacers(
    turns: Sequence[Turn], addresses: Mapping[int, int], capacity: Bytes, limit: Bytes
) -> Spaced | None:
    """Return the spacers with which best fit chooses planned addresses.

    Args:
        turns: What the step takes and gives (`lms.planning.addresses.find_turns`).
        addresses: Planned address of each chunk, by its key. Chunks that are in use at
            the same time do not overlap.
        capacity: Bytes of the arena, a single free chunk when the step begins.
        limit: Bytes of the arena below which spacers may lie for long.

    Returns:
        None if best fit cannot be made to choose some address.

    Example:
        >>> a = Turn(op="a", takes=[(0, 512)])
        >>> b = Turn(op="b", takes=[(1, 256)], gives=[0])
        >>> c = Turn(op="c", takes=[(2, 256)], gives=[1, 2])
        >>> found = place_spacers([a, b, c], {0: 0, 1: 512, 2: 768}, 2048, 1024)
        >>> found.before
        {2: [Spacer(number=0, size=512)]}
    """
    player = _Player(addresses, capacity, limit)
    try:
        for number, turn in enumerate(turns):
            player.play(number, turn)
    except MemoryError:
        return None
    return Spaced(before=dict(player.before), peak=player.arena.peak)


class _Player:
    """Plays turns to a model of the allocator, with spacers where they are needed."""

    def __init__(
        self, addresses: Mapping[int, int], capacity: Bytes, limit: Bytes
    ) -> None:
        self.arena = BestFitAllocator(capacity)
        self.before: dict[int, list[Spacer]] = defaultdict(list)
        self.count = 0
        self._addresses = addresses
        self._capacity, self._limit = capacity, limit
        self._spacers: dict[int, tuple[int, Bytes]] = {}  # number, size; by address
        self._turn, self._least = 0, 0

    def play(self, number: int, turn: Turn) -> None:
        """Play a turn; its chunks then lie at their addresses."""
        self._turn, self._least = number, turn.least
        chunks = [(self._addresses[key], size) for key, size in turn.takes]
        for address, size in chunks:
            self._clear(address, size)
        if len(chunks) == 1:
            beyond = self._open(*chunks[0])
            if beyond is not None:
                self._shrink(*chunks[0])
                self._give(beyond)
        else:
            holes = ((self._addresses[key], hole) for key, hole in turn.holes.items())
            self._isolate(sorted(holes))
        for _ in range(_PLAYS):
            better = self._take(chunks)
            if better is None:
                break
            if better[1] in dict(chunks):
                raise MemoryError("a chunk of equal size is in the way")
            self._put(*reversed(better))  # beside holes of the same size
            for address, size in chunks:
                self._clear(address, size)
        else:
            raise MemoryError(f"better holes are left after {_PLAYS} plays")
        for key in turn.gives:
            self.arena.free(self._addresses[key])

    def _take(self, chunks: Sequence[tuple[int, Bytes]]) -> tuple[Bytes, int] | None:
        """Take chunks if all lie as planned, else return a hole that fits better."""
        for i, (address, size) in enumerate(chunks):
            found = self.arena.chunk_for(size)
            if found is None:
                raise MemoryError(f"no chunk of {size} bytes")
            if found[1] != address:
                for taken, _ in chunks[:i]:
                    self.arena.free(taken)
                return found
            self.arena.allocate(size)
        return None

    def _isolate(self, holes: Sequence[tuple[int, Bytes]]) -> None:
        """Make holes of exactly these addresses and sizes."""
        for address, size in holes:
            self._clear(address, size)  # a spacer for the hole before may lie there
            self._put(address, size)
        for address, size in holes:
            above = address + size
            begin, end = self.arena.free_around(above)
            if begin < end < begin + self._least and end < self._capacity:
                self._give(end)
                begin, end = self.arena.free_around(above)
            if end == self._capacity:  # not all of it: it may be large
                end = min(end, max(begin + self._least, self._limit))
            if end - begin >= self._least:
                self._put(begin, end - begin)
        for address, _ in holes:
            self._give(address)

    def _put(self, address: int, size: Bytes) -> None:
        """Take a spacer at an address."""
        beyond = self._open(address, size)
        self._fill(size, address)
        if beyond is not None:
            self._give(beyond)

    def _open(self, address: int, size: Bytes) -> int | None:
        """Fill holes until a chunk of `size` bytes is taken at a free address.

        Returns:
            The address of a spacer beyond the highest planned chunk, if one is needed
            for a moment.
        """
        beyond = None
        while (found := self.arena.chunk_for(size)) is None or found[1] != address:
            begin, end = self.arena.free_around(address)
            if found is None or end < address + size:
                raise MemoryError(f"no {size} free bytes at {address}")
            low, better = address - begin, found[1]
            if 0 < low < self._least:  # too little for a spacer
                below = (at for at, (_, n) in self._spacers.items() if at + n == begin)
                if (at := next(below, None)) is None:
                    raise MemoryError(f"no spacer ends at {begin}")
                self._give(at)
            elif low:
                self._put(begin, low)
            elif better + found[0] < self._capacity:
                self._fill(*found)
            elif self._limit - better >= self._least:
                self._put(better, self._limit - better)
            else:
                self._fill(*found)
                beyond = better
        return beyond

    def _shrink(self, address: int, size: Bytes) -> None:
        """Make a chunk's hole as small as the chunk, if the rest is a spacer's size."""
        _, end = self.arena.free_around(address)
        if end - address - size >= self._least:
            self._isolate([(address, size)])

    def _fill(self, size: Bytes, address: int) -> None:
        """Take a spacer, which best fit places at this address."""
        if self.arena.allocate(size) != address:
            raise MemoryError(f"no spacer of {size} bytes at {address}")
        self._spacers[address] = self.count, size
        self.before[self._turn].append(Spacer(self.count, size))
        self.count += 1

    def _clear(self, address: int, size: Bytes) -> None:
        """Give back the spacers that overlap a range."""
        for at, (_, filled) in sorted(self._spacers.items()):
            if at < address + size and address < at + filled:
                self._give(at)

    def _give(self, address: int) -> None:
        number, _ = self._spacers.pop(address)
        self.arena.free(address)
        self.before[self._turn].append(Spacer(number, 0))
