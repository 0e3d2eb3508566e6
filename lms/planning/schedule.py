"""An execution order that needs little memory.

List scheduling (Graham 1966) with memory as the priority: among the ops that are
ready, the one that frees most - or takes least - goes first, ties by the given order.
Greedy is not optimal (the problem is NP-complete: Sethi 1975, "Complete register
allocation problems"), so the given order competes.

Writes to variables come last, with the ops that depend on them, so that a step that
fails has seldom written anything. Holding the new values may cost memory: with
`writes_last=False` writes come when they are ready.
"""

import heapq
from collections.abc import Collection, Sequence

from lms.ir.graph import GraphView, op_of
from lms.ir.liveness import Buffer, buffers, memory_curve, peak, working_sets
from lms.ir.write_guard import can_come_last
from lms.units import Bytes

_MOST_TOGETHER = 16  # most ops that are hoisted together

__all__ = ["hastened", "orders"]


def orders(graph: GraphView, *, writes_last: bool = True) -> list[GraphView]:
    """Return one order that is light during long ops, and one of low peak.

    The low order is memory-greedy or as given, by the lower peak, then the lower sum of
    the curve. The light order may be one of them with ops hoisted: `_cost` decides.

    Args:
        graph: The graph in any execution order.
        writes_last: Whether the writes of `can_come_last` wait for all ops that do not
            depend on them.

    Returns:
        The light and the low order; only one if they are equal.
    """
    last = can_come_last(graph) if writes_last else frozenset[str]()
    names = [_list_schedule(graph, each, last) for each in (_Delta(graph), None)]
    found = [graph.reordered(order) for order in names]
    low = min(found, key=lambda order: (peak(order), sum(memory_curve(order))))
    found += [hastened(order, last) for order in found]
    least = min(map(peak, found))
    light = min(found, key=lambda order: _cost(order, least // 2))
    return [light] if light is low else [light, low]


def _cost(graph: GraphView, budget: Bytes) -> tuple[int, int]:
    """Return (bytes above a budget, weighted by what each op touches, the peak).

    Most ops take as long as they move the bytes that they touch.
    """
    above = (max(0, used - budget) for used in memory_curve(graph))
    weighed = zip(above, working_sets(graph), strict=True)
    return sum(bytes_ * touched for bytes_, touched in weighed), peak(graph)


class _Lives:
    """Buffers that each op makes and reads, and ops it waits for, by positions."""

    def __init__(self, graph: GraphView) -> None:
        self.made: list[list[Buffer]] = [[] for _ in graph.ops]
        self.read: list[list[Buffer]] = [[] for _ in graph.ops]
        for buffer in buffers(graph):
            self.made[buffer.producer].append(buffer)
            for reader in () if buffer.kept else buffer.uses:
                self.read[reader].append(buffer)
        self.before, self.followers = _dependencies(graph)
        self.when = list(range(len(graph.ops)))  # the op behind which each runs

    def earlier(self, group: Sequence[int], to: int) -> int:
        """Return the bytes times positions saved if a group runs just behind `to`."""
        held = 0
        reads = {buffer.root: buffer for op in group for buffer in self.read[op]}
        for op in group:
            for buffer in self.made[op]:
                reads.pop(buffer.root, None)
                if buffer.kept or not set(group).issuperset(buffer.uses):
                    held -= buffer.size * (op - to)
        for buffer in reads.values():
            if buffer.last not in group:
                continue  # a later op reads it
            others = (self.when[op] for op in buffer.uses if op not in group)
            held += buffer.size * max(0, buffer.last - max([to, *others]))
        return held


def hastened(graph: GraphView, last: Collection[str] = frozenset()) -> GraphView:
    """Hoist each op to its earliest position, unless memory is then held for longer.

    From the first op on, an op moves to just behind the last op that it waits for,
    unless its outputs then cost more bytes times positions than its dying inputs save.
    Ops that it waits for may be hoisted with it. So a metric does not keep the logits
    for as long as the backward pass. The ops of `last` stay, with all ops that depend
    on them.

    Example:
        >>> from lms.ir.graph import Op, Tensor
        >>> def op(name, size, *inputs):
        ...     made = (Tensor(name=f"{name}:0", size=size),)
        ...     return Op(name=name, type="T", inputs=inputs, outputs=made)
        >>> ops = op("a", 4), op("b", 9), op("c", 4, "a:0"), op("d", 1, "c:0")
        >>> [op.name for op in hastened(GraphView(ops=ops)).ops]
        ['a', 'c', 'd', 'b']
    """
    lives = _Lives(graph)
    stays = _tail(graph, lives.followers, last)
    together = [[i] for i in lives.when]  # an op that stays, and the ops just behind it
    for i in range(len(graph.ops)):
        moved, to = _taken_along(lives, i, stays) if not stays[i] else ((), i)
        for op in moved:
            lives.when[op] = to
            together[to].append(op)
            together[op] = []
        if moved:
            stays[to] = True
    return graph.reordered(graph.ops[i].name for group in together for i in group)


def _taken_along(
    lives: _Lives, op: int, stays: Sequence[bool]
) -> tuple[Sequence[int], int]:
    """Return (ops to hoist with `op`, the op behind which they then run)."""
    group, best, before = [op], ((), op), set(lives.before[op])
    while len(group) <= _MOST_TOGETHER:
        to = max(map(lives.when.__getitem__, before), default=-1)
        if to < 0:
            break
        if to < min(group) - 1 and lives.earlier(group, to) >= 0:
            best = sorted(group), to
        latest = [b for b in before if lives.when[b] == to]
        if any(stays[b] or lives.when[b] != b for b in latest):
            break
        group += latest
        before.update(*(lives.before[b] for b in latest))
        before.difference_update(group)
    return best


class _Delta:
    """Bytes that each op would add to memory if it ran next, updated as ops run."""

    def __init__(self, graph: GraphView) -> None:
        self.delta = [0] * len(graph.ops)
        self._waiting: dict[str, set[int]] = {}
        self._size: dict[str, int] = {}
        self._reads: list[list[str]] = [[] for _ in graph.ops]
        for buffer in buffers(graph):
            readers = set(buffer.uses)
            if readers or buffer.kept:
                self.delta[buffer.producer] += buffer.size
            if buffer.kept or not readers:
                continue
            self._waiting[buffer.root] = readers
            self._size[buffer.root] = buffer.size
            for reader in readers:
                self._reads[reader].append(buffer.root)
            if len(readers) == 1:
                self.delta[next(iter(readers))] -= buffer.size

    def run(self, op: int) -> list[int]:
        """Record that an op ran; returns the ops whose delta changed."""
        changed: list[int] = []
        for root in self._reads[op]:
            waiting = self._waiting[root]
            waiting.discard(op)
            if len(waiting) == 1:
                reader = next(iter(waiting))
                self.delta[reader] -= self._size[root]
                changed.append(reader)
        return changed


def _list_schedule(
    graph: GraphView, priority: _Delta | None, last: Collection[str]
) -> list[str]:
    """Order ops by Kahn's algorithm with a priority queue, skipping stale entries."""
    before, followers = _dependencies(graph)
    blocked = list(map(len, before))
    tail = _tail(graph, followers, last)
    delta = priority.delta if priority else [0] * len(graph.ops)
    heap = [(tail[i], delta[i], i) for i, count in enumerate(blocked) if count == 0]
    heapq.heapify(heap)
    ready = {i for _, _, i in heap}
    order: list[str] = []
    while heap:
        _, value, op = heapq.heappop(heap)
        if op not in ready or value != delta[op]:
            continue
        ready.discard(op)
        order.append(graph.ops[op].name)
        for other in priority.run(op) if priority else ():
            if other in ready:
                heapq.heappush(heap, (tail[other], delta[other], other))
        for follower in followers[op]:
            blocked[follower] -= 1
            if blocked[follower] == 0:
                ready.add(follower)
                heapq.heappush(heap, (tail[follower], delta[follower], follower))
    return order


def _tail(
    graph: GraphView, followers: Sequence[Sequence[int]], last: Collection[str]
) -> list[bool]:
    """Mark the ops of `last` and all ops that depend on one."""
    tail = [op.name in last for op in graph.ops]
    pending = [i for i, is_last in enumerate(tail) if is_last]
    while pending:
        for follower in followers[pending.pop()]:
            if not tail[follower]:
                tail[follower] = True
                pending.append(follower)
    return tail


def _dependencies(graph: GraphView) -> tuple[list[list[int]], list[list[int]]]:
    """Return (ops that each op waits for, ops that wait for each)."""
    followers: list[list[int]] = [[] for _ in graph.ops]
    before: list[list[int]] = []
    for i, op in enumerate(graph.ops):
        names = {*map(op_of, op.inputs), *op.controls}
        before.append(sorted(graph.position[name] for name in names))
        for j in before[-1]:
            followers[j].append(i)
    return before, followers
