"""The recomputed tensors so far, and the step's memory with them.

A change says what one more recomputed tensor would mean; `Chosen` tells what it saves,
makes it, and says the whole choice in the plan's words.
"""

from bisect import insort
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lms.ir.graph import GraphView, Op, op_of
from lms.ir.liveness import Buffer, buffers, memory_curve
from lms.ir.recompute import Recomputed, copy_name
from lms.machine.costs import Costs
from lms.units import Bytes, Seconds

__all__ = ["Change", "Chosen", "StepAsItIs"]


@dataclass(slots=True)
class Change:
    """Effects of recomputing one more tensor.

    Args:
        second: Ops that run again, and the position before which they do.
        last: Roots, and the last position that needs the original.
        last_copy: The same for what the second run makes.
        bytes: Bytes that are added from one position up to another.
        seconds: What running ops again takes.
        passing: Bytes of the largest tensor that only the ops between read.
    """

    second: dict[str, int] = field(default_factory=dict[str, int])
    last: dict[str, int] = field(default_factory=dict[str, int])
    last_copy: dict[str, int] = field(default_factory=dict[str, int])
    bytes: list[tuple[int, int, Bytes]] = field(
        default_factory=list[tuple[int, int, int]]
    )
    seconds: Seconds = 0.0
    passing: Bytes = 0

    def copy(self) -> "Change":
        """The same, to go on from in another way."""
        return Change(
            second=dict(self.second),
            last=dict(self.last),
            last_copy=dict(self.last_copy),
            bytes=list(self.bytes),
            seconds=self.seconds,
            passing=self.passing,
        )


class StepAsItIs:
    """Facts about a step that hold whatever is recomputed.

    Args:
        graph: The step in the execution order to obey.
        costs: Seconds of each op.
        least: Tensors of fewer bytes are kept.
        cheap: Whether only ops run again that take about as long as copying.
    """

    def __init__(
        self, graph: GraphView, costs: Costs, *, least: Bytes, cheap: bool
    ) -> None:
        self.graph = graph
        self.costs = costs
        self.least = least
        self.buffers = {buffer.root: buffer for buffer in buffers(graph)}
        self.made = {op.name: self._made(op) for op in graph.ops}
        self.read = {op.name: self._read(op) for op in graph.ops}
        self._cheap = cheap
        self._written: dict[str, int] = {}  # variables, and where they are written
        for position, op in enumerate(graph.ops):
            for handle in op.writes:
                self._written.setdefault(graph.roots.get(handle, handle), position)

    def _made(self, op: Op) -> tuple[Buffer, ...]:
        named = (self.buffers.get(tensor.name) for tensor in op.outputs)
        return tuple(buffer for buffer in named if buffer is not None)

    def _read(self, op: Op) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.graph.roots[name] for name in op.inputs))

    def may_run_again(self, name: str) -> bool:
        """Tell whether an op may run twice."""
        op = self.graph.by_name[name]
        return op.repeatable and not op.varies and (op.cheap or not self._cheap)

    def is_old_value(self, root: str, at: int) -> bool:
        """Tell whether a read then keeps a large old value beside the new one."""
        read = self.graph.by_name[op_of(root)]
        if not read.reads_state or self.graph.tensors[root].size < max(1, self.least):
            return False
        if not read.inputs:
            return True
        handle = self.graph.roots[read.inputs[0]]
        return self._written.get(handle, at) < at


class Chosen:
    """The choice so far, and the step's memory with it.

    Args:
        step: The step.

    Attributes:
        second: Ops that run again, and the position before which they do.
    """

    def __init__(self, step: StepAsItIs) -> None:
        self.step = step
        self.second: dict[str, int] = {}
        self._uses = {root: list(b.uses) for root, b in step.buffers.items()}
        self._last = {root: b.last for root, b in step.buffers.items()}
        self._last_copy: dict[str, int] = {}
        self._memory: npt.NDArray[np.int64] = np.array(
            [*memory_curve(step.graph), 0], np.int64
        )

    def exceeds(self, budget: Bytes) -> bool:
        """Tell whether the step needs more anywhere."""
        return bool((self._memory > budget).any())

    def saved(self, change: Change, at: int, budget: Bytes) -> int:
        """Bytes above the budget, added up over positions, that a change takes away."""
        first = min(begin for begin, _, _ in change.bytes)
        end = max(end for _, end, _ in change.bytes)
        before = self._memory[first:end]
        after = before.copy()
        for begin, stop, size in change.bytes:
            after[begin - first : stop - first] += size
        after[at - first] += change.passing
        return int(
            np.maximum(before - budget, 0).sum() - np.maximum(after - budget, 0).sum()
        )

    def take(self, change: Change) -> None:
        """Make a change."""
        for begin, stop, size in change.bytes:
            self._memory[begin:stop] += size
        self.second |= change.second
        self._last |= change.last
        self._last_copy |= change.last_copy
        for name, at in change.second.items():
            for root in self.step.read[name]:
                uses = self._uses.get(root)
                if uses is not None and at not in uses:
                    insort(uses, at)

    def uses(self, root: str) -> list[int]:
        """Positions that need a buffer's contents, those of second runs included."""
        return self._uses[root]

    def last(self, root: str) -> int:
        """The last position that needs the original."""
        return self._last[root]

    def last_copy(self, root: str) -> int:
        """The last position that needs what the second run makes."""
        return self._last_copy[root]

    def recomputed(self) -> tuple[Recomputed, ...]:
        """The choice in the plan's words: who reads the second run of which op.

        What nobody reads any more, since a later choice found another way, is left out.
        """
        graph = self.step.graph
        readers: dict[str, dict[str, None]] = {}
        read: list[str] = []
        for position, op in enumerate(graph.ops):
            if op.alias is None or op.fixed:
                read += self._note_reads(op, op.name, position, readers)
        while read:
            name = read.pop()
            op, at = graph.by_name[name], self.second[name]
            read += self._note_reads(op, copy_name(name), at, readers)
        return tuple(
            Recomputed(op=op.name, readers=tuple(readers[op.name]))
            for op in graph.ops
            if op.name in readers
        )

    def _note_reads(
        self, op: Op, reader: str, at: int, readers: dict[str, dict[str, None]]
    ) -> list[str]:
        """Let a reader read second runs, through the same aliases as before.

        Returns:
            The ops that it is the first to read the second run of.
        """
        graph = self.step.graph
        new: list[str] = []
        for tensor in op.inputs:
            root = graph.roots[tensor]
            source = op_of(root)
            if root not in self.step.buffers or at < self.second.get(source, at + 1):
                continue
            name, by = op_of(tensor), reader
            while name != source:
                readers.setdefault(name, {})[by] = None
                name, by = op_of(graph.by_name[name].alias or root), copy_name(name)
            if source not in readers:
                new.append(source)
            readers.setdefault(source, {})[by] = None
        return new
