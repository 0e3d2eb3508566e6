"""Undo copies within a step: in gaps of the link, before variables are written.

    compute    forward ─────────────> backward ────> update a ──> update b
    to host    ▓▓ swap-out ▓▓  ░ copy of a ░ ░ copy of b ░

Variables that are written before the step's commit point have undo copies on the host
(`lms.ir.write_guard`). Copies made before the step would keep the device idle. Here the
copies leave while ops compute, in the order in which the variables are written, between
the planned swap-outs.

Known weakness: where gaps are short, predicted seconds leave out the waits for copies.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from lms.ir.graph import GraphView
from lms.simulation.timeline import Lane, Timeline
from lms.units import MIB, Bytes

__all__ = ["UndoGroup", "undo_groups"]

# Variables whose copies leave together: until they have 16 MiB, 1.4 ms of PCIe 3.0.
_TOGETHER = 16 * MIB

# A gap of the link must be 10/9 of what the copies take: predicted times are not exact.
_PERCENT = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoGroup:
    """Variables whose undo copies leave together.

    Args:
        handles: Names of the variables' handles.
        writers: Names of the ops that write them, which wait for the copies.
        trigger: Name of the op after which the copies leave; None at once.
    """

    handles: tuple[str, ...]
    writers: tuple[str, ...]
    trigger: str | None


def undo_groups(
    graph: GraphView,
    chain: Collection[str],
    sizes: Mapping[str, Bytes],
    timeline: Timeline,
    rate: float,
) -> list[UndoGroup]:
    """Group variables in the order of their writes, and time their copies.

    Args:
        graph: The step in its planned order.
        chain: Ops that run one after the other.
        sizes: Bytes of each variable to be copied, by the name of the handle.
        timeline: The planned step over time.
        rate: Bytes per second from device to host.
    """
    position = graph.position
    computed = (one for one in timeline.intervals if one.lane is Lane.COMPUTE)
    ordered = [one for one in computed if one.name in chain]
    ends = [one.end for one in ordered]
    copies = [one for one in timeline.intervals if one.lane is Lane.D2H]
    end, found = 0.0, list[UndoGroup]()
    for handles, writers in _groups(graph, sizes):
        size = sum(sizes[handle] for handle in handles)
        begin, seconds = end, size / rate * 100 / _PERCENT
        for one in copies:
            if one.end > begin:
                if one.start >= begin + seconds:
                    break
                begin = one.end
        end = begin + seconds
        behind = bisect_right(ends, begin)
        first = min(position[name] for name in writers)
        while behind and position[ordered[behind - 1].name] >= first:
            behind -= 1  # the writers wait for the copies
        trigger = ordered[behind - 1].name if behind else None
        found.append(UndoGroup(handles=handles, writers=writers, trigger=trigger))
    return found


def _groups(
    graph: GraphView, sizes: Mapping[str, Bytes]
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield (handles, ops that write them), in the order of first writes."""
    writers: dict[str, list[str]] = {}
    for op in graph.ops:
        for handle in op.writes:
            if handle in sizes:
                writers.setdefault(handle, []).append(op.name)
    together, size = list[str](), 0
    for number, handle in enumerate(writers, start=1):
        together.append(handle)
        size += sizes[handle]
        if size >= _TOGETHER or number == len(writers):
            names = dict.fromkeys(name for each in together for name in writers[each])
            yield tuple(together), tuple(names)
            together, size = [], 0
