"""An execution order that needs little memory.

List scheduling (Graham 1966) with memory as the priority: among the ops that are
ready, the one that frees most - or takes least - goes first, ties by the given order.
Ops of one group stay together. Greedy is no optimum (the problem is NP-complete:
Sethi 1975, "Complete register allocation problems"), so the given order competes.

Writes to variables come last, so that a step that fails has written nothing. Holding
what they write may cost memory: on demand they come when they are ready.
"""

import heapq
from collections import defaultdict
from collections.abc import Collection, Sequence

from lms.ir.graph import GraphView, Op
from lms.ir.liveness import buffers, memory_curve
from lms.ir.write_guard import can_come_last

__all__ = ["greedy_order", "schedule"]


def schedule(graph: GraphView, *, writes_last: bool = True) -> GraphView:
    """The graph in the better of two orders: memory-greedy, or as given.

    Better is the lower peak, then the lower sum of the curve.

    Args:
        graph: The graph in any execution order.
        writes_last: Whether writes wait for all ops that need not come after them,
            where no large op comes after them (`can_come_last`).

    Returns:
        The same graph; ops of one group are neighbours.
    """
    last = can_come_last(graph) if writes_last else frozenset[str]()
    orders = greedy_order(graph, last), _given_order(graph, last)
    return min(map(graph.reordered, orders), key=_cost)


def _cost(graph: GraphView) -> tuple[int, int]:
    curve = memory_curve(graph)
    return max(curve, default=0), sum(curve)


def greedy_order(graph: GraphView, last: Collection[str] = frozenset()) -> list[str]:
    """Names of the ops in memory-greedy order.

    Args:
        graph: The graph.
        last: Names of ops that come, with all that follow them, after all others.

    Example:
        >>> from lms.ir.graph import Tensor
        >>> def op(name, size, *inputs):
        ...     made = (Tensor(name=f"{name}:0", size=size),)
        ...     return Op(name=name, type="T", inputs=inputs, outputs=made)
        >>> ops = op("a", 9), op("b", 8), op("c", 1, "a:0"), op("d", 1, "b:0", "c:0")
        >>> greedy_order(GraphView(ops=ops))
        ['b', 'a', 'c', 'd']
    """
    units = _units(graph)
    return _list_schedule(graph, units, _Delta(graph, units), last)


def _given_order(graph: GraphView, last: Collection[str]) -> list[str]:
    """The given order with the ops of each group moved together, and `last` last."""
    units = _units(graph)
    return _list_schedule(graph, units, None, last)


def _units(graph: GraphView) -> list[list[Op]]:
    """Ops that are ordered as one, by the position of their first op."""
    units: dict[str, list[Op]] = {}
    for op in graph.ops:
        units.setdefault(op.name if op.group is None else f"group {op.group}", [])
        units[op.name if op.group is None else f"group {op.group}"].append(op)
    return list(units.values())


class _Delta:
    """Bytes that a unit adds to memory if it ran next; kept current while ops run."""

    def __init__(self, graph: GraphView, units: Sequence[Sequence[Op]]) -> None:
        unit_of = {op.name: i for i, unit in enumerate(units) for op in unit}
        names = [op.name for op in graph.ops]
        self.delta = [0] * len(units)
        self._waiting: dict[str, set[int]] = {}
        self._size: dict[str, int] = {}
        self._reads: list[list[str]] = [[] for _ in units]
        for buffer in buffers(graph):
            readers = {unit_of[names[use]] for use in buffer.uses}
            producer = unit_of[names[buffer.producer]]
            if readers or buffer.kept:
                self.delta[producer] += buffer.size
            readers.discard(producer)
            if buffer.kept or not readers:
                continue
            self._waiting[buffer.root] = readers
            self._size[buffer.root] = buffer.size
            for reader in readers:
                self._reads[reader].append(buffer.root)
            if len(readers) == 1:
                self.delta[next(iter(readers))] -= buffer.size

    def run(self, unit: int) -> list[int]:
        """Take note that a unit ran; returns the units whose delta changed."""
        changed: list[int] = []
        for root in self._reads[unit]:
            waiting = self._waiting[root]
            waiting.discard(unit)
            if len(waiting) == 1:
                reader = next(iter(waiting))
                self.delta[reader] -= self._size[root]
                changed.append(reader)
        return changed


def _list_schedule(
    graph: GraphView,
    units: Sequence[Sequence[Op]],
    priority: _Delta | None,
    last: Collection[str],
) -> list[str]:
    """Kahn's algorithm with a priority queue; stale entries are skipped."""
    blocked, followers = _dependencies(graph, units)
    tail = _tail(units, followers, last)
    delta = priority.delta if priority else [0] * len(units)
    heap = [(tail[i], delta[i], i) for i, count in enumerate(blocked) if count == 0]
    heapq.heapify(heap)
    ready = {i for _, _, i in heap}
    order: list[str] = []
    while heap:
        _, value, unit = heapq.heappop(heap)
        if unit not in ready or value != delta[unit]:
            continue
        ready.discard(unit)
        order.extend(op.name for op in units[unit])
        for other in priority.run(unit) if priority else ():
            if other in ready:
                heapq.heappush(heap, (tail[other], delta[other], other))
        for follower in followers[unit]:
            blocked[follower] -= 1
            if blocked[follower] == 0:
                ready.add(follower)
                heapq.heappush(heap, (tail[follower], delta[follower], follower))
    if len(order) != len(graph.ops):
        raise ValueError("`group` must not close a cycle between ops of the graph")
    return order


def _tail(
    units: Sequence[Sequence[Op]],
    followers: Sequence[Sequence[int]],
    last: Collection[str],
) -> list[bool]:
    """Whether each unit is of the last ones, or waits for one of them."""
    tail = [any(op.name in last for op in unit) for unit in units]
    pending = [i for i, is_last in enumerate(tail) if is_last]
    while pending:
        for follower in followers[pending.pop()]:
            if not tail[follower]:
                tail[follower] = True
                pending.append(follower)
    return tail


def _dependencies(
    graph: GraphView, units: Sequence[Sequence[Op]]
) -> tuple[list[int], list[list[int]]]:
    """How many units each unit waits for, and which units follow each."""
    unit_of = {op.name: i for i, unit in enumerate(units) for op in unit}
    maker = {t.name: unit_of[op.name] for op in graph.ops for t in op.outputs}
    before: dict[int, set[int]] = defaultdict(set)
    for i, unit in enumerate(units):
        for op in unit:
            before[i].update(maker[name] for name in op.inputs)
            before[i].update(unit_of[name] for name in op.controls)
        before[i].discard(i)
    followers: list[list[int]] = [[] for _ in units]
    for i in range(len(units)):
        for j in sorted(before[i]):
            followers[j].append(i)
    return [len(before[i]) for i in range(len(units))], followers
