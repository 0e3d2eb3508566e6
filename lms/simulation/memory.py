"""Memory of a step that obeys a plan: bytes on the device while each op runs.

Residencies (`lms.ir.liveness`) say how many bytes a tensor holds, and from which
position to which. `simulate_memory` adds up their sizes; `allocator_peak` plays them to
a model of the allocator, with its rounding and fragmentation.

Known weakness: positions, not seconds. A new value of a variable that is read after it
was assigned is taken to die with its last reader.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from lms.ir.graph import GraphView, Op, per_graph
from lms.ir.liveness import Residency, bytes_in_use, new_value, written_over
from lms.ir.plan import SwapPlan, resolve
from lms.simulation.allocator import NO_POOL, BestFitAllocator, SmallPool, rounded_up

__all__ = ["Event", "MemoryTimeline", "Region", "allocator_curve", "allocator_peak"]
__all__ += ["find_events", "find_requests", "peaks_by_region", "simulate_memory"]


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
class Region:
    """Contiguous memory that an allocator hands out.

    Args:
        capacity: Bytes.
        scratch_first: Whether ops take their scratch, in two halves, before their
            outputs; else in one piece after them. Kernels do either.
    """

    capacity: int
    small_pool: SmallPool = NO_POOL
    scratch_first: bool = False


class Event(NamedTuple):
    """Memory that one op takes and gives back; numbers are indices of residencies.

    Args:
        taken: Residencies that begin and need memory.
        heir: An in-place output, and the dying input whose memory it takes.
        scratch: Bytes while the op runs.
        given: Residencies that end.
    """

    taken: Sequence[int]
    heir: tuple[int, int] | None
    scratch: int
    given: Sequence[int]


class Request(NamedTuple):
    """Memory that an op takes and gives back; numbers are keys of chunks."""

    taken: Sequence[tuple[int, int]] = ()  # chunks, each with its bytes
    scratch: int = 0  # bytes while it runs
    given: Sequence[int] = ()
    replaced: Sequence[tuple[str, int, int]] = ()  # variable, bytes, new value's chunk


def simulate_memory(graph: GraphView, plan: SwapPlan) -> MemoryTimeline:
    """Predict the bytes in use while each op of a valid plan's order runs."""
    resolved = resolve(graph, plan)
    device = bytes_in_use(resolved.ops, graph.roots, resolved.residencies)
    host = [0] * (len(resolved.ops) + 1)
    for swap in resolved.swaps:  # on the host from its producer to its last reader
        buffer = swap.buffer
        host[min(buffer.producer + 1, buffer.last)] += buffer.size
        host[buffer.last + 1] -= buffer.size
    return MemoryTimeline(device=tuple(device), host=tuple(accumulate(host[:-1])))


def allocator_peak(
    graph: GraphView, plan: SwapPlan, *, capacity: int, small_pool: SmallPool = NO_POOL
) -> int | None:
    """Predict the peak that the allocator reports for the step, in bytes.

    `capacity` is the memory of the device that the step may use, in bytes.

    Returns:
        Bytes of chunks in use at most; None if the allocator runs out of memory.
    """
    region = Region(capacity=capacity, small_pool=small_pool)
    return next(peaks_by_region(graph, plan, [region]))


def peaks_by_region(
    graph: GraphView, plan: SwapPlan, regions: Sequence[Region]
) -> Iterator[int | None]:
    """Yield the peak in each region in turn; None where memory runs out."""
    least = min((region.small_pool.below for region in regions), default=0)
    requests = list(find_requests(graph, plan, least).values())
    for region in regions:
        used = _play(requests, region)
        yield None if used is None else max(used, default=0)


def allocator_curve(
    graph: GraphView, plan: SwapPlan, region: Region
) -> Sequence[int] | None:
    """Predict the bytes of chunks in use at each op; None if memory runs out."""
    known = find_requests(graph, plan, region.small_pool.below)
    none = Request()
    requests = [known.get(i, none) for i in range(len(plan.order))]
    return _play(requests, region)


def find_events(
    graph: GraphView,
    ops: Sequence[Op],
    lives: Sequence[Residency],
    least: int,
    always: Collection[str] = (),
) -> dict[int, Event]:
    """Return the events of at least `least` bytes, by position, ascending.

    Positions are those of `ops`; buffers whose roots are in `always` are never left
    out.
    """
    starts: dict[int, list[int]] = defaultdict(list)
    ends: dict[int, list[int]] = defaultdict(list)
    for i, life in enumerate(lives):
        if life.size >= least or life.root in always:
            starts[life.start].append(i)
            ends[life.end - 1].append(i)
    need = max(1, least)
    scratched = (i for i, op in enumerate(ops) if op.scratch >= need)
    return {
        at: _event(ops[at], graph.roots, lives, starts.get(at, ()), ends.get(at, ()))
        for at in sorted({*starts, *ends, *scratched})
    }


def _event(
    op: Op,
    roots: Mapping[str, str],
    lives: Sequence[Residency],
    starting: Sequence[int],
    ending: Sequence[int],
) -> Event:
    if not (op.inplace and starting and ending):
        return Event(starting, None, op.scratch, ending)
    dying = {lives[i].root: i for i in ending if lives[i].dies_at is not None}
    sizes = {root: lives[i].size for root, i in dying.items()}
    output, over = written_over(op, roots, sizes) or ("", "")
    heir = next(((i, dying[over]) for i in starting if lives[i].root == output), None)
    # Swap-ins that start beside the op come first: their tensors were made earlier.
    return Event(
        taken=[i for i in starting if heir is None or i != heir[0]],
        heir=heir,
        scratch=op.scratch,
        given=[i for i in ending if heir is None or i != heir[1]],
    )


@per_graph(most=6)  # a plan is tried in several regions
def find_requests(graph: GraphView, plan: SwapPlan, least: int) -> dict[int, Request]:
    """Return the requests of at least `least` bytes, by position, ascending."""
    resolved = resolve(graph, plan)
    ops, lives = resolved.ops, resolved.residencies
    held: dict[int, int] = {}  # residency -> the key of its chunk
    found: dict[int, Request] = {}
    for position, event in find_events(graph, ops, lives, least).items():
        taken, heir, scratch, given = event
        held.update(zip(taken, taken, strict=True))
        if heir is not None:
            held[heir[0]] = held.pop(heir[1])
        value = graph.roots.get(new_value(ops[position]) or "")
        new = [i for i in given if lives[i].root == value] if value else ()
        found[position] = Request(
            [(i, lives[i].size) for i in taken],
            scratch,
            [held.pop(i) for i in given if i not in new],
            [(ops[position].writes[0], lives[i].size, held.pop(i)) for i in new],
        )
    return found


def _play(requests: Sequence[Request], region: Region) -> list[int] | None:
    """Play requests in a region; returns bytes in use at each, None if too many.

    A variable's new value stays where it was made until the step has ended, and the old
    value's chunk is freed. The variables lie at the region's start.
    """
    sizes = {name: size for r in requests for name, size, _ in r.replaced}
    budget = sum(rounded_up(size) for size in sizes.values())
    allocator = BestFitAllocator(region.capacity + budget)
    try:
        variables = {
            name: allocator.allocate(size)
            for name, size in sorted(sizes.items(), key=lambda item: -item[1])
        }
        before = allocator.in_use
        allocator.keep_pool(region.small_pool)
        used = _step(requests, allocator, variables, region)
    except MemoryError:
        return None
    return [bytes_used - before for bytes_used in used]


def _step(
    requests: Sequence[Request],
    allocator: BestFitAllocator,
    variables: dict[str, int],
    region: Region,
) -> list[int]:
    """Play the requests of one step; returns the bytes of chunks in use at each."""
    chunk: dict[int, int] = {}
    used: list[int] = []
    passing: Sequence[int] = ()
    for taken, scratch, given, replaced in requests:
        if scratch and region.scratch_first:
            halves = scratch // 2, scratch - scratch // 2
            passing = [allocator.allocate(half) for half in halves]
        for key, size in taken:
            chunk[key] = allocator.allocate(size)
        if scratch and not region.scratch_first:
            passing = [allocator.allocate(scratch)]
        used.append(allocator.in_use)
        if scratch:
            for address in passing:
                allocator.free(address)
        for key in given:
            allocator.free(chunk.pop(key))
        for name, _, key in replaced:
            allocator.free(variables[name])
            variables[name] = chunk.pop(key)
    return used
