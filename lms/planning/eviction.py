"""Belady's walk over the steps: which tensors leave the device where, and return.

    order ──> steps ──Walk──> histories, by numbers of steps ──> SwapPlan, by names

One of two rules evicts: the tensor with the farthest next use leaves, Belady's rule for
paging ("A study of replacement algorithms for a virtual-storage computer", IBM Systems
Journal 5(2), 1966), or the cheapest neighbours that free one chunk. A tensor is copied
out once; a later eviction just drops the device's copy.

A step of the walk, not to be taken for a training step, is an ordered op and the ops
up to the next ordered one. TensorFlow may run these in any order, so memory is freed
for all of them.

Known weakness: copies are free, and tensors are back just before they are read;
`lms.planning.prefetch` moves the copies afterwards, knowing seconds.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lms.ir.graph import GraphView, per_graph
from lms.ir.liveness import Buffer, buffers, memory_curve, staying
from lms.ir.plan import Swap, SwapIn, SwapPlan
from lms.planning.candidates import large_ops
from lms.planning.tuning import TUNING
from lms.simulation.allocator import BestFitAllocator, ByteCounter, rounded_up
from lms.simulation.memory import Event, find_events
from lms.units import Bytes

__all__ = ["EvictionRules", "least_room", "plan_within"]

# Factor on the cost of evicting a buffer that is to leave anyway.
_OF_LEAVING = 0.01


@dataclass(slots=True, kw_only=True)
class Step:
    """Ops that the walk takes at once: an ordered op and the ops up to the next.

    Buffers are numbers: indices into the graph's `buffers`. `op` is the ordered op,
    None before the first.
    """

    op: str | None
    reads: set[int] = field(default_factory=set[int])
    makes: set[int] = field(default_factory=set[int])


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionRules:
    """Rules of eviction.

    Args:
        leaving: Roots of the buffers to evict first, each with the name of the op from
            which on it may be evicted.
        by_window: Whether neighbouring buffers are evicted to free one contiguous
            chunk; else the buffer whose next use is farthest.
        walks: The most walks that get to the end of the training step.
    """

    leaving: Mapping[str, str] = field(default_factory=dict[str, str])
    by_window: bool = False
    walks: int = TUNING.eviction_rounds


def plan_within(
    graph: GraphView,
    arena: Callable[[], BestFitAllocator | ByteCounter],
    *,
    movable: frozenset[str],
    min_bytes: int,
    rules: EvictionRules | None = None,
) -> SwapPlan | None:
    """Plan a step, in the graph's order, whose own memory never exceeds an arena.

    Ops that touch a tensor of at least `min_bytes` are ordered. Without rules, the
    buffer with the farthest next use is evicted.

    Returns:
        A plan, without swaps if everything fits; None if there is none.
    """
    outline = _outline(graph, min_bytes)
    walk = _walk_within(graph, outline, movable, arena, rules or EvictionRules())
    if walk is None:
        return None
    return SwapPlan(
        planner="budget",
        order=graph.order,
        chain=outline.chain,
        swaps=_swaps(graph, outline, walk),
    )


def least_room(
    graph: GraphView, *, movable: frozenset[str], min_bytes: int
) -> tuple[int, str]:
    """Return a lower bound on the bytes of any plan, and the op that needs them.

    An op needs its inputs, outputs and scratch, and all live tensors that may not move.
    """
    _, steps, step_at = _outline(graph, min_bytes)
    needed = [0] * len(steps)  # first with all live tensors
    for number, used in zip(step_at, memory_curve(graph), strict=True):
        needed[number] = max(needed[number], used)
    moving = {i: b for i, b in enumerate(buffers(graph)) if b.root in movable}
    last = {i: step for step in steps for i in step.reads | step.makes}
    held = 0  # bytes of live tensors that may move
    for number, step in enumerate(steps):
        reads, touched = step.reads & moving.keys(), step.reads | step.makes
        needed[number] -= held - sum(moving[i].size for i in reads)
        held += sum(moving[i].size for i in step.makes & moving.keys())
        ends = (moving[i] for i in touched & moving.keys() if last[i] is step)
        held -= sum(buffer.size for buffer in ends if not buffer.kept)
    most = max(needed, default=0)
    largest = steps[needed.index(most)].op if steps else ""
    return most, largest or "the step's small ops"


class _Outline(NamedTuple):
    """The ordered ops, and the steps that begin with them."""

    chain: tuple[str, ...]
    steps: Sequence[Step]
    step_at: Sequence[int]  # by the position of an op


@per_graph()
def _outline(graph: GraphView, min_bytes: int) -> _Outline:
    """Split the execution order into steps, each with its reads and outputs."""
    chain = large_ops(graph, min_bytes=min_bytes)
    ordered = frozenset(chain)
    steps: list[Step] = []
    step_at: list[int] = []
    for op in graph.ops:
        if not steps or op.name in ordered:
            steps.append(Step(op=op.name if op.name in ordered else None))
        step_at.append(len(steps) - 1)
    for i, buffer in enumerate(buffers(graph)):
        steps[step_at[buffer.producer]].makes.add(i)
        for use in buffer.uses:
            steps[step_at[use]].reads.add(i)
    for step in steps:
        step.reads -= step.makes
    return _Outline(chain, steps, step_at)


def _swaps(graph: GraphView, outline: _Outline, walk: "Walk") -> tuple[Swap, ...]:
    """Turn a walk, which numbers steps, into swaps, which name ops.

    Nothing leaves in the first step, the only one that may have no ordered op.
    """
    _, steps, step_at = outline

    def readers(buffer: Buffer, reads: Sequence[int]) -> tuple[str, ...]:
        within = set(reads)
        uses = (use for use in buffer.uses if step_at[use] in within)
        return tuple(graph.ops[use].name for use in uses)

    return tuple(
        Swap(
            tensor=buffer.root,
            size=buffer.size,
            release=steps[walk.evicted[i]].op,
            swap_ins=tuple(
                SwapIn(trigger=steps[reads[0] - 1].op, readers=readers(buffer, reads))
                for reads in walk.reads[i]
            ),
        )
        for i, buffer in enumerate(buffers(graph))
        if i in walk.evicted
    )


def _walk_within(
    graph: GraphView,
    outline: _Outline,
    movable: frozenset[str],
    arena: Callable[[], BestFitAllocator | ByteCounter],
    rules: EvictionRules,
) -> "Walk | None":
    """Walk until every step fits; None if one does not.

    A buffer that a step evicts must be out before the step starts, so the walk begins
    again with the known evictions, until it finds no new one. A step may also fail by
    fragmentation, although enough bytes are free: then even the buffers that it reads
    are moved out and in at the step, and the copies are placed side by side.
    """
    try:
        below = arena().below
    except MemoryError:  # not even the pool of small tensors fits
        return None
    course = _course(graph, outline, movable, rules.leaving, below)
    drops: dict[int, set[int]] = defaultdict(set)
    number = {buffer.root: i for i, buffer in enumerate(buffers(graph))}
    at = ((root, graph.position[name]) for root, name in rules.leaving.items())
    due = sorted((outline.step_at[position], number[root]) for root, position in at)
    leave, walks = {i: step for step, i in due}, rules.walks
    compacted: set[int] = set()
    walk, failed = None, None
    for _ in range(TUNING.eviction_rounds):
        walk = Walk(course, arena(), drops, leave, by_window=rules.by_window)
        failed = walk.run()
        if failed is not None:
            if failed in compacted:
                return None
            compacted.add(failed)
            walk.late[failed] |= outline.steps[failed].reads
        walks -= failed is None
        if not walk.late or not walks:
            return walk
        for number, buffers_out in walk.late.items():
            drops[number] |= buffers_out
    return walk if failed is None else None


@dataclass(frozen=True, slots=True)
class _Stage:
    """Facts about a step that no eviction changes; small buffers are left out."""

    reads: Sequence[int]  # buffers of earlier steps
    touched: frozenset[int]  # `reads`, and the buffers that it makes
    events: Sequence[Event]  # of ops that take or give memory
    next_uses: Mapping[int, tuple[int, int]]  # of movable buffers: (next step, -buffer)


@dataclass(frozen=True, slots=True)
class _Course:
    """Data that all rounds of a walk share."""

    stages: Sequence[_Stage]
    sizes: Sequence[int]
    may_drop: Sequence[bool]  # movable, or to leave


@per_graph(most=1)  # many capacities are tried in a row
def _course(
    graph: GraphView,
    outline: _Outline,
    movable: frozenset[str],
    leaving: Mapping[str, str],
    below: Bytes,
) -> _Course:
    live = buffers(graph)
    # Small tensors that stay have chunks in the pool, and are left out.
    large = [b.size >= below or b.root in leaving for b in live]
    events: dict[int, list[Event]] = defaultdict(list)
    found = find_events(graph, graph.ops, staying(graph), below, leaving)
    for position, event in found.items():
        events[outline.step_at[position]].append(event)
    following: dict[int, int] = {}  # buffer -> the next step that reads it
    stages: list[_Stage] = []
    for number, step in reversed(list(enumerate(outline.steps))):
        reads = [i for i in sorted(step.reads) if large[i]]
        touched = [i for i in sorted(step.reads | step.makes) if large[i]]
        stages.append(
            _Stage(
                reads=reads,
                touched=frozenset(touched),
                events=events[number],
                next_uses={
                    i: (following[i], -i)
                    for i in touched
                    if i in following and live[i].root in movable
                },
            )
        )
        following.update(dict.fromkeys(reads, number))
    may_drop = [b.root in movable or b.root in leaving for b in live]
    return _Course(stages[::-1], [buffer.size for buffer in live], may_drop)


def _cheapest_window(
    sizes: Sequence[int], costs: Sequence[float], size: int
) -> tuple[int, int] | None:
    """Return the cheapest range of neighbours of `size` bytes; None if none may go.

    Example:
        >>> _cheapest_window([4, 4, 4, 4], [3.0, 1.0, 1.0, math.inf], 8)
        (1, 3)
    """
    least, found = math.inf, None
    begin, held, cost = 0, 0, 0.0
    for end, (bytes_, price) in enumerate(zip(sizes, costs, strict=True)):
        if price == math.inf:
            begin, held, cost = end + 1, 0, 0.0
            continue
        held, cost = held + bytes_, cost + price
        while held - sizes[begin] >= size:
            held, cost = held - sizes[begin], cost - costs[begin]
            begin += 1
        if held >= size and cost < least:
            least, found = cost, (begin, end + 1)
    return found


class Walk:
    """Belady's walk: the steps at which each buffer leaves and is back.

    Every tensor is allocated in the arena and freed again, so bytes that are lost to
    fragmentation are made up for by more evictions.

    Attributes:
        late: Evictions by steps that `drops` did not foresee.
        evicted: The step of each buffer's first eviction.
        reads: For each swap-in of a buffer, the steps that read its copy.
    """

    def __init__(
        self,
        course: _Course,
        arena: BestFitAllocator | ByteCounter,
        drops: Mapping[int, set[int]],
        leaving: Mapping[int, int],
        *,
        by_window: bool,
    ) -> None:
        self._course = course
        self._arena = arena
        self._drops = drops
        self._due = dict(leaving)  # buffers not evicted yet, the first to leave first
        self._by_window = by_window
        self.late: dict[int, set[int]] = defaultdict(set)
        self.evicted: dict[int, int] = {}
        self.reads: dict[int, list[list[int]]] = defaultdict(list)
        self._chunk: dict[int, int] = {}  # resident buffers and their chunks
        self._next_use: dict[int, tuple[int, int]] = {}  # (its step, -buffer)
        self._number = 0

    def run(self) -> int | None:
        """Walk all steps; returns one that does not fit with everything else out."""
        for number, stage in enumerate(self._course.stages):
            self._number = number
            try:
                self._bring_in(stage)
                for event in stage.events:
                    self._run_op(event)
            except MemoryError:
                return number
            self._next_use.update(stage.next_uses)
        return None

    def _bring_in(self, stage: _Stage) -> None:
        """Drop the buffers known to be evicted; copy back the buffers that are read."""
        for i in sorted(self._drops.get(self._number, ())):
            if i in self._chunk and self._course.may_drop[i]:
                self._drop(i)
        for i in stage.reads:
            if i not in self._chunk:
                self._take(i)
                self.reads[i].append([])
            if i in self.reads:
                self.reads[i][-1].append(self._number)

    def _run_op(self, event: Event) -> None:
        """Allocate outputs, in a dying input's place if possible; free dead buffers."""
        if event.heir is not None:
            output, dead = event.heir
            self._chunk[output] = self._chunk.pop(dead)
        for i in event.taken:
            self._take(i)
        if event.scratch:
            self._arena.free(self._allocate(event.scratch))
        for i in event.given:
            self._arena.free(self._chunk.pop(i))

    def _take(self, i: int) -> None:
        self._chunk[i] = self._allocate(self._course.sizes[i])

    def _allocate(self, size: int) -> int:
        """Allocate `size` bytes, evicting until they are free."""
        while True:
            try:
                return self._arena.allocate(size)
            except MemoryError:
                if not self._clear(size):
                    self._evict()

    def _clear(self, size: int) -> bool:
        """Evict the cheapest neighbouring buffers that leave one chunk of `size` bytes.

        A window slides over the addresses (Zhang et al., "Coop: Memory is not a
        commodity", NeurIPS 2023). Where only bytes count, the cheapest buffers are
        neighbours.
        """
        if not self._by_window:
            return False
        owner = {chunk: i for i, chunk in self._chunk.items()}
        chunks = [
            (self._cost(owner.get(address)) if used else 0.0, taken, address, used)
            for address, taken, used in self._arena.chunks()
        ]
        if isinstance(self._arena, ByteCounter):
            chunks.sort()
        costs, sizes = [each[0] for each in chunks], [each[1] for each in chunks]
        window = _cheapest_window(sizes, costs, rounded_up(size))
        for _, _, address, used in [] if window is None else chunks[slice(*window)]:
            if used:
                self._drop_late(owner[address])
        return window is not None

    def _cost(self, i: int | None) -> float:
        """Return a buffer's bytes over the steps until its next use.

        Less if it is to leave anyway; infinite if it is in use or may not move.
        """
        use, _ = self._next_use.get(-1 if i is None else i, (-1, 0))
        if i is None or use <= self._number:  # this step reads it, or no later one
            return math.inf
        is_to_leave = self._due.get(i, math.inf) <= self._number
        part = _OF_LEAVING if is_to_leave else 1.0
        return part * self._course.sizes[i] / (use - self._number)

    def _evict(self) -> None:
        """Drop a buffer that is to leave, else the idle one with the farthest use."""
        touched = self._course.stages[self._number].touched
        for i in [i for i, at in self._due.items() if at <= self._number]:
            del self._due[i]
            if i in self._chunk and i not in touched:
                self._drop_late(i)
                return
        use, number = max(self._next_use.values(), default=(-1, 0))
        if use <= self._number:
            raise MemoryError(f"step {self._number} does not fit")
        self._drop_late(-number)

    def _drop_late(self, i: int) -> None:
        """Take a buffer off the device at this step; the next walk does so before."""
        self.late[self._number].add(i)
        self._drop(i)

    def _drop(self, i: int) -> None:
        self._arena.free(self._chunk.pop(i))
        self._next_use.pop(i, None)
        self.evicted.setdefault(i, self._number)
