"""Ops that are recomputed before far readers, so that their outputs need not stay.

    before                                after
    conv ──> relu ──> next                conv ──> relu ──> next
               │                            │
               └────────> gradient          └───────────> relu' ──> gradient

A copy of an op reads the op's inputs, or their copies where they are recomputed too.
Far readers read the copy instead of the op. A copy can be copied in turn, for readers
that are farther away. Chen et al., "Training deep nets with sublinear memory cost",
2016; Capuchin (ASPLOS 2020) chooses between recomputing and swapping.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lms.errors import PlanError
from lms.ir.graph import GraphView, Op, op_of, per_graph

__all__ = ["PREFIX", "Recomputed", "copy_name", "original_name", "with_recomputed"]

PREFIX = "lms/again/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """An op of the step that is recomputed.

    Args:
        op: Its name, or the name of a copy that runs once more.
        readers: Names of the ops that read the copy: ops of the step, or copies.
    """

    op: str
    readers: tuple[str, ...]


def copy_name(op_name: str) -> str:
    """Return the name of an op's copy.

    Example:
        >>> copy_name("relu"), original_name(copy_name(copy_name("relu")))
        ('lms/again/relu', 'relu')
    """
    return PREFIX + op_name


def original_name(op_name: str) -> str:
    """Return the name of the op that a copy recomputes; an op's own name is kept."""
    while op_name.startswith(PREFIX):
        op_name = op_name.removeprefix(PREFIX)
    return op_name


def with_recomputed(graph: GraphView, recomputed: Sequence[Recomputed]) -> GraphView:
    """Add recomputed ops to a graph, each just before its first reader.

    Returns:
        A graph in an execution order; `graph` itself if nothing is recomputed.

    Raises:
        PlanError: If an op may not be recomputed, or a reader does not read it; names
            the rule and the op.
    """
    return _with_copies(graph, tuple(recomputed)) if recomputed else graph


@per_graph(most=1)  # callers ask several times in a row
def _with_copies(graph: GraphView, chosen: tuple[Recomputed, ...]) -> GraphView:
    for item in chosen:
        _check(graph, item)
    return GraphView(ops=tuple(_Builder(graph, chosen).ops), results=graph.results)


class _Builder:
    """Builds the list of ops, with recomputed ops among them."""

    def __init__(self, graph: GraphView, recomputed: Sequence[Recomputed]) -> None:
        self.ops: list[Op] = []
        self._found = dict(graph.by_name)  # and copies of these
        self._made: set[str] = set()
        self._needed: dict[str, list[str]] = {}  # reader -> ops whose copies it reads
        for item in recomputed:
            for reader in item.readers:
                self._needed.setdefault(reader, []).append(item.op)
        for op in graph.ops:
            self._place(op.name, op.name)
        unread = [item.op for item in recomputed if item.op not in self._made]
        if unread:
            raise PlanError(f"the recomputed op {unread[0]!r} must be read by the step")

    def _place(self, source: str, name: str) -> None:
        """Append an op under a name, after the copies needed, one by one."""
        path = [(source, name, iter(self._needed.get(name, ())))]
        while path:
            source, name, others = path[-1]
            other = next((one for one in others if one not in self._made), None)
            if other is not None:
                self._made.add(other)
                copy = copy_name(other)
                path.append((other, copy, iter(self._needed.get(copy, ()))))
                continue
            path.pop()
            if source not in self._found:
                raise PlanError(f"op {source!r} must run before its recomputed copy")
            read = frozenset(self._needed.get(name, ()))
            self.ops.append(_reading_copies(self._found[source], name, read))
            self._found[name] = self.ops[-1]


def _reading_copies(op: Op, name: str, sources: frozenset[str]) -> Op:
    """Return an op under its own or a copy's name, reading its sources' copies."""

    def renamed(tensor: str) -> str:
        while op_of(tensor) in sources:
            tensor = PREFIX + tensor
        return tensor

    if sources:
        alias = None if op.alias is None else renamed(op.alias)
        op = replace(op, inputs=tuple(map(renamed, op.inputs)), alias=alias)
    if name == op.name:
        return op
    outputs = tuple(replace(made, name=PREFIX + made.name) for made in op.outputs)
    return replace(op, name=name, outputs=outputs, controls=(), writes=())


def _check(graph: GraphView, item: Recomputed) -> None:
    name = original_name(item.op)
    op = graph.by_name.get(name)
    if op is None or not op.repeatable or op.varies:
        raise PlanError(f"op {item.op!r} must be one that may be recomputed")
    if not item.readers:
        raise PlanError(f"the recomputed op {item.op!r} must have readers, got none")
    for read_by in item.readers:
        reader = graph.by_name.get(original_name(read_by))
        if reader is None or name not in {op_of(x) for x in reader.inputs}:
            raise PlanError(f"{read_by!r} must read op {item.op!r} to read its copy")
        if reader.fixed:
            raise PlanError(
                f"{read_by!r} is in a loop or branch: it cannot read a copy"
            )
