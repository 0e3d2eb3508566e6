"""Addresses for all large chunks of a planned step, decided before it runs.

    plan ──> turns ──> spans ──> packing ──> spacers

    op ──> [take outputs and scratch] runs [give scratch and dead inputs]

Turns say which chunks a step asks its allocator for, and when. Swap-ins that start
beside an op come before it, each in a turn of its own. Chunks that live at the same
time need addresses that do not overlap; `spans` lists these.

In a turn of several chunks each chunk gets room for a hole of a size of its own
(`lms.planning.spacers`).

A spacer is no smaller than the chunks that are planned, and larger than all chunks for
small tensors: else it would lie among these. So two chunks touch, or are that far
apart.

Packing is dynamic storage allocation: each chunk has bytes and a live interval, and two
chunks that live at once must not overlap in addresses. The least height is NP-hard to
find; it often is the most bytes that live at once. First fit places chunk after chunk,
each at its lowest free address: large chunks first, as TFLite does. Then a squeaky
wheel: the first chunk that ends above the room comes earlier in the next try.

Sources: Pisarchyk and Lee 2020, "Efficient memory management for deep neural net
inference", section 5 (greedy by size); Joslin and Clements 1999, "Squeaky wheel
optimization"; the problem as in minimalloc (ASPLOS 2023).

Known weakness: a packing that was not found may exist.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, islice
from random import Random
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lms.ir.graph import GraphView, Op, per_graph
from lms.ir.liveness import buffers, new_value, old_readers, peak
from lms.ir.plan import SwapPlan, resolve
from lms.planning.candidates import smallest_worth_moving
from lms.simulation.allocator import SmallPool, rounded_up
from lms.simulation.memory import find_requests
from lms.units import Bytes

__all__ = ["CHUNK", "Packed", "Placed", "Span", "Turn", "bytes_apart", "comes_first"]
__all__ += ["find_turns", "most_at_once", "pack", "place", "spans", "why_unsealed"]
__all__ += ["why_variables_move"]

CHUNK = rounded_up(1)  # bytes of the allocator's smallest chunk


# The first orders: by bytes x lifetime^power. More powers help less than more tries.
_POWERS = (0.0, 0.3)
# Powers rise by 0.1 for each further packing that is asked for.
_FURTHER = 0.1
# A chunk that ended too high moves to at most 0.4 of its place in the order.
_NEAREST = 0.4
# About 48 chunks start in a window of time: wider ones are slow to search, and more
# windows are slow to fill.
_STARTS = 48
# From 4,000 chunks on, one window is the whole time, and arrays search it.
_MANY = 4_000

_Row: TypeAlias = tuple[Bytes, Bytes, int, int]  # ends of addresses, ends of time


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Chunks that an op or a swap-in takes and gives; keys are numbers of chunks.

    Args:
        op: Name of the op that runs, or that the swap-in starts beside.
        copy: The swap and its swap-in, by their numbers in the plan; None for the op.
        takes: Chunks taken, in order, with their bytes; scratch has negative keys.
        gives: Chunks given back after the op.
        least: Bytes of the smallest spacer.
    """

    op: str
    copy: tuple[int, int] | None = None
    takes: Sequence[tuple[int, Bytes]] = ()
    gives: Sequence[int] = ()
    least: Bytes = CHUNK

    @property
    def holes(self) -> dict[int, Bytes]:
        """Bytes of the hole in which each chunk is taken, no two of equal size.

        Best fit takes the smallest hole that is large enough. So of equal chunks the
        first one takes the smallest hole.
        """
        found, before = dict[int, Bytes](), 0
        for key, size in sorted(self.takes, key=lambda chunk: chunk[1]):
            found[key] = (
                size if size > before else max(before + CHUNK, size + self.least)
            )
            before = found[key]
        return found


class Span(NamedTuple):
    """Room for a chunk of a step, from one moment to another (half-open).

    Turn i takes at the moment 2 i, and gives at 2 i + 1.
    """

    size: Bytes
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Addresses of a step's large chunks.

    Args:
        height: Bytes of the arena that they need.
        addresses: The address of each chunk in the arena, by its key.
    """

    height: Bytes
    addresses: Mapping[int, int]


@per_graph(most=6)
def place(
    graph: GraphView,
    plan: SwapPlan,
    pool: SmallPool,
    room: Bytes,
    tries: int,
    again: int = 0,
) -> Placed | None:
    """Find addresses for the large chunks of a step in `room` bytes.

    Another number `again` gives other addresses.

    Returns:
        None if no packing fits the room.
    """
    turns = find_turns(graph, plan, pool.below, pool.spacer)
    each = spans(turns)
    if not each:
        return Placed(height=0, addresses={})
    sizes, starts, ends = zip(*each.values(), strict=True)
    packed = pack(sizes, starts, ends, room, tries=tries, gap=pool.spacer, again=again)
    if packed is None:
        return None
    addresses = dict(zip(each, packed.offsets, strict=True))
    return Placed(height=packed.height, addresses=addresses)


@per_graph()
def why_unsealed(graph: GraphView) -> str | None:
    """Tell why the addresses of a step cannot be planned, as far as its graph says."""
    large = smallest_worth_moving(peak(graph))
    size = {b.root: b.size for b in buffers(graph)}
    new_values = 0  # the old values' memory may become one free fragment
    if any(size.get(graph.roots[name], 0) >= large for name in graph.results):
        return "the step returns large tensors"
    for op in graph.ops:
        made = max((tensor.size for tensor in op.outputs), default=0)
        if op.fixed and made >= large:
            return f"no order is planned for loop or branch {op.name!r}"
        if op.varies and made >= large:
            return f"the size of op {op.name!r} depends on values"
        if op.to_host and op.reusing is not None and op.reusing.size >= large:
            return f"op {op.name!r} writes in place what the host reads"
        new_values += size.get(graph.roots.get(new_value(op) or "", ""), 0)
        if new_values >= large:
            return f"op {op.name!r} gives a variable new memory"
    return None


def why_variables_move(graph: GraphView, large: Bytes) -> str | None:
    """Tell which op writes variables whose old values are read later.

    TensorFlow gives such variables new memory. The places that they leave may become
    one free fragment, which tensors of `large` bytes fit.

    Args:
        graph: The step in its planned order.
        large: Bytes of the smallest chunk with a planned address.
    """
    left = 0
    for position, size, readers in old_readers(graph):
        op = graph.ops[position]
        if max(readers, default=0) > position and not op.replaces_state:
            left += size
        if left >= large:
            return f"op {op.name!r} gives a variable new memory"
    return None


@per_graph(most=6)
def find_turns(
    graph: GraphView, plan: SwapPlan, least: Bytes, spacer: Bytes = CHUNK
) -> tuple[Turn, ...]:
    """Return the turns that take or give chunks of at least `least` bytes, in order.

    A spacer has at least `spacer` bytes. Ops that come first are left out too: their
    tensors get chunks of their own.
    """
    resolved = resolve(graph, plan)
    copies = _copies(plan, [life.root for life in resolved.residencies])
    turns: list[Turn] = []
    scratch = count(-1, -1)
    apart, chain = set[int](), frozenset(plan.chain)
    unit = max(rounded_up(least), spacer)
    for position, request in find_requests(graph, plan, least).items():
        op = resolved.ops[position]
        chunks = [(key, rounded_up(size)) for key, size in request.taken]
        if chunks and comes_first(op, chain):
            apart.update(key for key, _ in chunks)
            chunks = []
        own = [each for each in chunks if each[0] not in copies]
        takes = _in_order(op, own, scratch, max(1, least)) if own or op.scratch else []
        gives = [key for key in request.given if key not in apart]
        gives += [key for key, _ in takes if key < 0]
        turns += [
            Turn(op=op.name, copy=copies[each[0]], takes=[each], least=unit)
            for each in chunks
            if each[0] in copies
        ]
        turns.append(Turn(op=op.name, takes=takes, gives=gives, least=unit))
    return tuple(turns)


def comes_first(op: Op, chain: Collection[str]) -> bool:
    """Tell whether an op makes memory, and the plan's chain does not order it."""
    shared = op.persistent or op.alias is not None or op.reads_state
    return op.constant or not (shared or op.name in chain)


def bytes_apart(graph: GraphView, plan: SwapPlan, least: Bytes) -> Bytes:
    """Return the bytes of large chunks beside the arena, without those of constants."""
    chain = frozenset(plan.chain)
    return sum(
        rounded_up(tensor.size) + CHUNK
        for op in graph.ops
        for tensor in op.outputs
        if tensor.size >= least and not op.constant and comes_first(op, chain)
    )


def _in_order(
    op: Op, own: Sequence[tuple[int, Bytes]], scratch: Iterator[int], least: Bytes
) -> list[tuple[int, Bytes]]:
    """Return an op's chunks in the order in which it takes them.

    Where that is not known, scratch in one piece comes last.
    """
    outputs, found = iter(own), list[tuple[int, Bytes]]()
    for size in op.asks or (*[0] * len(own), op.scratch):
        if size >= least:
            found.append((next(scratch), rounded_up(size)))
        elif not size:
            found += islice(outputs, 1)
    return [*found, *outputs]


def _copies(plan: SwapPlan, roots: Sequence[str]) -> dict[int, tuple[int, int]]:
    """Number the swap-ins of a plan; keys are indices into the residencies' roots."""
    numbers = {swap.tensor: i for i, swap in enumerate(plan.swaps)}
    seen = Counter[str]()
    found: dict[int, tuple[int, int]] = {}
    for key, root in enumerate(roots):
        if seen[root]:  # the original comes first
            found[key] = numbers[root], seen[root] - 1
        seen[root] += 1
    return found


def spans(turns: Sequence[Turn]) -> dict[int, Span]:
    """Return the span of each chunk, by its key."""
    found: dict[int, Span] = {}
    end = 2 * len(turns)
    for i, turn in enumerate(turns):
        room = turn.holes if turn.takes else {}
        for key, _ in turn.takes:
            found[key] = Span(room[key], 2 * i, end)
        for key in turn.gives:
            size, start, _ = found[key]
            found[key] = Span(size, start, 2 * i + 1)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Addresses of chunks.

    Args:
        height: Bytes from address 0 to the highest end of a chunk.
        offsets: Each chunk's address, in bytes, in the order of the arguments.
    """

    height: Bytes
    offsets: tuple[Bytes, ...]


class _Chunk(NamedTuple):
    size: Bytes
    start: int
    end: int
    home: int  # the window that holds its live interval
    windows: Sequence[int]  # all windows that its live interval meets


def most_at_once(
    sizes: Sequence[Bytes], starts: Sequence[int], ends: Sequence[int]
) -> Bytes:
    """Return the most bytes that live at once, the lower bound of a packing's height.

    Example:
        >>> most_at_once([512, 256, 256], starts=[0, 1, 2], ends=[2, 3, 4])
        768
    """
    taken, given = zip(starts, sizes, strict=True), zip(ends, sizes, strict=True)
    changes = sorted([*taken, *((end, -size) for end, size in given)])
    return max(accumulate(size for _, size in changes), default=0)


def pack(  # noqa: PLR0913 - the search's knobs among them
    sizes: Sequence[Bytes],
    starts: Sequence[int],
    ends: Sequence[int],
    room: Bytes,
    *,
    tries: int = 80,
    gap: Bytes = 0,
    again: int = 0,
) -> Packed | None:
    """Find an address for each chunk, within `room`.

    Args:
        sizes: Bytes of each chunk.
        starts: When each chunk is taken.
        ends: When each chunk is given back, after its start.
        room: Bytes that the packing may take.
        tries: The most orders of the chunks that are tried. More tries pack more.
        gap: Bytes that lie between two chunks, at least, if they do not touch, or if
            they are taken together.
        again: A number; another one gives another packing.

    Returns:
        The first packing found within `room`; None if none is.

    Example:
        >>> pack([256, 512, 256], starts=[0, 1, 2], ends=[2, 3, 4], room=768)
        Packed(height=768, offsets=(512, 0, 512))
    """
    if room < most_at_once(sizes, starts, ends):
        return None
    chunks, random = _in_windows(sizes, starts, ends), Random(0)
    order = list(range(len(chunks)))
    for tried in range(tries):
        if tried < len(_POWERS):
            power = _POWERS[tried] + again * _FURTHER
            weights = [-one.size * (one.end - one.start) ** power for one in chunks]
            order = sorted(range(len(chunks)), key=weights.__getitem__)
        offsets, late = _first_fit(chunks, order, room, gap)
        if late is None:
            tops = map(sum, zip(offsets, sizes, strict=True))
            return Packed(height=max(tops, default=0), offsets=tuple(offsets))
        order.insert(int(late * random.uniform(0, _NEAREST)), order.pop(late))
    return None


def _in_windows(
    sizes: Sequence[Bytes], starts: Sequence[int], ends: Sequence[int]
) -> list[_Chunk]:
    """Give each chunk the windows of time in which others can be in its way.

    Times become numbers of starts. Windows overlap by half, so that one of them holds a
    short live interval; the last window is the whole time.
    """
    times = sorted(set(starts))
    count = len(sizes) if len(sizes) < _MANY else 0
    half = max(1, len(times) * _STARTS // (2 * max(1, count)))
    whole = -(-len(times) // half)
    chunks: list[_Chunk] = []
    for size, taken, given in zip(sizes, starts, ends, strict=True):
        start, end = bisect_left(times, taken), bisect_left(times, given)
        first, last = start // half, (end - 1) // half
        home = first if last <= first + 1 else whole
        meets = (*range(max(0, first - 1), last + 1), whole)
        chunks.append(_Chunk(size, start, end, home, meets))
    return chunks


def _first_fit(
    chunks: Sequence[_Chunk], order: Sequence[int], room: Bytes, gap: Bytes
) -> tuple[list[Bytes], int | None]:
    """Place chunks in an order, each at the lowest address that is free while it lives.

    Chunks touch, or keep a gap; chunks that are taken together keep a gap.

    Returns:
        Addresses by chunk; and the place in the order at which placing stopped, since
        that chunk would end above `room`, else None.
    """
    windows: list[list[_Row]]
    windows = [[] for _ in range(1 + max((c.windows[-1] for c in chunks), default=0))]
    table = np.empty((4, len(chunks)), np.int64)  # of many chunks: the last window
    views = [column.data for column in table]  # move without a copy
    offsets = [0] * len(chunks)
    for place, i in enumerate(order):
        chunk = chunks[i]
        if len(chunks) < _MANY:
            offset = _lowest(chunk, windows[chunk.home], gap)
        else:
            offset = _lowest_of_many(chunk, windows[-1], table[:, :place], gap)
        if offset + chunk.size > room:
            return offsets, place
        offsets[i] = offset
        row = (offset, offset + chunk.size, chunk.start, chunk.end)
        if len(chunks) >= _MANY:
            at = bisect_left(windows[-1], row)
            for column, value in zip(views, row, strict=True):
                column[at + 1 : place + 1] = column[at:place]
                column[at] = value
        for window in chunk.windows:
            insort(windows[window], row)
    return offsets, None


def _lowest(chunk: _Chunk, rows: Sequence[_Row], gap: Bytes) -> Bytes:
    """Return a chunk's lowest free address among placed chunks."""
    size, start, end, *_ = chunk
    offset, before = 0, -1
    while offset != before:  # what a pass has moved, the next one checks
        before, top = offset, offset + size
        for low, high, taken, given in rows:  # by address
            if taken < end and given > start:
                if low >= top + gap:
                    break
                if high + gap <= offset:
                    continue
                together = taken == start
                if not together and (low == top or high == offset):
                    continue
                offset = high + gap if together or high < offset else high
                top = offset + size
    return offset


def _lowest_of_many(
    chunk: _Chunk, rows: Sequence[_Row], table: npt.NDArray[np.int64], gap: Bytes
) -> Bytes:
    """Return the address that `_lowest` finds; `table` has a column for each row.

    Arrays find the lowest address at which the chunk touches others. If that is too
    near to any, or in its way are chunks taken together with it, `_lowest` decides.
    """
    live = np.flatnonzero((table[2] < chunk.end) & (table[3] > chunk.start))
    low, high, taken, _ = table[:, live]
    at = np.zeros(len(live) + 1, np.int64)  # behind the rows so far
    np.maximum.accumulate(high, out=at[1:])
    fits = low - at[:-1] >= chunk.size
    count = int(fits.argmax()) if fits.any() else len(live)
    found = int(at[count])
    last = int(low.searchsorted(found + chunk.size + gap))
    ends, at = high[:count], at[:count]
    if (
        (taken[:last] == chunk.start).any()
        or (low[count:last] != found + chunk.size).any()
        or ((ends < at) & (ends > at - gap)).any()
        or ((ends < found) & (ends > found - gap)).any()
    ):
        return _lowest(chunk, [rows[i] for i in live.tolist()], gap)
    return found
