"""Which tensors are recomputed instead of being kept or moved.

A tensor that is long idle between two readers need not be kept, nor moved, if the op
that made it is cheap and what that op read is there later too: then the op is
recomputed just before the far readers. If what it read is not there, that may be
recomputed in turn, as far back as cheap ops reach; or be kept, if it is smaller.

    conv ──> mul ──> add ──> relu ──> next conv ... gradients of relu, add, mul, conv
     kept    recomputed: mul', add', relu' in front of the gradient that reads them

Tensors are decided on in execution order, so those that a later one is made of are
known: what is recomputed itself, and much later, is not there for it. So of a chain of
sums, as in a residual network, every other one is kept.

Known weakness: a tensor is recomputed once, after its longest idle time.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import accumulate

from lms.ir.graph import GraphView, Op, op_of
from lms.ir.liveness import Buffer, buffers, memory_curve
from lms.ir.recompute import Recomputed, copy_name
from lms.machine.costs import Costs
from lms.planning.tuning import TUNING
from lms.units import Bytes, Seconds

__all__ = ["choose_recomputed", "idle_at_peak"]


def idle_at_peak(graph: GraphView) -> frozenset[str]:
    """Root tensors that are there, and not in use, when the step needs most memory."""
    curve = memory_curve(graph)
    top = curve.index(max(curve)) if curve else 0
    return frozenset(
        buffer.root
        for buffer in buffers(graph)
        if buffer.producer < top < buffer.last and top not in buffer.uses
    )


def choose_recomputed(
    graph: GraphView,
    candidates: Collection[str],
    costs: Costs,
    *,
    most: Callable[[Bytes], Seconds],
    least: Bytes = 0,
) -> tuple[Recomputed, ...]:
    """What to recompute so that tensors need not be kept.

    Args:
        graph: The step in the execution order to obey.
        candidates: Names of the root tensors that had better not be kept.
        costs: Seconds of each op.
        most: How long it may take to make a tensor of some size again.
        least: Tensors of fewer bytes are kept instead of being recomputed: ops that
            touch no larger one are not ordered, and would run again at once.

    Returns:
        Ops in execution order; empty if nothing can be recomputed in time.
    """
    chosen = _Chosen(graph, costs, least)
    for buffer in buffers(graph):
        if buffer.root in candidates and buffer.size >= least:
            chosen.try_to_make(buffer, most(buffer.size))
    return tuple(
        Recomputed(op=op.name, readers=tuple(chosen.readers[op.name]))
        for op in graph.ops
        if op.name in chosen.readers
    )


@dataclass(slots=True)
class _Trial:
    """What one tensor would take.

    Args:
        made: Ops to be recomputed.
        edges: Ops whose second run is read, and by whom.
        kept: Bytes that are kept for it and were not otherwise.
    """

    made: dict[str, None] = field(default_factory=dict[str, None])
    edges: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    kept: Bytes = 0

    def copy(self) -> "_Trial":
        return _Trial(dict(self.made), list(self.edges), self.kept)

    def take(self, other: "_Trial") -> None:
        self.made, self.edges, self.kept = other.made, other.edges, other.kept


class _Chosen:
    """What is recomputed so far; finds what one more tensor takes."""

    def __init__(self, graph: GraphView, costs: Costs, least: Bytes) -> None:
        self.readers: dict[str, dict[str, None]] = {}
        self._at: dict[str, int] = {}  # where the second run's first reader is
        self._graph = graph
        self._costs = costs
        self._least = least
        self._buffers = {buffer.root: buffer for buffer in buffers(graph)}
        self._begins = [0.0, *accumulate(costs.of(op.name) for op in graph.ops)]

    def try_to_make(self, buffer: Buffer, most: Seconds) -> None:
        """Make a buffer again after its longest idle time, if that can be done."""
        at = _end_of_longest_gap(buffer)
        if buffer.pinned or at is None:
            return
        far = [self._graph.ops[use] for use in buffer.uses if use >= at]
        trial = _Trial()
        can = not any(op.fixed for op in far)
        can = can and self._make(op_of(buffer.root), at, trial)
        can = can and all(self._read(op.name, op, buffer.root, trial) for op in far)
        seconds = sum(self._costs.of(name) for name in trial.made)
        if not can or trial.kept >= buffer.size or seconds > most:
            return
        for name, reader in trial.edges:
            self.readers.setdefault(name, {})[reader] = None
            self._at[name] = min(at, self._at.get(name, at))

    def _make(self, name: str, at: int, trial: _Trial) -> bool:
        """Note what it takes to run an op again at a position; False if it cannot."""
        if name in trial.made:
            return True
        if name in self._at:
            return self._is_near(self._at[name], at)
        op = self._graph.by_name[name]
        trial.made[name] = None
        deep = sum(self._graph.by_name[made].alias is None for made in trial.made)
        if not op.repeatable or deep > TUNING.recompute_ops:
            return False
        roots = dict.fromkeys(self._graph.roots[tensor] for tensor in op.inputs)
        return all(self._supply(op, root, at, trial) for root in roots)

    def _supply(self, op: Op, root: str, at: int, trial: _Trial) -> bool:
        """Let the second run of an op have one of its inputs."""
        source = self._buffers.get(root)
        again = op_of(root) in self._at or op_of(root) in trial.made
        if source is None:
            return not self._is_large_variable(root)
        if source.kept or (source.last >= at and not again):
            return True  # it is there
        if source.size < self._least:
            trial.kept += source.size
            return True
        further = trial.copy()
        if self._make(op_of(root), at, further) and self._read(
            copy_name(op.name), op, root, further
        ):
            trial.take(further)
            return True
        trial.kept += source.size
        return not again

    def _is_large_variable(self, root: str) -> bool:
        """Whether reading it late would keep a large old value beside the new one."""
        is_read = self._graph.by_name[op_of(root)].reads_state
        return is_read and self._graph.tensors[root].size >= max(1, self._least)

    def _read(self, reader: str, op: Op, root: str, trial: _Trial) -> bool:
        """Let a reader read what is recomputed, through the same aliases as before."""
        for tensor in op.inputs:
            if self._graph.roots[tensor] != root:
                continue
            name, by = op_of(tensor), reader
            while name != op_of(root):
                alias = self._graph.by_name[name]
                if not alias.repeatable or alias.alias is None:
                    return False
                trial.edges.append((name, by))
                name, by = op_of(alias.alias), copy_name(name)
            trial.edges.append((name, by))
        return True

    def _is_near(self, one: int, other: int) -> bool:
        apart = abs(self._begins[one] - self._begins[other])
        return apart * TUNING.recompute_near_part <= self._begins[-1]


def _end_of_longest_gap(buffer: Buffer) -> int | None:
    """The position that ends the longest time in which nobody reads a buffer."""
    # Of several it is the last: what is read soon is recomputed late.
    spans = zip((buffer.producer, *buffer.uses), buffer.uses, strict=False)
    longest = max(spans, key=lambda span: (span[1] - span[0], span[1]), default=None)
    return None if longest is None else longest[1]
