"""Faults made by machine in rewritten graphs, for the proof to refuse.

Each fault changes one place: an edge, an input, a constant or a place in the order. A
fault that the proof does not refuse is harmless: values and order are proved of the
faulty graph, too, in every order that its edges allow, and its bytes are in the limit.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lms.proof.nodes import Graph, Step, integers, split
from lms.proof.prove import Promise, prove
from lms.tf import compat

__all__ = ["EQUAL", "IMPLIED", "KINDS", "MISSED", "REFUSED"]
__all__ += ["Fault", "Subject", "judge", "table"]

REFUSED, MISSED = "refused", "missed"
IMPLIED = "edges that other edges imply"
EQUAL = "equal bits in a run"

_OUT, _IN = "_CopyFromGpuToHost", "_CopyFromHostToGpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Two graphs of a step, a promise, and shapes: all that a proof reads."""

    before: Step
    after: Step
    promise: Promise
    shapes: Mapping[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A kind of fault, the place, and the nodes that are faulty."""

    kind: str
    place: str
    nodes: Sequence[Any]


class _Editor:
    """A step's nodes, of which copies are changed."""

    def __init__(self, step: Step) -> None:
        self.graph = Graph(step)
        self.nodes = {node.name: node for node in step.nodes}
        self.readers: dict[str, list[str]] = defaultdict(list)
        for node in step.nodes:
            for name in node.input:
                self.readers[name.removeprefix("^").partition(":")[0]].append(node.name)

    def counted(self) -> set[str]:
        """Return the names of nodes whose values leave the step, or are written."""
        step = self.graph.step
        pending = [split(name)[0] for name in step.results]
        pending += [node.name for node in self.graph.live if node.op in step.effects]
        found = set[str]()
        while pending:
            if (name := pending.pop()) in self.graph.by_name and name not in found:
                found.add(name)
                pending += [source for source, _ in self.graph.by_name[name].reads]
        return found

    def of(self, *ops: str) -> list[Any]:
        """Return the nodes of some types that run."""
        return [node.proto for node in self.graph.live if node.op in ops]

    def source(self, node: Any, place: int) -> Any:
        """Return the node that an input comes from; None for an argument."""
        return self.nodes.get(node.input[place].partition(":")[0])

    def with_inputs(self, node: Any, inputs: Sequence[str], *more: Any) -> list[Any]:
        """Return all nodes, with other inputs of one, and more nodes."""
        changed = {node.name: compat.copied(node, inputs)}
        changed |= {each.name: each for each in more}
        return [*(self.nodes | changed).values()]

    def with_first(self, node: Any, new: str, *more: Any) -> list[Any]:
        """Return all nodes, with another first input of one."""
        return self.with_inputs(node, [new, *node.input[1:]], *more)

    def is_random(self, node: Any) -> bool:
        """Tell whether a random op is at most two ops behind a node."""
        near = self.readers[node.name]
        near = [*near, *(name for each in near for name in self.readers[each])]
        return any("Random" in self.nodes[name].op for name in near)


def _edges(edit: _Editor) -> Iterator[tuple[str, list[Any]]]:
    for node in edit.graph.live:
        for wait in node.waits:
            left = [name for name in node.proto.input if name != f"^{wait}"]
            yield f"{wait} -> {node.name}", edit.with_inputs(node.proto, left)


def _wrong_copies(edit: _Editor) -> Iterator[tuple[str, list[Any]]]:
    outs, ins = edit.of(_OUT), edit.of(_IN)
    for node in ins:
        for other in outs:
            if other.name != node.input[0].partition(":")[0]:
                yield f"{node.name} of {other.name}", edit.with_first(node, other.name)
    for node in outs:
        for other in outs:
            if other.input[0] != node.input[0]:
                yield (
                    f"{node.name} of {other.input[0]}",
                    edit.with_first(node, other.input[0]),
                )


def _inline_reloads(edit: _Editor) -> Iterator[tuple[str, list[Any]]]:
    """A copy back that does not wait for its copy out, but reads what it reads."""
    for node in edit.of(_IN):
        out = edit.source(node, 0)
        if out is not None and out.op == _OUT:
            yield node.name, edit.with_first(node, out.input[0])


def _early_releases(edit: _Editor) -> Iterator[tuple[str, list[Any]]]:
    """An op takes memory before the copy out, or a reader, has ended."""
    for node in edit.graph.live:
        holds = [w for w in node.waits if w.endswith(("/out", "/keep"))]
        if holds and node.op != "NoOp":
            left = [name for name in node.proto.input if name[1:] not in holds]
            yield node.name, edit.with_inputs(node.proto, left)


def _shared_copies(edit: _Editor) -> Iterator[tuple[str, list[Any]]]:
    """A reader of a transposed tensor reads the tensor as it was before.

    Where nobody reads the reader's value, the fault would change none.
    """
    counted = edit.counted()
    for node in edit.of("Transpose", "Relu", "Mul", "Cast"):
        for name in edit.readers[node.name]:
            if name not in counted:
                continue
            reader = edit.nodes[name]
            inputs = [
                node.input[0] if split(i)[0] == node.name and i[0] != "^" else i
                for i in reader.input
            ]
            if inputs != list(reader.input):
                yield f"{name} past {node.name}", edit.with_inputs(reader, inputs)


def _seeds(edit: _Editor) -> Iterator[tuple[str, list[Any]]]:
    for node in edit.of("Const"):
        value = integers(edit.graph.by_name[node.name])
        if value and edit.is_random(node):
            yield node.name, _with_value(edit, node, [value[0] + 1, *value[1:]])
    for node in edit.graph.live:
        if "seed" in node.proto.attr:
            changed = compat.copied(node.proto)
            changed.attr["seed"].i += 1
            yield node.name, [*(edit.nodes | {node.name: changed}).values()]


def _axes(edit: _Editor) -> Iterator[tuple[str, list[Any]]]:
    """A part's axis, place or order is another."""
    for node in edit.of("ConcatV2"):
        if "lms" in node.name:
            yield (
                f"{node.name} swapped",
                edit.with_inputs(node, [node.input[1], node.input[0], *node.input[2:]]),
            )
            axis = edit.source(node, node.attr["N"].i)
            yield f"{node.name} along", _with_own(edit, node, node.attr["N"].i, axis)
    for node in edit.of("Slice"):
        if "lms" in node.name:
            for place in (1, 2):
                yield (
                    f"{node.name} {place}",
                    _with_own(edit, node, place, edit.source(node, place)),
                )


def _moved_writes(edit: _Editor) -> Iterator[tuple[str, list[Any]]]:
    """A read of an old value comes after the write, or in no order with it."""
    graph = edit.graph
    for write in edit.of(
        "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"
    ):
        for read in edit.of("ReadVariableOp"):
            nodes = graph.by_name[read.name], graph.by_name[write.name]
            if read.input[0] != write.input[0] or not graph.is_first(*nodes):
                continue
            left = [n for n in write.input if n != f"^{read.name}"]
            faulty = edit.with_inputs(write, left)
            changed = Graph(replace(graph.step, nodes=faulty))
            pair = changed.by_name[read.name], changed.by_name[write.name]
            if not changed.is_first(*pair):
                yield f"{read.name} -> {write.name}", faulty
            late = compat.copied(read, [read.input[0], f"^{write.name}"])
            late.name = f"{read.name}/late"
            after = graph.before[graph.by_name[write.name].index]
            for name in edit.readers[read.name]:
                place = graph.by_name[name].index
                reads = [*edit.nodes[name].input]
                if not after >> place & 1 and name != write.name and reads[0][0] != "^":
                    new = [late.name if split(n)[0] == read.name else n for n in reads]
                    if new != reads:
                        yield (
                            f"{name} after {write.name}",
                            edit.with_inputs(edit.nodes[name], new, late),
                        )


def _early_writes(edit: _Editor) -> Iterator[tuple[str, list[Any]]]:
    """A write does not wait for the commit point, nor for its undo copy."""
    for node in edit.graph.live:
        ends = [w for w in node.waits if w.startswith(("lms/writes/", "lms/undo"))]
        if ends and "Assign" in node.op:
            left = [name for name in node.proto.input if name[1:] not in ends]
            yield node.name, edit.with_inputs(node.proto, left)


def _second_runs(edit: _Editor) -> Iterator[tuple[str, list[Any]]]:
    """A second run reads its inputs in another order, or computes another op."""
    for node in edit.graph.live:
        data = [name for name in node.proto.input if name[0] != "^"]
        if "lms/again/" in node.name and len({*data}) > 1:
            turned = [*data[::-1], *(f"^{wait}" for wait in node.waits)]
            yield node.name, edit.with_inputs(node.proto, turned)


KINDS: Mapping[str, Callable[[_Editor], Iterator[tuple[str, list[Any]]]]] = {
    "an edge removed": _edges,
    "a copy of the wrong tensor": _wrong_copies,
    "a copy back without its copy out": _inline_reloads,
    "a release too early": _early_releases,
    "a transposed tensor shares a copy": _shared_copies,
    "a seed changed": _seeds,
    "a part's axis or place wrong": _axes,
    "a write moved before a read": _moved_writes,
    "a write before it can be undone": _early_writes,
    "a second run of other inputs": _second_runs,
}


def _with_value(edit: _Editor, node: Any, value: Sequence[int]) -> list[Any]:
    changed = compat.copied(node)
    tensor = changed.attr["value"].tensor
    tensor.tensor_content = b""
    field: Any = {3: "int_val", 9: "int64_val", 23: "uint64_val"}[tensor.dtype]
    tensor.ClearField(field)
    getattr(tensor, field).extend(value)
    return [*(edit.nodes | {node.name: changed}).values()]


def _with_own(edit: _Editor, node: Any, place: int, constant: Any) -> list[Any]:
    """Give a node a constant of its own, in which the first number is another."""
    own = compat.copied(constant)
    own.name = f"{node.name}/own"
    value = integers(edit.graph.by_name[constant.name]) or [0]
    tensor = own.attr["value"].tensor
    tensor.tensor_content = b""
    tensor.ClearField("int_val")
    tensor.int_val.extend([value[0] + 1, *value[1:]])
    inputs = [*node.input]
    inputs[place] = own.name
    return edit.with_inputs(node, inputs, own)


def _draw(subject: Subject, count: int, seed: int) -> list[Fault]:
    """Draw faults, about as many of each kind that the step offers."""
    edit, draw = _Editor(subject.after), random.Random(seed)
    offers = {kind: list(find(edit)) for kind, find in KINDS.items()}
    for each in offers.values():
        draw.shuffle(each)
    found = list[Fault]()
    while len(found) < count and any(offers.values()):
        for kind, each in offers.items():
            if each and len(found) < count:
                place, nodes = each.pop()
                found.append(Fault(kind=kind, place=place, nodes=nodes))
    return found


def judge(subject: Subject, count: int, seed: int = 0) -> list[tuple[Fault, str]]:
    """Draw faults, and judge each by the proof.

    `IMPLIED` if the faulty step reads the same and its edges imply all edges of the
    step; empty if the proof neither refuses the fault nor knows why.
    """
    judged = list[tuple[Fault, str]]()
    for fault in _draw(subject, count, seed):
        after = replace(subject.after, nodes=fault.nodes)
        proof = prove(subject.before, after, subject.promise, subject.shapes)
        said = proof.failed or proof.bytes_failed
        is_implied = not said and _is_implied(subject.after, after)
        judged.append((fault, IMPLIED if is_implied else said))
    return judged


def _is_implied(right: Step, faulty: Step) -> bool:
    graph, found = Graph(right), Graph(faulty)
    reads = all(n.reads == found.by_name[n.name].reads for n in graph.nodes)
    nodes = {n.name: found.by_name[n.name] for n in graph.nodes}
    edges = ((s, n) for n in graph.nodes for s in n.sources if not graph.is_back(n, s))
    return reads and all(found.is_first(nodes[s.name], nodes[n.name]) for s, n in edges)


def table(judged: Sequence[tuple[Fault, str]]) -> dict[str, dict[str, int]]:
    """Count faults by kind and outcome."""
    kinds = dict.fromkeys(fault.kind for fault, _ in judged)
    named = {"": MISSED, IMPLIED: IMPLIED, EQUAL: EQUAL}
    found = Counter((f.kind, named.get(said, REFUSED)) for f, said in judged)
    return {
        kind: {name: found[kind, name] for name in (REFUSED, *named.values())}
        for kind in kinds
    }
