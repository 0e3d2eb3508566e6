"""Bytes of a rewritten step that live at once, at most, in every order edges allow.

    a ──> b ──> d     path: a, b, d. While b is the op of the path that started last, a
    └───> c ────┘     has ended and d has not begun; c may run before, now or later.

At each moment some op of a path along edges is the last of the path that has started.
A tensor may live then unless all its holders are before that op, or its own op comes
after a later op of the path. The largest sum of such tensors is an upper bound. It is
exact where edges put all large ops in a row; so a path of many bytes is taken.

An op that may write over an input of equal size does so where all other holders of the
input's memory are before the op.

Sources: `forward_input_or_allocate_output` in op_kernel.cc; an executor drops an op's
inputs when the op has ended (executor.cc). Sizes and scratch are as promised: from
TensorFlow's shapes, and measured. What the allocator loses between chunks is not here.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

from lms.proof.nodes import Graph, Node, Tensor, integers, members, split
from lms.proof.values import COPY_IN, COPY_OUT, VIEWS

__all__ = ["Footprint", "find_most"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Memory of one op on the device.

    Args:
        outputs: Bytes of each output.
        scratch: Bytes that the op needs only while it runs.
        shares: The input whose memory all outputs share; None if there is none.
        reuses: The output that may be written over an input of equal size.
        stays: Whether the outputs live until the step ends.
    """

    outputs: Sequence[int] = ()
    scratch: int = 0
    shares: int | None = None
    reuses: int | None = None
    stays: bool = False


def find_most(graph: Graph, ops: Mapping[str, Footprint], most: int) -> tuple[int, str]:
    """Return (bytes that live at once at most, the op that has started last then).

    Moments with more than `most` bytes are looked at closely.
    """
    memory = _Memory(graph, ops)
    path, spans = memory.path(), list(memory.spans())
    place, inside = {i: k for k, i in enumerate(path)}, sum(1 << i for i in path)
    times = list[tuple[int, int]]()  # moment 0 is before the path, k + 1 is op k's
    change = [0] * (len(path) + 2)
    for size, maker, ended in spans:
        own, later = (graph.before[maker] | 1 << maker) & inside, ended & inside
        start = place[own.bit_length() - 1] + 1 if own else 0
        end = place[(later & -later).bit_length() - 1] if later else len(path)
        times.append((start, end))
        change[start] += size
        change[end + 1] -= size
    worst = 0, "the start"
    for k, total in enumerate([*accumulate(change)][:-1]):
        name, most_then = graph.nodes[path[k - 1]].name if k else "the start", total
        if k and total > max(most, worst[0]):
            near = graph.before[path[k]] if k < len(path) else -1
            pivots = graph.after[path[k - 1]] & near | 1 << path[k - 1]
            pairs = zip(spans, times, strict=True)
            alive = [span for span, (start, end) in pairs if start <= k <= end]
            most_then = _look(graph, pivots, alive)
        worst = max(worst, (most_then, name), key=lambda one: one[0])
    return worst


def _look(graph: Graph, pivots: int, alive: Sequence[tuple[int, int, int]]) -> int:
    """Return the most bytes between two ops of the path, by the ops that run between.

    At each moment one of the pivots is the last that has started, as on the path.
    """
    total = dict.fromkeys(members(pivots), 0)
    for size, maker, ended in alive:
        unstarted = 0
        for pivot in members(pivots & (graph.before[maker] | 1 << maker)):
            unstarted |= graph.before[pivot]
        for pivot in members(pivots & ~unstarted & ~ended):
            total[pivot] += size
    return max(total.values())


class _Memory:
    """Tensors that take memory of one device, and the ops that hold each."""

    def __init__(self, graph: Graph, ops: Mapping[str, Footprint]) -> None:
        self.graph, self.ops = graph, ops
        self.sizes, self.stays = dict[Tensor, int](), set[Tensor]()
        self.holders: dict[Tensor, set[str]] = defaultdict(set)
        self._roots = dict[Tensor, Tensor]()
        for node in graph.live:
            self._add(node, self._footprint(node))
        for tensor, root in self._roots.items():
            self.holders[root].update(n.name for n in graph.readers.get(tensor, ()))
        results = map(split, graph.step.results)
        self.stays |= {self._roots[each] for each in results if each in self._roots}
        for node in graph.live:
            if (output := self._footprint(node).reuses) is not None:
                self._write_over(node, (node.name, output))

    def _footprint(self, node: Node) -> Footprint:
        """Return what was promised, or the footprint of a copy, a view or a spacer."""
        if node.op == COPY_IN:
            source = self.graph.by_name.get(node.reads[0][0])
            root = self._roots.get(source.reads[0]) if source is not None else None
            return Footprint(outputs=(self.sizes[root],) if root else ())
        if node.name in self.ops and node.op != COPY_OUT:
            return self.ops[node.name]
        if node.op in VIEWS:
            return Footprint(outputs=(0,), shares=0)
        if node.op == "Empty":
            sides = integers(self.graph.by_name.get(node.reads[0][0]))
            return Footprint(outputs=(prod(sides or ()),))
        return Footprint()

    def _add(self, node: Node, footprint: Footprint) -> None:
        for output, size in enumerate(footprint.outputs):
            tensor = root = node.name, output
            if footprint.shares is not None:
                root = self._roots.get(node.reads[footprint.shares], ("", 0))
            elif size:
                self.sizes[tensor] = size
            if root in self.sizes:
                self._roots[tensor] = root
                self.holders[root].add(node.name)
                self.stays |= {root} if footprint.stays else set()

    def _write_over(self, node: Node, made: Tensor) -> None:
        """Let an op's output take a dying input's memory, and its holders with it."""
        for read in node.reads:
            root = self._roots.get(read)
            while root is not None and root not in self.sizes:
                root = self._roots[root]  # written over itself
            if root is None or root in self.stays or made not in self.sizes:
                continue
            others = (self.graph.by_name[n] for n in self.holders[root] - {node.name})
            if self.sizes[root] == self.sizes[made] and all(
                self.graph.is_first(other, node) for other in others
            ):
                self.holders[root] |= self.holders.pop(made)
                self._roots[made] = root
                self.stays |= {root} if made in self.stays else set()
                del self.sizes[made]

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """Yield (bytes, the op that takes these, the ops that start after)."""
        graph, every = self.graph, (1 << len(self.graph.nodes)) - 1
        for root, size in self.sizes.items():
            ended = 0 if root in self.stays else every
            for name in self.holders[root] if ended else ():
                ended &= _ended(graph, graph.by_name[name])
            yield size, graph.by_name[root[0]].index, ended
        for node in graph.live:
            if scratch := self.ops.get(node.name, Footprint()).scratch:
                yield scratch, node.index, _ended(graph, node)

    def path(self) -> list[int]:
        """Return the path along edges whose ops make the most bytes."""
        made, graph = defaultdict[str, int](lambda: 1), self.graph
        for (name, _), size in self.sizes.items():  # copies back run beside the path
            made[name] += size * (graph.by_name[name].op != COPY_IN)
        best, last = [0] * len(graph.nodes), dict[int, int]()
        for node in graph.live:
            if graph.is_first(node, node):  # in a loop
                continue
            sources = [i for i in graph.edges[node.index] if best[i]]
            last[node.index] = max(sources, key=best.__getitem__, default=-1)
            best[node.index] = (
                max((best[i] for i in sources), default=0) + made[node.name]
            )
        at, found = max(range(len(best)), key=best.__getitem__, default=-1), list[int]()
        while at >= 0:
            found.append(at)
            at = last.get(at, -1)
        return found[::-1]


def _ended(graph: Graph, node: Node) -> int:
    """Return the nodes at whose start a node has ended; none of its own loop."""
    return graph.after[node.index] & ~graph.before[node.index]
