"""Loops and branches in the runtime's graph: their ops, ends and trip counts.

    a loop                                    a branch
    Enter ─> Merge ─> Switch ─> Exit          Switch ─┬─> then ─┬─> Merge
               ↑         └─> body ─┐                  └─> else ─┘
               └─ NextIteration <──┘

A loop's `Exit` yields its value when the last round has ended. Without the edge back to
`Merge` the edges do not show that, so control edges tell planners. Ordered nodes come
after their inputs, that edge left out.

The graph may tell how often a body runs:

    Enter(0) ─> Merge ─> Less(·, 60) ─> LoopCond        60 rounds
                  ↑─ NextIteration ─ Add(·, 1)

A gradient's loop counts up to the count of its forward loop: `Exit` of a counter yields
the counter's value after the last round. Of several conditions the first one to fail
ends the loop.

Known weakness: where one of several conditions tests no counter, the trip count is an
upper bound.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from lms.tf import compat
from lms.tf.capture.ops import CONTROL_FLOW
from lms.tf.nodes import data_of, source_of, with_numbers

__all__ = ["HANDS_ON", "Trips", "control_flow", "frames_around", "loop_ends"]
__all__ += ["one_round_at_a_time", "put_into"]

_ENTERS, _EXITS = ("Enter", "RefEnter"), ("Exit", "RefExit")

_SAME = frozenset({"Identity", "Enter", "Cast", "Switch"})

# Ops that pass a list on; `Merge` from either input.
HANDS_ON = frozenset({"Identity", "Enter", "Exit", "NextIteration", "Switch", "Merge"})

# Ops that put elements into a list, and the input that is the element.
_PUTS = {"TensorListPushBack": 1, "TensorListSetItem": 2, "TensorListFromTensor": 0}
_EMPTY = {"EmptyTensorList", "TensorListReserve"}
_LISTS = HANDS_ON | _PUTS.keys() | {"TensorListPopBack", "ZerosLike", "AddN"}

# A value is followed back through at most 64 ops.
_DEEP = 64


class Trips:
    """Trip counts of loops, each computed once.

    Args:
        nodes: The step's nodes by name.
        frames: The loops around each node's outputs, the innermost one last.
        sizes: Gives upper bounds of the numbers sliced out of a shape; None where trip
            counts must not rest on bounds.
    """

    def __init__(
        self,
        nodes: Mapping[str, compat.NodeDef],
        frames: Mapping[str, tuple[str, ...]],
        sizes: Callable[[str], tuple[int, ...] | None] | None,
    ) -> None:
        self._nodes = nodes
        self._frames = frames
        self._sizes = sizes
        self._conditions = {
            frames[name]: node for name, node in nodes.items() if node.op == "LoopCond"
        }
        self._found: dict[tuple[str, ...], int | None] = {}

    def of(self, frame: tuple[str, ...]) -> int | None:
        """Return a loop's rounds in one round of the outer loops; None if unknown."""
        if frame not in self._found:
            self._found[frame] = None  # also if the count depends on itself
            condition = self._conditions.get(frame)
            if condition is not None:
                self._found[frame] = self._rounds(condition.input[0])
        return self._found[frame]

    def value(self, name: str, depth: int = _DEEP) -> int | None:
        """Return an integer scalar that is equal in all steps; None if unknown."""
        node = self._nodes.get(source_of(name))
        if node is None or depth == 0:
            return None
        if node.op == "Const":
            value: Any = tf.make_ndarray(compat.attribute(node, "value").tensor)
            return int(value) if value.ndim == 0 and value.dtype.kind in "iu" else None
        if node.op == "StridedSlice" and self._sizes is not None:
            return (self._sizes(name) or (None,))[0]
        if node.op == "Merge":
            return self._invariant(node, depth)
        if node.op == "Exit":
            return self._counted(node, depth)
        return self.value(node.input[0], depth - 1) if node.op in _SAME else None

    def _rounds(self, condition: str) -> int | None:
        node = self._nodes.get(source_of(condition))
        if node is None:
            return None
        if node.op in ("LogicalAnd", "Identity"):
            known = [n for n in map(self._rounds, data_of(node)) if n is not None]
            return min(known, default=None)
        if node.op not in ("Less", "LessEqual", "Greater", "GreaterEqual"):
            return None
        counted = int(node.op.startswith("Greater"))  # position of the counter
        counter = self._counter(self._merge_of(node.input[counted]))
        limit = self.value(node.input[1 - counted])
        if counter is None or limit is None:
            return None
        start, step = counter
        limit += node.op.endswith("Equal")
        return max(0, -(-(limit - start) // step))

    def _merge_of(self, name: str) -> compat.NodeDef | None:
        """Return the loop variable that a tensor passes on unchanged, or None."""
        for _ in range(_DEEP):
            node = self._nodes.get(source_of(name))
            if node is None or node.op == "Merge":
                return node
            if node.op not in ("Identity", "Switch", "Exit"):
                return None
            name = node.input[0]
        return None

    def _edges(self, merge: compat.NodeDef) -> tuple[str, str] | None:
        """Return the tensors of a loop variable's first and next values."""
        data = [self._nodes.get(source_of(name)) for name in merge.input]
        begin = next((n for n in data if n and n.op == "Enter"), None)
        after = next((n for n in data if n and n.op == "NextIteration"), None)
        return (begin.input[0], after.input[0]) if begin and after else None

    def _counter(self, merge: compat.NodeDef | None) -> tuple[int, int] | None:
        """Return (start, step) of a loop variable that a constant is added to."""
        edges = None if merge is None else self._edges(merge)
        if merge is None or edges is None:
            return None
        added = self._nodes.get(source_of(edges[1]))
        while added is not None and added.op == "Identity":
            added = self._nodes.get(source_of(added.input[0]))
        if added is None or added.op not in ("Add", "AddV2"):
            return None
        start = self.value(edges[0])
        for own, other in (added.input[:2], added.input[1::-1]):
            before, step = self._merge_of(own), self.value(other)
            if before is not None and before.name == merge.name and step and step > 0:
                return None if start is None else (start, step)
        return None

    def _invariant(self, merge: compat.NodeDef, depth: int) -> int | None:
        edges = self._edges(merge)
        if edges is None:
            return None
        after = self._merge_of(edges[1])
        same = after is not None and after.name == merge.name
        return self.value(edges[0], depth - 1) if same else None

    def _counted(self, node: compat.NodeDef, depth: int) -> int | None:
        merge = self._merge_of(node.input[0])
        if merge is None:
            return None
        counter, rounds = self._counter(merge), self.of(self._frames[merge.name])
        if counter is None or rounds is None:
            return self._invariant(merge, depth - 1)
        return counter[0] + counter[1] * rounds


def put_into(
    reader: compat.NodeDef, nodes: Mapping[str, compat.NodeDef]
) -> Iterator[tuple[compat.NodeDef, str]]:
    """Yield (op, element) for each op that fills the reader's list; "" if unknown."""
    pending, seen = [reader.name], {reader.name}
    while pending:
        node = nodes[pending.pop()]
        if node.op in _PUTS:
            yield node, node.input[_PUTS[node.op]]
        if node.op == "TensorListFromTensor":
            continue
        before = node.input if node.op == "Merge" else node.input[:1]
        for name in map(source_of, before):
            source = nodes.get(name)
            if source is None or source.op not in _LISTS | _EMPTY:
                yield node, ""
            elif name not in seen and source.op in _LISTS:
                seen.add(name)
                pending.append(name)


def control_flow(ordered: Sequence[compat.NodeDef]) -> frozenset[str]:
    """Return the names of all ops in loops and branches, borders included.

    A Switch belongs to a loop when LoopCond is its predicate, a Merge when it closes a
    NextIteration.
    """
    types = {node.name: node.op for node in ordered}
    depth: dict[str, int] = {}
    for node in ordered:
        sources = [source_of(name) for name in node.input]
        inside = max((depth.get(name, 0) for name in sources), default=0)
        kinds = {types.get(name) for name in sources}
        if node.op in ("Enter", "RefEnter"):
            inside += 1
        elif node.op in ("Switch", "RefSwitch", "_SwitchN"):
            inside += "LoopCond" not in kinds
        elif node.op in ("Exit", "RefExit"):
            inside -= 1
        elif node.op in ("Merge", "RefMerge"):
            inside -= "NextIteration" not in kinds
        depth[node.name] = inside
    return frozenset(
        node.name for node in ordered if depth[node.name] > 0 or node.op in CONTROL_FLOW
    )


def loop_ends(ordered: Sequence[compat.NodeDef]) -> Mapping[str, tuple[str, ...]]:
    """Map each Exit to the ops that must have ended before it yields.

    All NextIteration ops of a loop stand for its whole body, and all Enter ops for its
    inputs.
    """
    loops = frames_around(ordered)
    ends: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for node in ordered:
        if node.op in (*_ENTERS, "NextIteration", "RefNextIteration"):
            ends[loops[node.name]].append(node.name)
    exits = (node for node in ordered if node.op in _EXITS)
    return {node.name: tuple(ends[loops[source_of(node.input[0])]]) for node in exits}


def frames_around(ordered: Sequence[compat.NodeDef]) -> dict[str, tuple[str, ...]]:
    """Map each node to the names of the loops around its outputs, inner ones last."""
    loops: dict[str, tuple[str, ...]] = {}
    for node in ordered:
        sources = (loops.get(source_of(name), ()) for name in node.input)
        around = max(sources, key=len, default=())
        if node.op in _ENTERS:
            around = (*around, compat.attribute(node, "frame_name").s.decode())
        if node.op in _EXITS:
            around = around[:-1]
        loops[node.name] = around
    return loops


def one_round_at_a_time(nodes: Sequence[compat.NodeDef]) -> list[compat.NodeDef]:
    """Return nodes whose loops begin a round when the round before has ended.

    TensorFlow begins up to `parallel_iterations` rounds at once. The tensors that wait
    for later rounds then depend on the machine's threads.
    """
    enters = dict.fromkeys((node.name for node in nodes if node.op in _ENTERS), 1)
    return with_numbers(nodes, "parallel_iterations", enters)
