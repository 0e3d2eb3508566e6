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
from collections.abc import Collection, Iterable, Sequence

from lms.ir.graph import GraphView, op_of, per_graph
from lms.ir.liveness import Buffer, buffers, memory_curve, peak, working_sets
from lms.ir.write_guard import can_come_last
from lms.units import Bytes

_MOST_TOGETHER = 16  # most ops that are hoisted together

__all__ = ["hastened", "orders"]


@per_graph()
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
    lives = _Lives(graph)
    tail = lives.tail(last)
    given = sorted(lives.when, key=tail.__getitem__)
    names = (
        (graph.ops[i].name for i in each) for each in (_greedy(lives, tail), given)
    )
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
        self._names = graph.order
        self.before: list[list[int]] = []  # the ops that each op waits for
        self.followers: list[list[int]] = [[] for _ in graph.ops]
        for i, op in enumerate(graph.ops):
            names = {*map(op_of, op.inputs), *op.controls}
            self.before.append(sorted(graph.position[name] for name in names))
            for j in self.before[-1]:
                self.followers[j].append(i)
        self.when = list(range(len(graph.ops)))  # the op behind which each runs

    def tail(self, last: Collection[str]) -> list[bool]:
        """Mark the ops of `last` and all ops that depend on one."""
        tail: list[bool] = []
        for name, before in zip(self._names, self.before, strict=True):
            tail.append(name in last or any(tail[i] for i in before))
        return tail

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
    stays = lives.tail(last)
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


def _greedy(lives: _Lives, tail: Sequence[bool]) -> Iterable[int]:
    """Order ops by Kahn's algorithm; of the ready ones, the one that adds least.

    A priority queue holds the bytes that each ready op would add to memory if it ran
    next. Entries that are no longer true are skipped.
    """
    waiting = {b.root: set(b.uses) for read in lives.read for b in read}
    delta = [sum(b.size for b in made if b.uses or b.kept) for made in lives.made]
    for i, read in enumerate(lives.read):
        delta[i] -= sum(buffer.size for buffer in read if len(buffer.uses) == 1)
    blocked = list(map(len, lives.before))
    heap = [(tail[i], delta[i], i) for i, count in enumerate(blocked) if count == 0]
    heapq.heapify(heap)
    order: dict[int, None] = {}
    while heap:
        _, value, op = heapq.heappop(heap)
        if op in order or value != delta[op]:
            continue
        order[op] = None
        for buffer in lives.read[op]:
            waiting[buffer.root].discard(op)
            if len(waiting[buffer.root]) == 1:
                (reader,) = waiting[buffer.root]
                delta[reader] -= buffer.size
                if not blocked[reader]:
                    heapq.heappush(heap, (tail[reader], delta[reader], reader))
        for follower in lives.followers[op]:
            blocked[follower] -= 1
            if blocked[follower] == 0:
                heapq.heappush(heap, (tail[follower], delta[follower], follower))
    return order
