"""The budget planner: walk the order, and make room for each op.

When the next op does not fit, the resident tensor whose next use is farthest away
leaves: Belady's rule for paging ("A study of replacement algorithms for a
virtual-storage computer", IBM Systems Journal 5(2), 1966). A tensor is copied out
once; a later eviction just drops the device's copy. Copies back start one or more
ordered ops ahead of their reader, as far as there is room.

Known weakness: distance is counted in ops, not in seconds, and copies are free.
"""

import heapq
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from lms.allocator import Arena, ByteCounter
from lms.errors import BudgetError
from lms.graph import GraphView
from lms.liveness import Buffer, buffers, reused_bytes
from lms.plan import Swap, SwapIn, SwapPlan
from lms.planning.candidates import chain_groups
from lms.units import format_bytes

__all__ = ["PREFETCH_OPS", "least_room", "plan_within"]

PREFETCH_OPS = 4

# How often the walk begins again with what it learned, at most.
_ROUNDS = 12


@dataclass(slots=True, kw_only=True)
class _Step:
    """What the walk takes at once: an ordered group and the small ops up to the next.

    Buffers are numbers: indices into the graph's `buffers`. `need` is the most bytes of
    the buffers it touches, live at once, plus scratch.
    """

    group: Sequence[str]
    length: int = 0
    reads: set[int] = field(default_factory=set[int])
    makes: set[int] = field(default_factory=set[int])
    need: int = 0


@dataclass(slots=True)
class _Stay:
    """A time on the device that begins with a copy back."""

    first_read: int
    start: int
    reads: list[int]


@dataclass(slots=True)
class _Journey:
    """What the walk does with one buffer; numbers are positions of steps."""

    evicted: list[int] = field(default_factory=list[int])
    stays: list[_Stay] = field(default_factory=list[_Stay])


def plan_within(
    graph: GraphView,
    room: int,
    *,
    movable: frozenset[str],
    min_bytes: int,
    prefetch_ops: int = PREFETCH_OPS,
    arena: Callable[[], Arena] | None = None,
) -> SwapPlan:
    """Plan a step whose own memory never exceeds `room`.

    Args:
        graph: The graph in the execution order to obey.
        room: Bytes that the step may use, persistent bytes excluded.
        movable: Names of the root tensors that may move.
        min_bytes: Ops that touch a tensor of at least this size are ordered.
        prefetch_ops: How many ordered ops before its reader a copy back may start.
        arena: Makes what tensors take their room from, of `room` bytes. None counts
            bytes; a `BestFitAllocator` loses what a real allocator loses.

    Returns:
        A plan; without swaps if everything fits.

    Raises:
        BudgetError: If an op does not fit with everything movable out; names the op
            and the least room.
    """
    live = buffers(graph)
    chain = chain_groups(graph, min_bytes=min_bytes)
    steps = _steps(graph, chain, live)
    _refuse_if_infeasible(steps, live, movable, room)
    walk = _walk(graph, steps, live, movable, arena or partial(ByteCounter, room))
    if walk is None:
        raise BudgetError(
            "`room` must hold every op's tensors in the arena's chunks, got "
            f"{format_bytes(room)}. Use more room."
        )
    journeys = walk.journeys
    _prefetch(steps, live, journeys, walk.usage, room=room, prefetch_ops=prefetch_ops)
    return SwapPlan(
        planner="budget",
        order=tuple(op.name for op in graph.ops),
        chain=chain,
        swaps=_swaps(graph, steps, live, journeys),
    )


def least_room(
    graph: GraphView, *, movable: frozenset[str], min_bytes: int
) -> tuple[int, str]:
    """The least bytes in which `plan_within` succeeds, and the op that needs them.

    At each op: what it reads, makes and needs as scratch, and whatever else is live
    that may not move.
    """
    live = buffers(graph)
    steps = _steps(graph, chain_groups(graph, min_bytes=min_bytes), live)
    needs = _needs(steps, live, movable)
    most = max(needs, default=0)
    return most, _name(steps[needs.index(most)]) if steps else ""


def _name(step: _Step) -> str:
    return step.group[0] if step.group else "the step's small ops"


def _refuse_if_infeasible(
    steps: Sequence[_Step],
    live: Sequence[Buffer],
    movable: frozenset[str],
    room: int,
) -> None:
    needs = _needs(steps, live, movable)
    most = max(needs, default=0)
    if most > room:
        name = _name(steps[needs.index(most)])
        raise BudgetError(
            f"`room` must be at least {format_bytes(most)}, what op {name!r} needs, "
            f"got {format_bytes(room)}. Use a smaller batch or volume.",
            op_name=name,
            least_bytes=most,
        )


def _steps(
    graph: GraphView, chain: Sequence[Sequence[str]], live: Sequence[Buffer]
) -> list[_Step]:
    group_of = {name: i for i, group in enumerate(chain) for name in group}
    steps: list[_Step] = []
    step_at: list[int] = []
    for op in graph.ops:
        group = group_of.get(op.name)
        if not steps or (group is not None and op.name == chain[group][0]):
            steps.append(_Step(group=chain[group] if group is not None else ()))
        steps[-1].length += 1
        step_at.append(len(steps) - 1)
    for i, buffer in enumerate(live):
        steps[step_at[buffer.producer]].makes.add(i)
        for use in buffer.uses:
            steps[step_at[use]].reads.add(i)
    for step in steps:
        step.reads -= step.makes
    _measure_needs(graph, steps, step_at, live)
    return steps


def _measure_needs(
    graph: GraphView,
    steps: Sequence[_Step],
    step_at: Sequence[int],
    live: Sequence[Buffer],
) -> None:
    """Sweep the positions, counting only what the position's step touches."""
    dying = _dying(live)
    last = [len(graph.ops) if buffer.kept else buffer.last for buffer in live]
    position = 0
    for number, step in enumerate(steps):
        present = {i: live[i].size for i in step.reads}
        makes = sorted(step.makes, key=lambda i: live[i].producer, reverse=True)
        while position < len(graph.ops) and step_at[position] == number:
            op = graph.ops[position]
            while makes and live[makes[-1]].producer == position:
                made = makes.pop()
                present[made] = live[made].size
            reused = reused_bytes(op, dying.get(position, ()))
            step.need = max(step.need, sum(present.values()) + op.scratch - reused)
            for i in [i for i in present if last[i] == position]:
                del present[i]
            position += 1


def _dying(live: Sequence[Buffer]) -> dict[int, list[int]]:
    """Sizes of the buffers that an op may write over, by its position."""
    dying: dict[int, list[int]] = {}
    for buffer in live:
        if buffer.uses and not buffer.kept:
            dying.setdefault(buffer.last, []).append(buffer.size)
    return dying


def _last_steps(steps: Sequence[_Step], live: Sequence[Buffer]) -> list[int]:
    """The step after which each buffer is free; past the end for kept ones."""
    last = [0] * len(live)
    for position, step in enumerate(steps):
        for i in step.reads | step.makes:
            last[i] = position
    return [len(steps) if b.kept else last[i] for i, b in enumerate(live)]


def _needs(
    steps: Sequence[_Step], live: Sequence[Buffer], movable: frozenset[str]
) -> list[int]:
    """Bytes that must be on the device at each step, all that may move being out."""
    last = _last_steps(steps, live)
    stays = [buffer.root not in movable for buffer in live]
    staying = 0
    needs: list[int] = []
    for position, step in enumerate(steps):
        touched = step.reads | step.makes
        idle = staying - sum(live[i].size for i in step.reads if stays[i])
        needs.append(idle + step.need)
        staying += sum(live[i].size for i in step.makes if stays[i])
        staying -= sum(
            live[i].size for i in touched if stays[i] and last[i] == position
        )
    return needs


def _walk(
    graph: GraphView,
    steps: Sequence[_Step],
    live: Sequence[Buffer],
    movable: frozenset[str],
    arena: Callable[[], Arena],
) -> "_Walk | None":
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
        walk = _Walk(graph, steps, live, movable, arena(), drops)
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


class _Walk:
    """Belady's walk: who leaves at which step, who is back at which.

    Memory is real to it: every tensor takes its room and gives it back, so whatever
    the arena loses between tensors is made up for by one more eviction.
    """

    def __init__(
        self,
        graph: GraphView,
        steps: Sequence[_Step],
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
        self.journeys: list[_Journey | None] = [None] * len(live)
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

    def _bring_in(self, step: _Step) -> None:
        """Drop what is known to be in the way; copy back what the step reads."""
        for i in sorted(self._drops.get(self._number, set()) & self._chunk.keys()):
            if self._live[i].root in self._movable:
                self._drop(i)
        for i in sorted(step.reads - self._chunk.keys()):
            self._take(i)
            stay = _Stay(self._number, self._number, [])
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

    def _look_ahead(self, step: _Step) -> None:
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
            self.journeys[i] = _Journey()
        _known(self.journeys[i]).evicted.append(self._number)


def _known(journey: _Journey | None) -> _Journey:
    if journey is None:
        raise AssertionError("a buffer that is not resident has been evicted")
    return journey


def _prefetch(
    steps: Sequence[_Step],
    live: Sequence[Buffer],
    journeys: Sequence[_Journey | None],
    usage: list[int],
    *,
    room: int,
    prefetch_ops: int,
) -> None:
    """Start copies back earlier, step by ordered step, while there is room."""
    chained = [position for position, step in enumerate(steps) if step.group]
    stays = [
        (stay, live[i].size, journey.evicted[k])
        for i, journey in enumerate(journeys)
        if journey is not None
        for k, stay in enumerate(journey.stays)
    ]
    for stay, size, evicted in sorted(stays, key=lambda item: item[0].first_read):
        index = bisect_left(chained, stay.first_read) - 1
        for earlier in reversed(chained[max(0, index + 1 - prefetch_ops) : index + 1]):
            between = range(earlier, stay.start)
            if earlier <= evicted or any(usage[p] + size > room for p in between):
                break
            for p in between:
                usage[p] += size
            stay.start = earlier


def _swaps(
    graph: GraphView,
    steps: Sequence[_Step],
    live: Sequence[Buffer],
    journeys: Sequence[_Journey | None],
) -> tuple[Swap, ...]:
    """The journeys in the plan's words: names of ops instead of steps."""
    chained = [position for position, step in enumerate(steps) if step.group]

    def trigger(start: int) -> str | None:
        before = bisect_left(chained, start) - 1
        return steps[chained[before]].group[-1] if before >= 0 else None

    def release(evicted: int) -> str | None:
        following = bisect_left(chained, evicted)
        found = following < len(chained)
        return steps[chained[following]].group[0] if found else None

    step_at = [number for number, step in enumerate(steps) for _ in range(step.length)]

    def readers(buffer: Buffer, stay: _Stay) -> tuple[str, ...]:
        within = set(stay.reads)
        uses = (use for use in buffer.uses if step_at[use] in within)
        return tuple(graph.ops[use].name for use in uses)

    return tuple(
        Swap(
            tensor=buffer.root,
            size=buffer.size,
            release=release(journey.evicted[0]),
            swap_ins=tuple(
                SwapIn(trigger=trigger(stay.start), readers=readers(buffer, stay))
                for stay in journey.stays
            ),
        )
        for buffer, journey in zip(live, journeys, strict=True)
        if journey is not None
    )
