"""Take writes out of a branch that runs only if all numbers are finite.

    before                              after
    finite ──> Switch ─> g ─> AddTo     g ──────────> SelectV2 ──> AddTo
                                        finite, -0.0 ───↑

An optimizer that scales the loss changes no variable where a gradient is not finite.
The branch holds all gradients until the last one is known, and its ops have no order.
Here the ops run always and the written values are chosen: what a branch would not have
written is the old value, or adds -0.0, which changes no number. The bits are equal.

A variable that other ops of the branches use stays in the branch, such as the scale.

Known weakness: TensorFlow's kernels take subnormal numbers for 0. A subnormal number
that no kernel wrote, such as a loaded weight's, becomes 0 in a step that is not finite.

Sources: `LossScaleOptimizer` of Keras; `lower_if_op.cc`; dead tensors in executor.cc.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

import tensorflow as tf

from lms.tf import compat
from lms.tf.nodes import Nodes, data_of, full_name, source_of, waits_of
from lms.tf.passes import Pass, Step

__all__ = ["CHOOSE_WRITES", "CHOSEN"]

CHOSEN = "/lms_chosen"  # name suffix of the value that a write takes

# Ops between tests of numbers and a predicate that needs all of them.
_ALL = {"All", "LogicalAnd", "Pack", "ConcatV2", "Identity", "Reshape", "Squeeze"}

_FLOATS = {tf.float16, tf.bfloat16, tf.float32, tf.float64}  # SelectV2 has kernels

# What a write adds or subtracts where its branch would not run.
_NOTHING = {"AssignAddVariableOp": -0.0, "AssignSubVariableOp": 0.0}
_WRITES = {"AssignVariableOp", *_NOTHING}

_PASSES_ON = {"Identity", "Switch"}


@dataclass(frozen=True, slots=True)
class _Branch:
    """A branch that runs where a predicate is true.

    Args:
        graph: The step.
        predicate: Full name of the predicate's tensor.
        switches: The ops at which both branches begin.
        inside: Names of the ops of the branch.
        either: Names of the ops of this branch and the other one, and of `switches`.
    """

    graph: Nodes
    predicate: str
    switches: Sequence[compat.NodeDef]
    inside: Set[str]
    either: Set[str]

    @classmethod
    def of(
        cls, graph: Nodes, predicate: str, switches: Sequence[compat.NodeDef]
    ) -> "_Branch":
        """Find the ops of a branch."""
        other, then = (_behind(graph, switches, output) for output in range(2))
        either = then ^ other | {node.name for node in switches}
        return cls(graph, predicate, switches, then - other, either)

    def origin(self, name: str) -> str:
        """Return the full name of the tensor that ops of the branches hand on."""
        while (source := source_of(name)) in self.either:
            if self.graph[source].op not in _PASSES_ON:
                break
            name = self.graph[source].input[0]
        return full_name(name)

    def is_mark(self, name: str) -> bool:
        """Tell whether who waits for a node waits for the branch alone."""
        node = self.graph.get(name)
        if node is None or node.name not in self.either:
            return False
        named = node.op in ("Const", "Identity") and all(map(self.is_mark, node.input))
        return named or node in self.switches

    def sources(self, node: compat.NodeDef) -> set[str]:
        """Return the names of the ops that a node needs outside of the branch too."""
        waits = (name for name in waits_of(node) if not self.is_mark(name))
        return {source_of(self.origin(n)) for n in data_of(node)} | {
            *map(source_of, waits)
        }

    def leaving(self) -> set[str]:
        """Return the names of the ops that can leave: writes, and what these need."""
        graph, users = self.graph, dict[str, set[str]]()
        for name in self.either:
            if graph[name].op not in _PASSES_ON:
                for read in data_of(graph[name]):
                    users.setdefault(self.origin(read), set()).add(name)
        free = {name for name in self.inside if _may_run_always(graph[name])}

        def own(name: str) -> set[str]:  # users of the variable that an op writes
            node = graph[name]
            return users[self.origin(node.input[0])] if node.op in _WRITES else set()

        while staying := {
            name
            for name in free
            if not self.sources(graph[name]) & self.inside | own(name) <= free
        }:
            free -= staying
        found, pending = set[str](), [u for name in free for u in own(name)]
        while pending:
            name = pending.pop()
            if name in free and name not in found:
                found.add(name)
                pending += self.sources(graph[name])
        return found

    def ends(self, name: str, leaving: Set[str]) -> bool:
        """Tell whether an op that stays still runs only where a branch does."""
        node = self.graph[name]
        if name not in self.inside:  # behind both branches
            return leaving.isdisjoint(source_of(self.origin(n)) for n in data_of(node))
        stays = (source_of(n) not in leaving for n in node.input)
        inner = (source_of(n) in self.either for n in node.input)
        marks = map(self.is_mark, node.input)
        return any(m or (s and i) for m, s, i in zip(marks, stays, inner, strict=True))


def _branches(graph: Nodes, step: Step) -> Iterator[tuple[_Branch, set[str]]]:
    """Yield branches that run if numbers are finite, and the ops that can leave."""
    found: dict[str, list[compat.NodeDef]] = defaultdict(list)
    for node in graph:
        if node.op == "Switch":
            found[full_name(node.input[1])].append(node)
    for predicate, switches in found.items():
        given = {source_of(name) for node in switches for name in node.input}
        if step.fixed.isdisjoint(given) and _tests_numbers(graph, predicate):
            branch = _Branch.of(graph, predicate, switches)
            leaving = branch.leaving()
            rest = _behind(graph, switches, 1) - leaving
            if leaving and all(branch.ends(name, leaving) for name in rest):
                yield branch, leaving


def _tests_numbers(graph: Nodes, name: str) -> bool:
    """Tell whether a predicate follows from a test of numbers that are to be finite."""
    node = graph.get(name)
    if node is None or node.op not in _ALL:
        return node is not None and node.op == "IsFinite"
    return any(_tests_numbers(graph, each) for each in data_of(node))


def _behind(graph: Nodes, switches: Sequence[compat.NodeDef], output: int) -> set[str]:
    """Return the names of all nodes that follow an output of the switches."""
    begin = (f"{node.name}:{output}" for node in switches)
    pending = [node for tensor in begin for node in graph.readers(tensor)]
    found = {node.name for node in pending}
    while pending:
        new = [n for n in graph.followers(pending.pop().name) if n.name not in found]
        found |= {node.name for node in new}
        pending += new
    return found


def _may_run_always(node: compat.NodeDef) -> bool:
    if node.op in _WRITES:
        return tf.as_dtype(compat.attribute(node, "dtype").type) in _FLOATS
    passes_on = node.op in _PASSES_ON or node.op == "Merge"
    return node.op == "ReadVariableOp" or (compat.is_pure(node) and not passes_on)


def _take_out(graph: Nodes, _: Step, place: tuple[_Branch, set[str]]) -> None:
    (branch, names), new = place, dict[str, str]()
    predicate = branch.predicate
    begun = [f"^{source_of(predicate)}"] if graph.get(predicate) else []
    begun += [name for node in branch.switches for name in waits_of(node)]
    leaving = [node for node in graph if node.name in names]
    inputs = {node.name: _inputs(branch, node, begun) for node in leaving}
    for node in leaving:
        if node.op == "Const":  # who waits for the constant waits for the branch
            copy = graph.copy_of(node, f"{node.name}{CHOSEN}")
            new[f"{node.name}:0"] = copy.name
    for node in leaving:
        moved = graph[new.get(f"{node.name}:0", node.name)]
        graph.give(moved, [new.get(name, name) for name in inputs[node.name]])
        if node.op in _WRITES:
            _choose(graph, node, predicate)
    unread = [n for n in graph if n.name in branch.either and n.op in _PASSES_ON]
    for node in reversed(unread):
        if not graph.followers(node.name):
            graph.remove(node)


def _inputs(branch: _Branch, node: compat.NodeDef, begun: Sequence[str]) -> list[str]:
    """Return the inputs of an op outside of the branch, which waits as it did."""
    waits = [name for name in waits_of(node) if not branch.is_mark(name)]
    waits += [] if compat.is_pure(node) else begun
    return [*map(branch.origin, data_of(node)), *dict.fromkeys(waits)]


def _choose(graph: Nodes, node: compat.NodeDef, predicate: str) -> None:
    """Let a write take what the branch writes, or else what changes nothing."""
    (handle, value, *waits), name = node.input, f"{node.name}{CHOSEN}"
    dtype = tf.as_dtype(compat.attribute(node, "dtype").type)
    if node.op in _NOTHING:
        constant = compat.constant(f"{name}_not", _NOTHING[node.op], dtype, node.device)
        otherwise = graph.add(constant, node)
    else:
        inputs = [handle, *waits]
        otherwise = graph.make(
            f"{name}_not", "ReadVariableOp", inputs, node.device, node, dtype=dtype
        )
    inputs = [predicate, value, otherwise.name]
    graph.make(name, "SelectV2", inputs, node.device, node, T=dtype)
    graph.give(node, [handle, name, *waits])


CHOOSE_WRITES = Pass(find=_branches, change=_take_out)
