"""One graph of a step as the proof reads it: TensorFlow's nodes, and what comes first.

    a ──> b ──^──> c        before c: a and b, as the bits of one integer

What is *before* a node has ended when the node starts, in every order that edges allow.
The edge from NextIteration to Merge closes a loop: its nodes are before each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from math import prod
from re import finditer
from typing import Any, TypeAlias

__all__ = ["Graph", "Node", "Refuted", "Step", "Tensor", "describe", "integers"]
__all__ += ["members", "split"]

Tensor: TypeAlias = tuple[str, int]  # the op that makes it, and which output it is

# Attributes that say where memory lies or what runs side by side, not what is computed.
_OF_PLACES = frozenset({"_class", "_output_shapes", "_XlaHasReferenceVars"})
_OF_PLACES |= {"_input_hostmem", "_output_hostmem", "parallel_iterations"}

# Integers by TensorFlow's number of their type: `memoryview`'s format, the field.
_KINDS: dict[int, tuple[Any, str]]
_KINDS = {3: ("i", "int_val"), 9: ("q", "int64_val"), 23: ("Q", "uint64_val")}


class Refuted(Exception):  # noqa: N818 - no error, but the proof's other answer
    """The step is not proved; the message names the first value, edge or moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step's graph.

    Args:
        nodes: TensorFlow's nodes; arguments may be among them.
        functions: The functions that nodes call, by name.
        arguments: Position of each argument, by its tensor's full name.
        handles: Positions of the arguments that are handles of variables.
        results: Full names of the tensors that the step returns.
        effects: Types of ops that have effects or call functions.
        numbers: Values of arguments that are one integer in all steps, by position.
    """

    nodes: Sequence[Any]
    functions: Mapping[str, Any]
    arguments: Mapping[str, int]
    handles: frozenset[int]
    results: Sequence[str]
    effects: frozenset[str]
    numbers: Mapping[int, int] = field(default_factory=dict[int, int])


@dataclass(slots=True, eq=False)
class Node:
    """A node: the tensors that it reads, the ops that it waits for, and all sources."""

    name: str
    op: str
    proto: Any
    reads: list[Tensor] = field(default_factory=list[Tensor])
    waits: list[str] = field(default_factory=list[str])
    sources: "list[Node]" = field(default_factory=list["Node"])
    index: int = 0


class Graph:
    """Nodes in an order that edges allow, with what is before and after each.

    `live` are the nodes that TensorFlow runs, `readers` the ones of each tensor.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        given = {split(name)[0] for name in step.arguments}
        self.by_name = {n.name: _read(n) for n in step.nodes if n.name not in given}
        self.nodes = list[Node]()
        self.edges = self._sorted(given)  # by node: positions of its sources
        readers: list[list[int]] = [[] for _ in self.nodes]
        for i, sources in enumerate(self.edges):
            for source in sources:
                readers[source].append(i)
        order = range(len(self.nodes))
        self.before = _reached(self.edges, order)
        self.after = _reached(readers, order[::-1])
        results = [split(name)[0] for name in step.results]
        ends = [n for n in self.nodes if n.op in step.effects or n.op == "NoOp"]
        ends += [self.by_name[name] for name in results if name in self.by_name]
        bits = 0
        for node in ends:
            bits |= self.before[node.index] | 1 << node.index
        self.live = self.members(bits)
        self.readers: dict[Tensor, list[Node]] = {split(n): [] for n in step.results}
        for node in self.live:
            for read in node.reads:
                self.readers.setdefault(read, []).append(node)

    def _sorted(self, given: set[str]) -> list[list[int]]:
        first = dict[str, list[str]]()
        for node in self.by_name.values():
            names = dict.fromkeys([*(name for name, _ in node.reads), *node.waits])
            for name in (name for name in names if name not in given):
                if name not in self.by_name:
                    raise Refuted(f"{node.name!r} reads {name!r}, which is no op")
                node.sources.append(self.by_name[name])
            sources = (s for s in node.sources if not self.is_back(node, s))
            first[node.name] = [source.name for source in sources]
        try:
            order = [*TopologicalSorter(first).static_order()]
        except CycleError as error:
            raise Refuted(f"{error.args[1][0]!r} waits in a cycle") from error
        self.nodes += (self.by_name[name] for name in order)
        for index, node in enumerate(self.nodes):
            node.index = index
        return [[source.index for source in node.sources] for node in self.nodes]

    def is_back(self, node: Node, source: Node) -> bool:
        """Tell whether an edge closes a loop."""
        return source.op == "NextIteration" and node.op == "Merge"

    def members(self, bits: int) -> list[Node]:
        """Return the nodes of a set."""
        return [self.nodes[i] for i in members(bits)]

    def is_first(self, one: Node, other: Node) -> bool:
        """Tell whether `one` ends before `other` starts, in every order."""
        return bool(self.before[other.index] >> one.index & 1)


def _reached(edges: Sequence[Sequence[int]], order: Sequence[int]) -> list[int]:
    """Return what each node reaches, as bits; around loops more than once."""
    found, last = [0] * len(edges), list[int]()
    while found != last:
        last = [*found]
        for i in order:
            for other in edges[i]:
                found[i] |= found[other] | 1 << other
    return found


def _read(proto: Any) -> Node:
    reads = [split(name) for name in proto.input if name[0] != "^"]
    waits = [name[1:] for name in proto.input if name[0] == "^"]
    return Node(proto.name, proto.op, proto, reads, waits)


def split(name: str) -> Tensor:
    """Return (op, output) of a tensor's name; output 0 may be left out."""
    source, _, output = name.partition(":")
    return source, int(output or 0)


def members(bits: int) -> list[int]:
    """Return the positions of the bits that are set, ascending."""
    return [found.start() for found in finditer("1", bin(bits)[:1:-1])]


def describe(proto: Any) -> bytes:
    """Return what a node computes of its inputs: type and attributes, as bytes."""
    own = type(proto)()
    own.CopyFrom(proto)
    for key in [key for key in own.attr if key in _OF_PLACES]:
        del own.attr[key]
    own.name = own.device = ""
    del own.input[:]
    own.ClearField("experimental_debug_info")
    return own.SerializeToString(deterministic=True)


def integers(node: Node | None) -> list[int] | None:
    """Return a constant's integers, flat; None for other nodes and types."""
    if node is None or node.op != "Const":
        return None
    tensor = node.proto.attr["value"].tensor
    if tensor.dtype not in _KINDS:
        return None
    kind, key = _KINDS[tensor.dtype]
    count = prod(dim.size for dim in tensor.tensor_shape.dim)
    if tensor.tensor_content:
        return memoryview(tensor.tensor_content).cast(kind).tolist()
    told = [*getattr(tensor, key)]
    return (told + [told[-1] if told else 0] * count)[:count]  # the last one repeats
