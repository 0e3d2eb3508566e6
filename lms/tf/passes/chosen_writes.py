"""Take writes out of a branch that runs only if all numbers are finite.

    before                              after
    finite ──> Switch ─> g ─> AddTo     g ──────────> SelectV2 ──> AddTo
                                        finite, -0.0 ───↑

An optimizer that scales the loss changes no variable where a gradient is not finite.
The branch holds all gradients until the last one is known, and its ops have no order.
Here its ops run in every step, and a write chooses: where the branch would not run, the
write takes the old value, or adds -0.0. In a finite step all bits are equal.

Ops leave that cannot fail, whatever they read. A variable leaves whose users, in the
whole step, are ops outside of loops and branches, and ops that leave this branch.

Known weaknesses: in a step that is not finite, adding -0.0 changes the bits of a NaN in
a variable, and makes a subnormal number 0, as TensorFlow's kernels do. Where a branch
holds another branch with the same variable, the variable stays.

Sources: `LossScaleOptimizer` of Keras; `lower_if_op.cc`; dead tensors in executor.cc.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import tensorflow as tf

from lms.tf import compat
from lms.tf.capture.ops import CONTROL_FLOW, SPLITS
from lms.tf.nodes import Nodes, data_of, full_name, source_of, waits_of
from lms.tf.passes import Pass, Step

__all__ = ["CHOOSE_WRITES", "CHOSEN"]

CHOSEN = "/lms_chosen"  # name suffix of the value that a write takes

# Ops between tests of numbers and a predicate that needs all of them.
_ALL = {"All", "LogicalAnd", "Pack", "ConcatV2", "Identity", "Squeeze"}
_PLACED = {"Reshape", "TensorScatterUpdate"}  # their second input is no test
_TESTS = {"IsFinite", "Const", "Fill"}

_FLOATS = {tf.float16, tf.bfloat16, tf.float32, tf.float64}  # SelectV2 has kernels

# Ops that cannot fail; a division or power of integers may.
_RULES = ("element_wise", "packed", "reduced")
_SAFE = {op for op, rule in SPLITS.items() if rule in _RULES}
_SAFE |= {"Const", "AddN", "L2Loss", "MatMul", "Transpose", "Select", "ExpandDims"}
_OF_FLOATS = {"Div", "DivNoNan", "RealDiv", "Pow", "FloorDiv", "FloorMod"}

# Zeros that a write adds or subtracts where its branch would not run, by its op.
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
        """Tell whether a node stands for the branch: an op may wait for it alone."""
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

    def is_size(self, name: str) -> bool:
        """Tell whether a tensor is constant, or part of a shape."""
        node = self.graph.get(self.origin(name))
        if node is not None and node.op == "StridedSlice":
            return all(map(self.is_size, data_of(node)))
        return node is not None and node.op in ("Const", "Shape")

    def may_run_always(self, node: compat.NodeDef) -> bool:
        """Tell whether an op ends without an error, whatever numbers it reads."""
        if node.op == "ReadVariableOp":
            return True
        if node.op == "StridedSlice":
            return self.is_size(node.name)
        if node.op == "UnsortedSegmentSum":  # a GPU's takes any row's number
            return "GPU" in node.device and self.is_size(node.input[2])
        key = "dtype" if node.op in _WRITES else "T"
        of_floats = tf.as_dtype(compat.attribute(node, key).type or 1) in _FLOATS
        if node.op in _WRITES or node.op in _OF_FLOATS:
            return of_floats
        return node.op in _SAFE and compat.is_pure(node)

    def leaving(self, variables: Mapping[str, tf.TensorSpec]) -> set[str]:
        """Return the names of the ops that can leave: writes, and what these need."""
        graph, users = self.graph, self._users(variables)
        free = {name for name in self.inside if self.may_run_always(graph[name])}

        def needed(name: str) -> set[str]:
            node = graph[name]
            own = users.get(self.origin(node.input[0])) if node.op in _WRITES else ()
            own = {""} if own is None else own  # a variable that must stay
            return self.sources(node) & self.inside | {*own}

        while staying := {name for name in free if not needed(name) <= free}:
            free -= staying
        found, pending = set[str](), [n for n in free if graph[n].op in _WRITES]
        pending += [user for name in pending for user in needed(name)]
        while pending:
            name = pending.pop()
            if name in free and name not in found:
                found.add(name)
                pending += self.sources(graph[name])
        while unheld := {name for name in free - found if not self.ends(name, found)}:
            found |= unheld  # all that these read has left
        return found

    def _users(self, variables: Mapping[str, tf.TensorSpec]) -> dict[str, set[str]]:
        """Map handles of variables to their users in this branch and the other one.

        Left out are variables of open shapes, and those of other loops and branches.
        """
        graph, found = self.graph, dict[str, set[str]]()
        for name, spec in variables.items():
            seen, pending = set[str](), [f"{name}:0"]
            while pending:
                new = [n for n in graph.readers(pending.pop()) if n.name not in seen]
                seen |= {node.name for node in new}
                handing = [n for n in new if n.op in CONTROL_FLOW | _PASSES_ON]
                pending += [
                    f"{n.name}:{output}" for n in handing for output in range(2)
                ]
            gates = {each for each in seen if graph[each].op in CONTROL_FLOW}
            if spec.shape.is_fully_defined() and gates <= self.either:
                own = {each for each in seen if graph[each].op not in _PASSES_ON}
                found[f"{name}:0"] = own & self.either
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
            leaving = branch.leaving(step.variables)
            rest = _behind(graph, switches, 1) - leaving
            if leaving and all(branch.ends(name, leaving) for name in rest):
                yield branch, leaving


def _tests_numbers(graph: Nodes, name: str) -> bool:
    """Tell whether a predicate is that all of some numbers are finite."""
    pending, seen, ends = [name], set[str](), set[str]()
    while pending:
        node = graph.get(pending.pop())
        if node is None:
            return False
        if node.op not in _ALL | _PLACED:
            ends.add(node.op)
        elif node.name not in seen:
            seen.add(node.name)
            pending += [*data_of(node)][:: 2 if node.op in _PLACED else 1]
    return "IsFinite" in ends and ends <= _TESTS


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
    else:  # behind all earlier writes: what the new value waits for may tell them
        made = [f"^{source_of(value)}"] if graph.get(value) else []
        of = f"{name}_not", "ReadVariableOp", [handle, *waits, *made], node.device, node
        otherwise = graph.make(*of, dtype=dtype)
    inputs = [predicate, value, otherwise.name]
    graph.make(name, "SelectV2", inputs, node.device, node, T=dtype)
    graph.give(node, [handle, name, *waits])


CHOOSE_WRITES = Pass(find=_branches, change=_take_out)
