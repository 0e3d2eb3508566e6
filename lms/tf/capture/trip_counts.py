"""How often a loop's body runs, where its graph says so.

    Enter(0) ─> Merge ─> Less(·, 60) ─> LoopCond        60 rounds
                  ↑─ NextIteration ─ Add(·, 1)

A gradient's loop counts up to what its forward loop has counted: `Exit` of a counter is
its value after the last round. A condition of several is the first of them to end the
loop.

Known weakness: the number is an upper bound where a condition of several is not one of
a counter.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from lms.tf import compat
from lms.tf.capture.loops import source_of

__all__ = ["Trips"]

_SAME = frozenset({"Identity", "Enter", "Cast", "Switch"})

# How deep a value may be hidden.
_DEEP = 64


class Trips:
    """Rounds of loops; each is worked out once.

    Args:
        nodes: The step's nodes by their names.
        frames: The loops around each node's outputs, the innermost one last.
    """

    def __init__(
        self,
        nodes: Mapping[str, compat.NodeDef],
        frames: Mapping[str, tuple[str, ...]],
    ) -> None:
        self._nodes = nodes
        self._frames = frames
        self._conditions = {
            frames[name]: node for name, node in nodes.items() if node.op == "LoopCond"
        }
        self._found: dict[tuple[str, ...], int | None] = {}

    def of(self, frame: tuple[str, ...]) -> int | None:
        """Rounds of a loop, in one round of those around it; None if not known."""
        if frame not in self._found:
            self._found[frame] = None  # what asks for itself is not known
            condition = self._conditions.get(frame)
            if condition is not None:
                self._found[frame] = self._rounds(condition.input[0])
        return self._found[frame]

    def value(self, name: str, depth: int = _DEEP) -> int | None:
        """A whole number that is the same in each step; None if not known."""
        node = self._nodes.get(source_of(name))
        if node is None or depth == 0:
            return None
        if node.op == "Const":
            value: Any = tf.make_ndarray(compat.attribute(node, "value").tensor)
            return int(value) if value.ndim == 0 and value.dtype.kind in "iu" else None
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
            data = [name for name in node.input if name[0] != "^"]
            known = [n for n in map(self._rounds, data) if n is not None]
            return min(known, default=None)
        small, large = {
            "Less": (0, 1),
            "LessEqual": (0, 1),
            "Greater": (1, 0),
            "GreaterEqual": (1, 0),
        }.get(node.op, (None, None))
        if small is None or large is None:
            return None
        counter = self._counter(self._merge_of(node.input[small]))
        limit = self.value(node.input[large])
        if counter is None or limit is None:
            return None
        start, step = counter
        limit += node.op in ("LessEqual", "GreaterEqual")
        return max(0, -(-(limit - start) // step))

    def _merge_of(self, name: str) -> compat.NodeDef | None:
        """The loop variable that a tensor is, as it is; None if it is none."""
        for _ in range(_DEEP):
            node = self._nodes.get(source_of(name))
            if node is None or node.op == "Merge":
                return node
            if node.op not in ("Identity", "Switch", "Exit"):
                return None
            name = node.input[0]
        return None

    def _edges(self, merge: compat.NodeDef) -> tuple[str, str] | None:
        """Tensors of a loop variable's first and next values."""
        data = [self._nodes.get(source_of(name)) for name in merge.input]
        begin = next((n for n in data if n is not None and n.op == "Enter"), None)
        after = next(
            (n for n in data if n is not None and n.op == "NextIteration"), None
        )
        return (begin.input[0], after.input[0]) if begin and after else None

    def _counter(self, merge: compat.NodeDef | None) -> tuple[int, int] | None:
        """Start and step of a loop variable to which a number is added."""
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
