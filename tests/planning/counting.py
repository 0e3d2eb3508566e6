"""Plans that count bytes: an ideal arena loses nothing, so numbers are by hand."""

from functools import partial

from lms.ir.graph import GraphView
from lms.ir.plan import SwapPlan
from lms.planning.eviction import plan_within
from lms.simulation.allocator import BestFitAllocator

__all__ = ["plan_in_bytes"]


class _ByteCounter(BestFitAllocator):
    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._capacity = capacity

    def allocate(self, size: int) -> int:
        if self.in_use + size > self._capacity:
            raise MemoryError(f"{size} bytes do not fit")
        self.in_use += size
        return size

    def free(self, address: int) -> None:
        self.in_use -= address


def plan_in_bytes(
    graph: GraphView, budget: int, *, movable: frozenset[str], min_bytes: int
) -> SwapPlan:
    """Return a plan within `budget` bytes.

    Raises:
        MemoryError: If there is none.
    """
    arena = partial(_ByteCounter, budget)
    made = plan_within(graph, arena, movable=movable, min_bytes=min_bytes)
    if made is None:
        raise MemoryError(f"no plan of {budget} bytes")
    return made
