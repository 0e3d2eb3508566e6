"""What a plan does to memory: bytes on the device while each op runs.

Each tensor of the step has one or more residencies: the original from its producer to
its last near reader - or until the op that waits for its release - and one for each
copy back, from its trigger to its last reader. Two views are taken of them:

- `simulate_memory` adds up sizes: what the step needs by itself.
- `allocator_peak` plays them to a model of the allocator: what it will report, lost
  parts of chunks included.

Known weakness: positions, not seconds. A copy out is taken to end where its release
says, or right after the last near reader where nothing waits for it.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from lms.allocator import BestFitAllocator
from lms.graph import GraphView
from lms.liveness import Buffer, buffers, reused_bytes
from lms.plan import Swap, SwapPlan

__all__ = ["MemoryTimeline", "allocator_curve", "allocator_peak", "simulate_memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTimeline:
    """Memory over one step, position by position of the plan's order.

    Args:
        device: Bytes of the step on the device while each op runs.
        host: Bytes of swapped-out tensors on the host while each op runs.
    """

    device: tuple[int, ...]
    host: tuple[int, ...]

    @property
    def device_peak(self) -> int:
        """The most bytes of the step on the device at once."""
        return max(self.device, default=0)

    @property
    def host_peak(self) -> int:
        """The most bytes of swapped-out tensors on the host at once."""
        return max(self.host, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Residency:
    """Half-open interval of positions in which one copy of a buffer is on the device.

    `dies_at` is the position of the op that reads it last and may write over it.
    """

    start: int
    end: int
    size: int
    dies_at: int | None


def simulate_memory(graph: GraphView, plan: SwapPlan) -> MemoryTimeline:
    """Predict the memory of a step that obeys a plan.

    Args:
        graph: The graph that the plan is for, in any execution order.
        plan: A plan that `validate_plan` accepts.

    Returns:
        Bytes on device and host while each op of `plan.order` runs.
    """
    ordered = graph.reordered(plan.order)
    device = [0] * (len(plan.order) + 1)
    dying: dict[int, list[int]] = defaultdict(list)
    for life in _residencies(ordered, plan):
        device[life.start] += life.size
        device[life.end] -= life.size
        if life.dies_at is not None:
            dying[life.dies_at].append(life.size)
    live = list(accumulate(device[:-1]))
    used = tuple(
        live[i] + op.scratch - reused_bytes(op, dying.get(i, ()))
        for i, op in enumerate(ordered.ops)
    )
    return MemoryTimeline(device=used, host=_host_curve(ordered, plan))


def allocator_peak(
    graph: GraphView, plan: SwapPlan, *, capacity: int, nook: int = 0
) -> int | None:
    """Predict the peak that the allocator reports for the step, in bytes.

    Args:
        graph: The graph that the plan is for, in any execution order.
        plan: A plan that `validate_plan` accepts.
        capacity: Bytes of device memory that the step may use.
        nook: Bytes kept apart for small tensors (`BestFitAllocator`).

    Returns:
        Bytes of chunks in use at most; None if the allocator runs out of memory.
    """
    curve = allocator_curve(graph, plan, capacity=capacity, nook=nook)
    return None if curve is None else max(curve, default=0)


def allocator_curve(
    graph: GraphView, plan: SwapPlan, *, capacity: int, nook: int = 0
) -> tuple[int, ...] | None:
    """As `allocator_peak`: bytes of chunks in use while each op of the order runs."""
    ordered = graph.reordered(plan.order)
    starts: dict[int, list[_Residency]] = defaultdict(list)
    ends: dict[int, list[_Residency]] = defaultdict(list)
    for life in _residencies(ordered, plan):
        starts[life.start].append(life)
        ends[life.end - 1].append(life)
    chunk: dict[int, int] = {}  # identity of a residency -> address
    used: list[int] = []
    try:
        allocator = BestFitAllocator(capacity, nook)
        for position, op in enumerate(ordered.ops):
            reusable = [
                life
                for life in ends.get(position, ())
                if op.inplace and life.dies_at == position and life.start < position
            ]
            made = {tensor.size for tensor in op.outputs[:1]}
            for life in starts.get(position, ()):
                taken = next((r for r in reusable if r.size == life.size), None)
                if taken is not None and life.size in made:
                    chunk[id(life)] = chunk.pop(id(taken))
                    made.clear()
                else:
                    chunk[id(life)] = allocator.allocate(life.size)
            scratch = allocator.allocate(op.scratch) if op.scratch else None
            used.append(allocator.in_use)
            if scratch is not None:
                allocator.free(scratch)
            for life in ends.get(position, ()):
                if id(life) in chunk:
                    allocator.free(chunk.pop(id(life)))
    except MemoryError:
        return None
    return tuple(used)


def _host_curve(ordered: GraphView, plan: SwapPlan) -> tuple[int, ...]:
    """A swapped tensor is on the host from its producer to its last reader."""
    moved = {swap.tensor for swap in plan.swaps}
    host = [0] * (len(plan.order) + 1)
    for buffer in buffers(ordered):
        if buffer.root in moved:
            host[min(buffer.producer + 1, buffer.last)] += buffer.size
            host[buffer.last + 1] -= buffer.size
    return tuple(accumulate(host[:-1]))


def _residencies(ordered: GraphView, plan: SwapPlan) -> list[_Residency]:
    position = {name: i for i, name in enumerate(plan.order)}
    chained = sorted(position[name] for group in plan.chain for name in group)
    swaps = {swap.tensor: swap for swap in plan.swaps}
    lives: list[_Residency] = []
    for buffer in buffers(ordered):
        swap = swaps.get(buffer.root)
        if swap is None:
            lives.append(_whole(buffer, len(plan.order)))
        else:
            lives += _parts(buffer, swap, position, chained)
    return lives


def _whole(buffer: Buffer, steps: int) -> _Residency:
    """The residency of a buffer that stays."""
    return _Residency(
        start=buffer.producer,
        end=steps if buffer.kept else buffer.last + 1,
        size=buffer.size,
        dies_at=None if buffer.kept or not buffer.uses else buffer.last,
    )


def _parts(
    buffer: Buffer, swap: Swap, position: dict[str, int], chained: Sequence[int]
) -> list[_Residency]:
    """The residencies of a buffer that moves: the original, then each copy back."""
    far = {position[name] for copy in swap.swap_ins for name in copy.readers}
    near = [use for use in buffer.uses if use not in far]
    gone = max([buffer.producer, *near]) + 1
    if swap.release is not None:
        gone = max(gone, position[swap.release])
    lives = [
        _Residency(start=buffer.producer, end=gone, size=buffer.size, dies_at=None)
    ]
    for copy in swap.swap_ins:
        reads = [position[name] for name in copy.readers]
        start = buffer.producer if copy.trigger is None else position[copy.trigger]
        lives.append(
            _Residency(
                start=_next_ordered(start, min(reads), chained),
                end=max(reads) + 1,
                size=buffer.size,
                dies_at=max(reads),
            )
        )
    return lives


def _next_ordered(trigger: int, first_read: int, chained: Sequence[int]) -> int:
    """Where a copy in starts to take room: beside the next ordered op."""
    following = bisect_right(chained, trigger)
    after = chained[following] if following < len(chained) else trigger + 1
    return min(after, first_read)
