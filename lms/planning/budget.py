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
from collections.abc import Sequence
from dataclasses import dataclass, field

from lms.errors import BudgetError
from lms.graph import GraphView
from lms.liveness import Buffer, buffers, reused_bytes
from lms.plan import Swap, SwapIn, SwapPlan
from lms.planning.candidates import chain_groups
from lms.units import format_bytes

__all__ = ["PREFETCH_OPS", "least_room", "plan_within"]

PREFETCH_OPS = 4


@dataclass(slots=True, kw_only=True)
class _Step:
    """What the walk takes at once: an ordered group and the small ops up to the next.

    Buffers are numbers: indices into the graph's `buffers`. `need` is the most bytes of
    the buffers it touches, live at once, plus scratch.
    """

    group: Sequence[str]
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
) -> SwapPlan:
    """Plan a step whose own memory never exceeds `room`.

    Args:
        graph: The graph in the execution order to obey.
        room: Bytes that the step may use, persistent bytes excluded.
        movable: Names of the root tensors that may move.
        min_bytes: Ops that touch a tensor of at least this size are ordered.
        prefetch_ops: How many ordered ops before its reader a copy back may start.

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
    journeys, usage = _walk(steps, live, movable, room)
    _prefetch(steps, live, journeys, usage, room=room, prefetch_ops=prefetch_ops)
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
        if not steps or group is not None and op.name == chain[group][0]:
            steps.append(_Step(group=chain[group] if group is not None else ()))
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
    steps: Sequence[_Step],
    live: Sequence[Buffer],
    movable: frozenset[str],
    room: int,
) -> tuple[list[_Journey | None], list[int]]:
    """Belady's walk: who leaves at which step, who is back at which.

    Returns:
        A journey for each buffer that moves (None for the others), and the bytes in
        use at each step.
    """
    reads: list[list[int]] = [[] for _ in live]
    for position, step in enumerate(steps):
        for i in step.reads:
            reads[i].append(position)
    journeys: list[_Journey | None] = [None] * len(live)
    resident = [False] * len(live)
    upcoming = [0] * len(live)  # index into `reads` of the next use
    farthest: list[tuple[int, int]] = []  # (-next use, buffer), stale entries skipped
    used = 0
    usage: list[int] = []
    for position, step in enumerate(steps):
        touched = step.reads | step.makes
        missing = sorted(i for i in touched if not resident[i])
        idle = used - sum(live[i].size for i in touched if resident[i])
        while idle + step.need > room:
            out = _farthest(farthest, resident, reads, upcoming, touched)
            resident[out] = False
            used -= live[out].size
            idle -= live[out].size
            if journeys[out] is None:
                journeys[out] = _Journey()
            _known(journeys[out]).evicted.append(position)
        usage.append(idle + step.need)
        for i in missing:
            resident[i] = True
            used += live[i].size
            if i in step.reads:
                _known(journeys[i]).stays.append(_Stay(position, position, []))
        for i in sorted(touched):
            if i in step.reads:
                upcoming[i] += 1
                journey = journeys[i]
                if journey is not None and journey.stays:
                    journey.stays[-1].reads.append(position)
            if upcoming[i] < len(reads[i]):
                if live[i].root in movable:
                    heapq.heappush(farthest, (-reads[i][upcoming[i]], i))
            elif not live[i].kept:
                resident[i] = False
                used -= live[i].size
    return journeys, usage


def _known(journey: _Journey | None) -> _Journey:
    if journey is None:
        raise AssertionError("a buffer that is not resident has been evicted")
    return journey


def _farthest(
    heap: list[tuple[int, int]],
    resident: Sequence[bool],
    reads: Sequence[Sequence[int]],
    upcoming: Sequence[int],
    touched: set[int],
) -> int:
    """The resident buffer with the farthest next use that this step does not touch."""
    passed: list[tuple[int, int]] = []
    while heap:
        entry = heapq.heappop(heap)
        negative, i = entry
        current = upcoming[i] < len(reads[i]) and reads[i][upcoming[i]] == -negative
        if not resident[i] or not current:
            continue
        if i not in touched:
            for kept in passed:
                heapq.heappush(heap, kept)
            return i
        passed.append(entry)
    raise AssertionError("room was checked to suffice for this step")


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

    def readers(buffer: Buffer, stay: _Stay) -> tuple[str, ...]:
        within = {name for position in stay.reads for name in steps[position].group}
        names = (graph.ops[use].name for use in buffer.uses)
        return tuple(name for name in names if name in within)

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
