"""A step's ops and nodes, changed side by side.

Inputs that planners do not see (a loop's back edges) are left as they are: nodes are
changed input by input, not written anew.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from lms.errors import UnsupportedError
from lms.ir.graph import GraphView, Op, Tensor, op_of
from lms.tf import compat
from lms.tf.capture.specialising import TracedStep

__all__ = ["GraphEdit", "Rank", "ancestors_among", "described", "made"]

Rank = tuple[int, ...]


class GraphEdit:
    """A copy of a step that may be changed.

    Args:
        step: The step, which is not.

    Attributes:
        ops: The ops, by name.
        nodes: Their nodes, by name; arguments have none.
        rank: Where they come among the ops that are ready.
    """

    def __init__(self, step: TracedStep) -> None:
        self.ops = {op.name: op for op in step.graph.ops}
        self.nodes = {node.name: node for node in step.nodes}
        self.rank: dict[str, Rank] = {
            op.name: (i,) for i, op in enumerate(step.graph.ops)
        }
        self._step = step
        self._results = step.graph.results
        self._outputs = step.outputs

    def add(self, op: Op, node: compat.NodeDef, rank: Rank) -> None:
        """Add an op, or put one in the place of another of its name."""
        made = compat.NodeDef()
        made.CopyFrom(node)
        made.name = op.name
        del made.input[:]
        made.input.extend([*op.inputs, *(f"^{name}" for name in op.controls)])
        self.ops[op.name] = op
        self.nodes[op.name] = made
        self.rank[op.name] = rank

    def remove(self, names: Iterable[str]) -> None:
        """Remove ops."""
        for name in names:
            del self.ops[name], self.nodes[name], self.rank[name]

    def remove_unread(self, kind: str) -> None:
        """Remove ops of a type that nobody reads any more; they have no effects."""
        readers, results = self.readers(), {*self._results}
        unread = [
            op.name
            for op in self.ops.values()
            if op.type == kind
            and not any(readers.get(t.name) or t.name in results for t in op.outputs)
        ]
        self.rename({}, dict.fromkeys(unread, ()))
        self.remove(unread)

    def rename(
        self, tensors: Mapping[str, str], controls: Mapping[str, Sequence[str]]
    ) -> None:
        """Let all ops read other tensors, and wait for other ops.

        Args:
            tensors: What is read instead, by what was read.
            controls: What is waited for instead, by what was waited for.
        """

        def new(tensor: str) -> str:
            while tensor in tensors:
                tensor = tensors[tensor]
            return tensor

        for name, op in list(self.ops.items()):
            touched = any(source in tensors for source in op.inputs)
            if not touched and not any(c in controls for c in op.controls):
                continue
            waits = [n for c in op.controls for n in controls.get(c, (c,)) if n != name]
            self.ops[name] = replace(
                op,
                inputs=tuple(map(new, op.inputs)),
                controls=tuple(dict.fromkeys(waits)),
                alias=None if op.alias is None else new(op.alias),
                keeps=tuple(map(new, op.keeps)),
            )
            node = compat.NodeDef()
            node.CopyFrom(self.nodes[name])
            del node.input[:]
            node.input.extend(_inputs(self.nodes[name], new, controls))
            self.nodes[name] = node
        self._results = tuple(dict.fromkeys(map(new, self._results)))
        self._outputs = tuple(map(new, self._outputs))

    def wait(self, name: str, names: Iterable[str]) -> None:
        """Let an op wait for others."""
        op = self.ops[name]
        missing = [n for n in dict.fromkeys(names) if n not in op.controls]
        self.ops[name] = replace(op, controls=(*op.controls, *missing))
        node = compat.NodeDef()
        node.CopyFrom(self.nodes[name])
        node.input.extend(f"^{missed}" for missed in missing)
        self.nodes[name] = node

    @property
    def results(self) -> tuple[str, ...]:
        """Names of the tensors that outlive the step."""
        return self._results

    def readers(self) -> dict[str, list[str]]:
        """Names of the ops that read a tensor."""
        found: dict[str, list[str]] = defaultdict(list)
        for op in self.ops.values():
            for name in dict.fromkeys(op.inputs):
                found[name].append(op.name)
        return found

    def ancestors(self, names: Iterable[str]) -> set[str]:
        """Names of all ops that come before some ops."""
        found: set[str] = set()
        pending = list(names)
        while pending:
            op = self.ops[pending.pop()]
            for name in {*map(op_of, op.inputs), *op.controls} - found:
                found.add(name)
                pending.append(name)
        return found

    def finished(self) -> TracedStep:
        """The step as it is now.

        Raises:
            UnsupportedError: If ops wait for each other in a circle.
        """
        order = self._order()
        graph = GraphView(
            ops=tuple(self.ops[name] for name in order), results=self._results
        )
        nodes = tuple(self.nodes[name] for name in order if name in self.nodes)
        return replace(
            self._step, graph=graph, nodes=nodes, outputs=self._outputs, own=None
        )

    def _order(self) -> list[str]:
        waiting: dict[str, int] = {}
        followers: dict[str, list[str]] = defaultdict(list)
        for name, op in self.ops.items():
            sources = {*map(op_of, op.inputs), *op.controls}
            waiting[name] = len(sources)
            for source in sources:
                followers[source].append(name)
        heap = [(self.rank[name], name) for name, count in waiting.items() if not count]
        heapq.heapify(heap)
        order: list[str] = []
        while heap:
            _, name = heapq.heappop(heap)
            order.append(name)
            for follower in followers[name]:
                waiting[follower] -= 1
                if waiting[follower] == 0:
                    heapq.heappush(heap, (self.rank[follower], follower))
        if len(order) != len(self.ops):
            stuck = next(name for name, count in waiting.items() if count)
            raise UnsupportedError(
                "variables on the host must be read before they are written, got a "
                f"step in which {stuck!r} reads an old value after that. Keep this "
                "model's state on the device."
            )
        return order


def made(kind: str, device: str) -> compat.NodeDef:
    """A node without a name."""
    return compat.NodeDef(op=kind, device=device)


def described(name: str, shape: Any, dtype: tf.DType) -> Tensor:
    """A tensor of a known shape."""
    known = tuple(shape)
    size = dtype.size
    for extent in known:
        size *= extent
    return Tensor(name=name, size=size, shape=known, dtype=dtype.name)


def ancestors_among(graph: GraphView, names: Iterable[str]) -> dict[str, set[str]]:
    """Of some ops, those that come before each of them, in one pass over the graph."""
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    masks: dict[str, int] = {}
    for op in graph.ops:
        mask = 0
        for source in {*map(op_of, op.inputs), *op.controls}:
            mask |= masks[source]
            if source in number:
                mask |= 1 << number[source]
        masks[op.name] = mask
    return {
        name: {other for other, i in number.items() if masks[name] >> i & 1}
        for name in number
    }


def _inputs(
    node: compat.NodeDef, new: "object", controls: Mapping[str, Sequence[str]]
) -> list[str]:
    assert callable(new)
    found: list[str] = []
    for name in node.input:
        if name.startswith("^"):
            found += [f"^{n}" for n in controls.get(name[1:], (name[1:],))]
        else:
            full = name if ":" in name else f"{name}:0"
            renamed = new(full)
            found.append(name if renamed == full else str(renamed))
    data = [name for name in found if not name.startswith("^")]
    waits = [n for n in found if n.startswith("^") and n != f"^{node.name}"]
    return [*data, *dict.fromkeys(waits)]
