"""An execution order that needs little memory.

List scheduling (Graham 1966) with memory as the priority: among the ops that are
ready, the one that frees most - or takes least - goes first, ties by the given order.
Greedy is no optimum (the problem is NP-complete:
Sethi 1975, "Complete register allocation problems"), so the given order competes.

Writes to variables come last, so that a step that fails has written nothing. Holding
what they write may cost memory: on demand they come when they are ready.
"""

import heapq
from collections.abc import Collection, Sequence

from lms.ir.graph import GraphView, op_of
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
        The same graph.
    """
    last = can_come_last(graph) if writes_last else frozenset[str]()
    orders = greedy_order(graph, last), _list_schedule(graph, None, last)
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
        >>> from lms.ir.graph import Op, Tensor
        >>> def op(name, size, *inputs):
        ...     made = (Tensor(name=f"{name}:0", size=size),)
        ...     return Op(name=name, type="T", inputs=inputs, outputs=made)
        >>> ops = op("a", 9), op("b", 8), op("c", 1, "a:0"), op("d", 1, "b:0", "c:0")
        >>> greedy_order(GraphView(ops=ops))
        ['b', 'a', 'c', 'd']
    """
    return _list_schedule(graph, _Delta(graph), last)


class _Delta:
    """Bytes that an op adds to memory if it ran next; kept current while ops run."""

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
        """Take note that an op ran; returns those whose delta changed."""
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
    """Kahn's algorithm with a priority queue; stale entries are skipped."""
    blocked, followers = _dependencies(graph)
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
    """Mark each op that is one of the last, or waits for one of them."""
    tail = [op.name in last for op in graph.ops]
    pending = [i for i, is_last in enumerate(tail) if is_last]
    while pending:
        for follower in followers[pending.pop()]:
            if not tail[follower]:
                tail[follower] = True
                pending.append(follower)
    return tail


def _dependencies(graph: GraphView) -> tuple[list[int], list[list[int]]]:
    """How many ops each op waits for, and which ops follow each."""
    number = {op.name: i for i, op in enumerate(graph.ops)}
    followers: list[list[int]] = [[] for _ in graph.ops]
    blocked: list[int] = []
    for i, op in enumerate(graph.ops):
        before = {number[name] for name in (*map(op_of, op.inputs), *op.controls)}
        for j in sorted(before):
            followers[j].append(i)
        blocked.append(len(before))
    return blocked, followers
