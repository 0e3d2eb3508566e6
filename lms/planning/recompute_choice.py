"""Choice of the tensors that are recomputed or moved instead of kept.

A tensor that is long idle between two readers need not be kept if the op that made it
can run again just before the far readers. The op's inputs must be there then: they may
be there anyway, be kept for longer, or be recomputed in turn, as far back as ops may
run twice.

    conv ──> mul ──> add ──> relu ──> next conv ... gradients of relu, add, mul, conv
     kept    recomputed: mul', add', relu' in front of the gradient that reads them

Tensors are chosen one by one, by benefit per cost, until the step fits. The benefit is
the bytes above the budget that a choice saves, summed over all ops; the cost, seconds.
Each choice makes others cheaper (their sources are recomputed already) or worthless, so
a tensor is valued again before it is taken. This is DTR's rule - the bytes of a tensor
and how long it is idle, over the seconds that it costs (Kirisame et al., ICLR 2021) -
with the future known. Bytes that come back too early count against a choice, so sources
of other tensors stay, as checkpoints do (Chen et al., 2016).

From the step with its copies tensors can be chosen once more: a copy's output is idle
too, and may be dropped and recomputed a second time.

Known weakness: choices are never taken back.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from lms.ir.graph import GraphView, Op, op_of, per_graph
from lms.ir.liveness import Buffer, buffers, memory_curve
from lms.ir.recompute import Recomputed, copy_name, original_name
from lms.machine.hardware import Costs, Hardware
from lms.planning.tuning import TUNING
from lms.units import Bytes, Seconds

__all__ = ["Fates", "LinkShare", "Terms", "choose_fates"]

# Seconds added to each cost: a roofline gives some ops none.
_INSTANT: Seconds = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkShare:
    """Seconds of the step in which the link may copy without stalls.

    They have one price, as in the dual of a knapsack: a tensor that costs more to
    recompute moves. Once they are used up, the price of a second is 1.

    Args:
        hardware: The link.
        seconds: How long it may copy in each direction.
        price: Seconds of the device that a second of copying counts for.
    """

    hardware: Hardware
    seconds: Seconds
    price: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Terms of a choice.

    Args:
        budget: Bytes that the step may use. Eviction moves the bytes left above it.
        most: The most seconds for recomputing a tensor of some bytes.
        share: Seconds of the link; None chooses no tensors to move.
        least: Tensors of fewer bytes are not recomputed: ops that touch no larger
            tensor are not ordered, and a copy of such an op would run at once.
    """

    budget: Bytes
    most: Callable[[Bytes], Seconds]
    share: LinkShare | None = None
    least: Bytes = 0


@dataclass(slots=True)
class Change:
    """Effects of recomputing or moving one more tensor.

    Args:
        second: Ops that run again, and the position before which they do.
        last: Roots, and the last position that needs the original.
        last_copy: Roots, and the last position that needs the second run's buffer.
        bytes: (position, end, bytes that are added from the position up to the end).
        seconds: Seconds of the second runs, or the priced seconds of copies.
        passing: Bytes of the largest tensor that only second runs read.
        away: Roots that move, and the positions between which they are away.
    """

    second: dict[str, int] = field(default_factory=dict[str, int])
    last: dict[str, int] = field(default_factory=dict[str, int])
    last_copy: dict[str, int] = field(default_factory=dict[str, int])
    bytes: list[tuple[int, int, Bytes]] = field(
        default_factory=list[tuple[int, int, int]]
    )
    seconds: Seconds = 0.0
    passing: Bytes = 0
    away: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])

    def copy(self) -> "Change":
        """Return a copy, from which another way is tried."""
        return Change(
            second=dict(self.second),
            last=dict(self.last),
            last_copy=dict(self.last_copy),
            bytes=list(self.bytes),
            seconds=self.seconds,
            passing=self.passing,
            away=dict(self.away),
        )


class StepAsItIs:
    """Facts about a step that no recomputation changes."""

    def __init__(self, graph: GraphView, costs: Costs, least: Bytes) -> None:
        self.graph = graph
        self.least = least
        self.buffers = {buffer.root: buffer for buffer in buffers(graph)}
        self.made: dict[str, list[Buffer]] = {}
        self.read: dict[str, list[str]] = {}
        self.seconds = {op.name: costs.of(op.name) for op in graph.ops}
        # Ops that may run twice; one that has a copy may not, but its copy may.
        self.repeatable: set[str] = set()
        # Ops that read a buffer through an alias that may not run twice.
        self.barred: set[tuple[str, str]] = set()
        for op in graph.ops:
            named = (self.buffers.get(tensor.name) for tensor in op.outputs)
            self.made[op.name] = [buffer for buffer in named if buffer is not None]
            self.read[op.name] = list(dict.fromkeys(graph.roots[x] for x in op.inputs))
            self.barred.update((op.name, root) for root in self._through_fixed(op))
            has_copy = copy_name(op.name) in graph.by_name
            if op.repeatable and not (op.varies or has_copy):
                self.repeatable.add(op.name)
        taken = [0.0, *self.seconds.values()]
        self.begins = list(accumulate(taken))  # seconds, of each op and of the end
        self._written: dict[str, int] = {}  # variable -> its first write
        for position, op in enumerate(graph.ops):
            for handle in op.writes:
                self._written.setdefault(graph.roots.get(handle, handle), position)

    def _through_fixed(self, op: Op) -> Iterator[str]:
        """Yield the roots that an op reads through an alias that may not run twice."""
        graph = self.graph
        for tensor in op.inputs:
            root, alias = graph.roots[tensor], op_of(tensor)
            while tensor != root and alias != op_of(root):
                if not graph.by_name[alias].repeatable:
                    yield root
                alias = op_of(graph.by_name[alias].alias or root)

    def is_old_value(self, root: str, at: int) -> bool:
        """Tell whether a read at a position keeps a large old value beside the new."""
        read = self.graph.by_name[op_of(root)]
        if not read.reads_state or self.graph.tensors[root].size < max(1, self.least):
            return False
        if not read.inputs:
            return True
        handle = self.graph.roots[read.inputs[0]]
        return self._written.get(handle, at) < at


class Chosen:
    """The choice so far, and the step's memory with it.

    Attributes:
        second: Ops that run again, and the position before which they do.
        uses: Positions that need a buffer's contents, second runs included.
        last: The last position that needs the original of a buffer.
        last_copy: The last position that needs the second run's buffer.
    """

    def __init__(self, step: StepAsItIs, budget: Bytes) -> None:
        self.step = step
        self.second: dict[str, int] = {}
        self.away: dict[str, tuple[int, int]] = {}
        self.moved: Bytes = 0
        self.uses = {root: list(b.uses) for root, b in step.buffers.items()}
        self.last = {root: b.last for root, b in step.buffers.items()}
        self.last_copy: dict[str, int] = {}
        # Bytes over the budget, negative below it; and prefix sums of those above it.
        curve = np.array([*memory_curve(step.graph), 0], np.int64)
        self._over: npt.NDArray[np.int64] = curve - budget
        self._above = self._sums()

    def _sums(self) -> npt.NDArray[np.int64]:
        return np.concatenate(([0], np.maximum(self._over, 0).cumsum()))

    @property
    def exceeds(self) -> bool:
        """Tell whether the step needs more than the budget anywhere."""
        return bool(self._above[-1])

    def saved(self, change: Change, at: int) -> int:
        """Return the bytes above the budget that a change saves, summed by position."""
        first, end = min(change.bytes)[0], max(map(itemgetter(1), change.bytes))
        after = self._over[first:end].copy()
        for begin, stop, size in change.bytes:
            after[begin - first : stop - first] += size
        if change.passing:
            after[at - first] += change.passing
        np.maximum(after, 0, out=after)
        return int(self._above[end] - self._above[first] - np.add.reduce(after))

    def take(self, change: Change) -> None:
        """Add a change to the choice."""
        for begin, stop, size in change.bytes:
            self._over[begin:stop] += size
        self._above = self._sums()
        self.second |= change.second
        new = change.away.keys() - self.away.keys()
        self.moved += sum(self.step.buffers[root].size for root in new)
        self.away |= change.away
        self.last |= change.last
        self.last_copy |= change.last_copy
        for name, at in change.second.items():
            for root in self.step.read[name]:
                uses = self.uses.get(root)
                if uses is not None and at not in uses:
                    insort(uses, at)

    def recomputed(self) -> tuple[Recomputed, ...]:
        """Return the ops that run again, with the readers of each second run.

        Second runs that lost their readers to a later choice are left out.
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
            Ops whose second run had no reader before.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Fates:
    """A choice for a step: ops to recompute, tensors to move.

    Args:
        recomputed: Ops that run twice, in execution order.
        leaving: Roots that are to move, each with the op from which on it may be away.
    """

    recomputed: tuple[Recomputed, ...] = ()
    leaving: tuple[tuple[str, str], ...] = ()


def choose_fates(
    graph: GraphView,
    candidates: Collection[str],
    costs: Costs,
    terms: Terms,
    before: Fates | None = None,
) -> Fates:
    """Choose the tensors to recompute and to move, so that a step fits.

    Args:
        graph: The step in the execution order to obey.
        candidates: Names of the root tensors that need not be kept.
        costs: Seconds of each op.
        terms: Terms of the choice.
        before: The choice that gave `graph` its copies: tensors that it moves still
            move, and copies may run once more.

    Returns:
        The choice; empty if the step fits, or no tensor can be recomputed in time.
    """
    # A graph with copies is one of many, and a cycle would keep it.
    facts_of = per_graph()(StepAsItIs) if before is None else StepAsItIs
    step = facts_of(graph, costs, terms.least)
    chosen = Chosen(step, terms.budget)
    large = [
        step.buffers[root]
        for root in sorted(candidates)
        if step.buffers[root].size >= terms.least and not step.buffers[root].pinned
    ]
    before = before or Fates()
    for root, _ in before.leaving:
        idle = _longest_gap(step.buffers[root].producer, chosen.uses[root])
        moved = idle and _move(chosen, step.buffers[root], idle, terms)
        if moved:
            chosen.take(moved)
    for _ in range(TUNING.recompute_rounds):
        runs = len(chosen.second)
        _take_bargains(chosen, large, terms)
        if len(chosen.second) == runs or not chosen.exceeds:
            break
    away = {root: graph.ops[begin].name for root, (begin, _) in chosen.away.items()}
    leaving = dict(before.leaving) | away
    return Fates(
        recomputed=before.recomputed + chosen.recomputed(),
        leaving=tuple(leaving.items()),
    )


def _take_bargains(
    chosen: Chosen, candidates: Collection[Buffer], terms: Terms
) -> None:
    """Choose tensors by benefit per cost, until the step fits or none is left."""
    found = ((bargain_of(chosen, b, terms), b) for b in candidates)
    queue = [(-bargain[0], b.root) for bargain, b in found if bargain is not None]
    heapq.heapify(queue)
    while queue and chosen.exceeds:
        _, root = heapq.heappop(queue)
        bargain = bargain_of(chosen, chosen.step.buffers[root], terms)
        if bargain is None:
            continue
        worth, change = bargain
        if queue and worth < -queue[0][0] * TUNING.about_as_good:
            heapq.heappush(queue, (-worth, root))
        else:
            chosen.take(change)


def bargain_of(
    chosen: Chosen, buffer: Buffer, terms: Terms
) -> tuple[float, Change] | None:
    """Find the better of recomputing a tensor after its longest gap, and moving it.

    Returns:
        (bytes above the budget saved per second, the change). None if neither can be
        done, both take too long, or nothing is saved.
    """
    idle = _longest_gap(buffer.producer, chosen.uses[buffer.root])
    is_taken = op_of(buffer.root) in chosen.second or buffer.root in chosen.away
    if idle is None or is_taken:
        return None
    changes = (
        _second_run(chosen, buffer, idle[1], terms),
        _move(chosen, buffer, idle, terms),
    )
    found = [
        (saved / (change.seconds + _INSTANT), change)
        for change in changes
        if change is not None and (saved := chosen.saved(change, idle[1])) > 0
    ]
    return max(found, key=itemgetter(0), default=None)


def _second_run(chosen: Chosen, buffer: Buffer, at: int, terms: Terms) -> Change | None:
    trial = _Trial(chosen, of=buffer, most=terms.most(buffer.size))
    with suppress(_NotPossibleError):
        trial.run(op_of(buffer.root), at)
        return trial.change
    return None


def _move(
    chosen: Chosen, buffer: Buffer, idle: tuple[int, int], terms: Terms
) -> Change | None:
    """Copy a tensor out and back, each in twice its seconds: others may copy too."""
    if (share := terms.share) is None:
        return None
    begins, link = chosen.step.begins, share.hardware
    out = link.copy_seconds(buffer.size, to_device=False)
    back = link.copy_seconds(buffer.size, to_device=True)
    near, far = idle
    begin = bisect_left(begins, begins[near + 1] + 2 * out, near + 1)
    end = bisect_left(begins, begins[far] - 2 * back, near + 1)
    if begin >= end:
        return None
    is_left = chosen.moved / min(link.h2d, link.d2h) < share.seconds
    return Change(
        bytes=[(begin, end, -buffer.size)],
        seconds=(out + back) * (share.price if is_left else 1),
        away={buffer.root: (begin, end)},
    )


def _longest_gap(producer: int, uses: list[int]) -> tuple[int, int] | None:
    """Return the ends of the longest gap between readers; None if no op is between."""
    # The last of equal gaps counts: a tensor that is read soon is recomputed late.
    spans = zip((producer, *uses), uses, strict=False)
    longest = max(spans, key=lambda span: (span[1] - span[0], span[1]), default=None)
    return None if longest is None or longest[1] - longest[0] <= 1 else longest


class _NotPossibleError(Exception):
    """An op may not run twice, has no input, or takes too long; stays in this file."""


class _Trial:
    """Finds the change that recomputes one tensor, in at most `most` seconds."""

    def __init__(self, chosen: Chosen, *, of: Buffer, most: Seconds) -> None:
        self.change = Change()
        self._chosen = chosen
        self._step = chosen.step
        self._size = of.size
        self._most = most

    def run(self, name: str, at: int, depth: int = 0) -> None:
        """Run an op again before a position."""
        if depth > TUNING.recompute_depth or name not in self._step.repeatable:
            raise _NotPossibleError
        self.change.second[name] = at
        self.change.seconds += self._step.seconds[name]
        if self.change.seconds > self._most:
            raise _NotPossibleError
        for buffer in self._step.made[name]:
            self._make_again(buffer, at)
        for root in self._step.read[name]:
            if (name, root) in self._step.barred:
                raise _NotPossibleError
            self._supply(root, at, depth + 1)

    def _make_again(self, buffer: Buffer, at: int) -> None:
        """Let readers from position `at` on read the recomputed buffer."""
        root, change = buffer.root, self.change
        uses = self._chosen.uses[root]
        far = bisect_left(uses, at)
        if far == len(uses):  # only second runs read it
            change.last_copy[root] = at
            change.passing = max(change.passing, buffer.size)
            return
        if buffer.pinned or root in self._chosen.away:
            raise _NotPossibleError
        if not far and original_name(root) != root:  # no op would read the first
            raise _NotPossibleError
        near = uses[far - 1] if far else buffer.producer
        change.bytes.append((near + 1, self._last(root) + 1, -buffer.size))
        change.bytes.append((at, uses[-1] + 1, buffer.size))
        change.last[root], change.last_copy[root] = near, uses[-1]

    def _supply(self, root: str, at: int, depth: int) -> None:
        """Provide a buffer's contents for a second run."""
        buffer = self._step.buffers.get(root)
        if buffer is None:
            if self._step.is_old_value(root, at):
                raise _NotPossibleError
            return
        if buffer.kept or at <= self._last(root):
            known = self.change.away.get(root, self._chosen.away.get(root))
            if known is not None and known[0] <= at < known[1]:  # it comes back before
                self.change.bytes.append((at, known[1], buffer.size))
                self.change.away[root] = known[0], at
            return
        name = op_of(root)
        second = self.change.second.get(name, self._chosen.second.get(name))
        if second is None:
            self._make_or_keep(buffer, at, depth)
        elif second <= at:
            self._keep_copy(buffer, at)
        elif at - self._last(root) <= second - at:
            self._keep(buffer, at)
        else:
            self._run_earlier(name, at, second, depth)

    def _make_or_keep(self, buffer: Buffer, at: int, depth: int) -> None:
        """Recompute a source; keep it if it is small beside the recomputed tensor."""
        is_small = buffer.size * TUNING.kept_part <= self._size
        if buffer.size >= self._step.least and not is_small:
            before = self.change.copy()
            try:
                self.run(op_of(buffer.root), at, depth)
            except _NotPossibleError:
                if self.change.seconds > self._most:  # as in most trials
                    raise
                self.change = before
            else:
                return
        if buffer.size >= self._size:
            raise _NotPossibleError
        self._keep(buffer, at)

    def _keep(self, buffer: Buffer, at: int) -> None:
        self.change.bytes.append((self._last(buffer.root) + 1, at + 1, buffer.size))
        self.change.last[buffer.root] = at

    def _keep_copy(self, buffer: Buffer, at: int) -> None:
        """Keep a second run's buffer for longer, if necessary."""
        root = buffer.root
        known = self.change.last_copy
        last = known[root] if root in known else self._chosen.last_copy[root]
        if at > last:
            self.change.bytes.append((last + 1, at + 1, buffer.size))
            known[root] = at

    def _run_earlier(self, name: str, at: int, second: int, depth: int) -> None:
        """Let a second run come before an earlier position."""
        if depth > TUNING.recompute_depth:
            raise _NotPossibleError
        self.change.second[name] = at
        for buffer in self._step.made[name]:
            self.change.bytes.append((at, second, buffer.size))
        for root in self._step.read[name]:
            self._supply(root, at, depth + 1)

    def _last(self, root: str) -> int:
        return self.change.last.get(root, self._chosen.last[root])
