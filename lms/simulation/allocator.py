"""A model of the best-fit-with-coalescing allocator that TensorFlow's devices use.

The allocator takes the smallest free chunk that is large enough, and among equals the
one at the lowest address, and splits off the rest. By default TensorFlow does not split
a chunk below twice the request whose rest is below 128 MiB; `lms` turns that off
(`lms.fit.fitted`). Freed chunks merge with free neighbours. The bytes in use, which a
limit is compared with, are bytes of chunks, not of requests.

Source: TensorFlow 2.21, 2.22, `tsl/framework/bfc_allocator.cc` (`FindChunkPtr`,
`kMinAllocationSize`); after Lea's dlmalloc.

Known weakness: one region of memory, empty at the start. An allocator that grew in
steps, that was fragmented before, or that TensorFlow made before `lms` was imported,
can lose more to fragmentation.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["NO_POOL", "BestFitAllocator", "ByteCounter", "SmallPool", "rounded_up"]

_ALIGNMENT = 256

_IN_NOOK = -1  # address of each tensor in pool chunks that are modelled as one


def rounded_up(size: int) -> int:
    """Round a tensor's bytes up to a whole chunk."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT or _ALIGNMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallPool:
    """Free chunks for small tensors, each followed by a used guard chunk.

        |  free  |g| free |g| free |g| ... rest of the region ...

    The allocator takes the smallest free chunk that will do. So a small tensor takes a
    chunk of just its size, and never splits memory that large tensors need. One chunk
    for all small tensors would not do: smaller free fragments would be taken first.

    Args:
        sizes: Bytes of the free chunks.
        below: Tensors of fewer bytes always find a chunk, in any order.
        holes: Bytes of free fragments before the pool, for any tensor. The pool lies in
            the smallest one that holds it all, or else behind them.
    """

    sizes: tuple[int, ...] = ()
    below: int = 0
    holes: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of all chunks of the pool, guard chunks included."""
        return sum(self.sizes) + _ALIGNMENT * len(self.sizes)

    @property
    def spacer(self) -> int:
        """Bytes of the least chunk that is large, and larger than all in the pool."""
        return rounded_up(max((self.below, *(size + 1 for size in self.sizes))))


NO_POOL = SmallPool()


class BestFitAllocator:
    """Chunks of one region of memory.

    Args:
        capacity: Bytes of the region.
        small_pool: Chunks at the region's start for small tensors. Chunks of fewer
            bytes than `below` are modelled as one, which counts as in use.
    """

    def __init__(self, capacity: int, small_pool: SmallPool = NO_POOL) -> None:
        self.in_use = 0
        self.peak = 0
        self._free = [(capacity, 0)]  # (size, address), sorted
        self._size = {0: capacity}  # address -> size, free chunks and used ones
        self._end = {capacity: 0}  # end address -> address
        self._used: set[int] = set()
        self.below = 0
        self.keep_pool(small_pool)

    def keep_pool(self, small_pool: SmallPool) -> None:
        """Reserve the chunks of a pool in free memory.

        Raises:
            MemoryError: If too little memory is free.
        """
        self._wall_off(small_pool.holes)
        pool = small_pool.bytes
        smaller = [size for size, _ in self._free if size < pool]
        fillers = [self.allocate(size) for size in smaller]
        sizes = [size for size in small_pool.sizes if size >= small_pool.below]
        apart = pool - sum(size + _ALIGNMENT for size in sizes)
        if apart:  # where small tensors lie in it does not matter
            self.allocate(apart)
        self._wall_off(sizes)
        for address in fillers:
            self.free(address)
        self.below = small_pool.below

    def _wall_off(self, sizes: Sequence[int]) -> None:
        """Make free chunks, each followed by a used guard chunk."""
        free: list[int] = []
        for size in sizes:
            free.append(self.allocate(size))
            self.allocate(_ALIGNMENT)
        for address in free:
            self.free(address)

    def allocate(self, size: int) -> int:
        """Take a chunk of `size` bytes, rounded up to 256; returns its address.

        Raises:
            MemoryError: If no free chunk is large enough.
        """
        if size < self.below:
            return _IN_NOOK
        rounded = rounded_up(size)
        index = bisect_left(self._free, (rounded, -1))
        if index == len(self._free):
            raise MemoryError(f"no free chunk of {rounded} bytes")
        taken, address = self._free.pop(index)
        left = taken - rounded
        if left:
            self._place(address, rounded)
            self._place(address + rounded, left)
            insort(self._free, (left, address + rounded))
            taken = rounded
        self._used.add(address)
        self.in_use += taken
        if self.in_use > self.peak:
            self.peak = self.in_use
        return address

    def free(self, address: int) -> None:
        """Give a chunk back; it merges with free neighbours."""
        if address == _IN_NOOK:
            return
        used, sizes = self._used, self._size
        used.remove(address)
        size = sizes.pop(address)
        self.in_use -= size
        following = address + size
        if following in sizes and following not in used:
            size += self._absorb(following)
        preceding = self._end.get(address)
        if preceding is not None and preceding not in used:
            size += self._absorb(preceding)
            address = preceding
        self._place(address, size)
        insort(self._free, (size, address))

    def chunks(self) -> list[tuple[int, int, bool]]:
        """List all chunks by address, as (address, bytes, whether in use)."""
        return [
            (address, size, address in self._used)
            for address, size in sorted(self._size.items())
        ]

    def chunk_for(self, size: int) -> tuple[int, int] | None:
        """Return (bytes, address) of the free chunk that a request of `size` takes."""
        index = bisect_left(self._free, (size, -1))
        return self._free[index] if index < len(self._free) else None

    def free_around(self, address: int) -> tuple[int, int]:
        """Return begin and end of the free chunk at an address; equal if it is used."""
        found = (
            (begin, begin + size)
            for size, begin in self._free
            if begin <= address < begin + size
        )
        return next(found, (address, address))

    def _place(self, address: int, size: int) -> None:
        self._size[address] = size
        self._end[address + size] = address

    def _absorb(self, address: int) -> int:
        """Remove a free chunk from the lists; returns its size."""
        size = self._size.pop(address)
        del self._end[address + size]
        del self._free[bisect_left(self._free, (size, address))]
        return size


class ByteCounter:
    """Memory without fragmentation: a tensor fits wherever enough bytes are free.

    Planned addresses make an arena of nearly this kind (`lms.planning.addresses`).

    Args:
        capacity: Bytes of the memory.
        small_pool: Chunks for small tensors, all of which count as in use.
    """

    def __init__(self, capacity: int, small_pool: SmallPool = NO_POOL) -> None:
        self.in_use = small_pool.bytes
        self.below = small_pool.below
        self._capacity = capacity
        self._sizes: dict[int, int] = {}
        self._next = 0
        if self.in_use > capacity:
            raise MemoryError(f"no {self.in_use} bytes for the small pool")

    def allocate(self, size: int) -> int:
        """Take memory; returns a number to free it by.

        Raises:
            MemoryError: If fewer bytes are free.
        """
        if size < self.below:
            return _IN_NOOK
        size = rounded_up(size)
        if self.in_use + size > self._capacity:
            raise MemoryError(f"no {size} free bytes")
        self.in_use += size
        self._next += 1
        self._sizes[self._next] = size
        return self._next

    def free(self, number: int) -> None:
        """Give memory back."""
        if number != _IN_NOOK:
            self.in_use -= self._sizes.pop(number)

    def chunks(self) -> list[tuple[int, int, bool]]:
        """List (number, bytes, whether in use): all free bytes, then used chunks."""
        free = self._capacity - self.in_use
        used = ((number, size, True) for number, size in self._sizes.items())
        return [(0, free, False), *used]
