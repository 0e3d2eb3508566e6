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


def find_most(graph: Graph, ops: Mapping[str, Footprint]) -> tuple[int, str]:
    """Return (bytes that live at once at most, the op that has started last then)."""
    memory = _Memory(graph, ops)
    path = memory.path()
    place, inside = {i: k for k, i in enumerate(path)}, sum(1 << i for i in path)
    change = [0] * (len(path) + 2)  # moment 0 is before the path, k + 1 is op k's
    for size, maker, ended in memory.spans():
        own, later = (graph.before[maker] | 1 << maker) & inside, ended & inside
        start = place[own.bit_length() - 1] + 1 if own else 0
        end = place[(later & -later).bit_length() - 1] if later else len(path)
        change[start] += size
        change[end + 1] -= size
    totals = [*accumulate(change)]
    worst = totals.index(max(totals))
    name = graph.nodes[path[worst - 1]].name if worst else "the start"
    return totals[worst], name


class _Memory:
    """Tensors and scratch (output -1) of one device, with the ops that hold each."""

    def __init__(self, graph: Graph, ops: Mapping[str, Footprint]) -> None:
        self.graph, self.ops = graph, ops
        self.sizes, self.stays = dict[Tensor, int](), set[Tensor]()
        self.holders = defaultdict[Tensor, int](int)  # as bits
        self._roots = dict[Tensor, Tensor]()
        for node in graph.live:
            self._add(node, self._footprint(node))
        for tensor, root in self._roots.items():
            for reader in graph.readers.get(tensor, ()):
                self.holders[root] |= 1 << reader.index
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
        sizes = {**dict(enumerate(footprint.outputs)), -1: footprint.scratch}
        for output, size in sizes.items():
            tensor = root = node.name, output
            if footprint.shares is not None and output >= 0:
                root = self._roots.get(node.reads[footprint.shares], ("", 0))
            elif size:
                self.sizes[tensor] = size
            if root in self.sizes:
                self._roots[tensor] = root
                self.holders[root] |= 1 << node.index
                self.stays |= {root} if footprint.stays and output >= 0 else set()

    def _write_over(self, node: Node, made: Tensor) -> None:
        """Let an op's output take a dying input's memory, and its holders with it."""
        for read in node.reads:
            root = self._roots.get(read)
            while root is not None and root not in self.sizes:
                root = self._roots[root]  # written over itself
            if root is None or root in self.stays or made not in self.sizes:
                continue
            before = self.graph.before[node.index] | 1 << node.index
            others = self.holders[root] & ~before
            if self.sizes[root] == self.sizes[made] and not others:
                self.holders[root] |= self.holders.pop(made)
                self._roots[made] = root
                self.stays |= {root} if made in self.stays else set()
                del self.sizes[made]

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """Yield (bytes, the op that takes these, the ops that start after)."""
        before, after = self.graph.before, self.graph.after
        for root, size in self.sizes.items():
            ended = 0 if root in self.stays else -1
            for i in members(self.holders[root]):
                ended &= after[i] & ~before[i]  # but for ops of its own loop
            yield size, self.graph.by_name[root[0]].index, ended

    def path(self) -> list[int]:
        """Return the path along edges whose ops make the most bytes."""
        made, graph = defaultdict[str, int](lambda: 1), self.graph
        for (name, _), size in self.sizes.items():  # copies back run beside the path
            made[name] += size * (graph.by_name[name].op != COPY_IN)
        best, last = dict[int, int](), dict[int, int]()
        for node in graph.live:
            i = node.index
            if not graph.is_first(node, node):  # in no loop
                sources = [other for other in graph.edges[i] if other in best]
                last[i] = max(sources, key=lambda k: (best[k], k), default=-1)
                best[i] = best.get(last[i], 0) + made[node.name]
        at, found = max(best, key=best.__getitem__, default=-1), list[int]()
        while at >= 0:
            found.append(at)
            at = last[at]
        return found[::-1]
