"""Turns of a planned step: which chunks it asks its allocator for, and when.

    op ──> [take outputs and scratch] runs [give scratch and dead inputs]

Swap-ins that start beside an op come before it, each in a turn of its own. Chunks
that live at the same time need addresses that do not overlap; `spans` lists these.

In a turn of several chunks each chunk gets room for a hole of a size of its own
(`lms.planning.spacers`).
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import NamedTuple

from lms.ir.graph import GraphView, Op, per_graph
from lms.ir.plan import SwapPlan, resolve
from lms.simulation.allocator import rounded_up
from lms.simulation.memory import find_requests
from lms.units import Bytes

__all__ = ["CHUNK", "Span", "Turn", "bytes_apart", "comes_first", "find_turns"]
__all__ += ["spans"]

CHUNK = rounded_up(1)  # bytes of the allocator's smallest chunk


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
    seen: dict[str, int] = {}
    found: dict[int, tuple[int, int]] = {}
    for key, root in enumerate(roots):
        if root in numbers:  # the original comes first
            if root in seen:
                found[key] = numbers[root], seen[root]
            seen[root] = seen.get(root, -1) + 1
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
