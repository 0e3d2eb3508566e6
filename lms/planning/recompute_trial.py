"""The cost of recomputing one tensor, and whether that is a bargain.

A trial goes back from the op that made it: what this op reads is there, is kept for
longer, or is recomputed in turn.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lms.ir.graph import op_of
from lms.ir.liveness import Buffer
from lms.planning.recompute_state import Change, Chosen
from lms.planning.tuning import TUNING
from lms.units import Bytes, Seconds

__all__ = ["Bargain", "bargain_of"]

# Added to the seconds of a bargain: some ops take none by a roofline.
_INSTANT: Seconds = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Bargain:
    """A change, and the bytes above the budget that it saves for each second."""

    worth: float
    change: Change


def bargain_of(
    chosen: Chosen, buffer: Buffer, budget: Bytes, most: Callable[[Bytes], Seconds]
) -> Bargain | None:
    """Weigh the recomputing of a tensor after its longest idle time.

    Args:
        chosen: What is recomputed already.
        buffer: The tensor's memory.
        budget: Bytes that the step may use.
        most: How long it may take to make a tensor of some size again.

    Returns:
        None if it cannot be recomputed, takes too long, or saves nothing.
    """
    name = op_of(buffer.root)
    idle = _longest_gap(buffer.producer, chosen.uses(buffer.root))
    if name in chosen.second or idle is None:
        return None
    trial = _Trial(chosen, of=buffer)
    try:
        trial.run(name, idle[1])
    except _NotPossibleError:
        return None
    change = trial.change
    if change.seconds > most(buffer.size):
        return None
    saved = chosen.saved(change, idle[1], budget)
    if saved <= 0:
        return None
    return Bargain(worth=saved / (change.seconds + _INSTANT), change=change)


def _longest_gap(producer: int, uses: list[int]) -> tuple[int, int] | None:
    """The longest time in which nobody reads a buffer: its ends' positions."""
    # Of several it is the last: what is read soon is recomputed late.
    spans = zip((producer, *uses), uses, strict=False)
    longest = max(spans, key=lambda span: (span[1] - span[0], span[1]), default=None)
    return None if longest is None or longest[1] - longest[0] <= 1 else longest


class _NotPossibleError(Exception):
    """An op cannot run again at a position; never leaves this file."""


class _Trial:
    """Finds what it takes to recompute one tensor.

    Args:
        chosen: What is recomputed already.
        of: The tensor.
    """

    def __init__(self, chosen: Chosen, *, of: Buffer) -> None:
        self.change = Change()
        self._chosen = chosen
        self._step = chosen.step
        self._size = of.size

    def run(self, name: str, at: int, depth: int = 0) -> None:
        """Run an op again before a position.

        Raises:
            _NotPossibleError: If it may not run twice, or what it reads is not there.
        """
        if depth > TUNING.recompute_depth or not self._step.may_run_again(name):
            raise _NotPossibleError
        self.change.second[name] = at
        self.change.seconds += self._step.costs.of(name)
        for buffer in self._step.made[name]:
            self._make_again(buffer, at)
        for root in self._step.read[name]:
            self._check_alias(name, root)
            self._supply(root, at, depth + 1)

    def _make_again(self, buffer: Buffer, at: int) -> None:
        """Those who read a buffer from a position on read the second one."""
        root, change = buffer.root, self.change
        uses = self._chosen.uses(root)
        far = bisect_left(uses, at)
        if far == len(uses):  # only what runs again reads it
            change.last_copy[root] = at
            change.passing = max(change.passing, buffer.size)
            return
        if buffer.pinned:
            raise _NotPossibleError
        near = uses[far - 1] if far else buffer.producer
        change.bytes.append((near + 1, self._last(root) + 1, -buffer.size))
        change.bytes.append((at, uses[-1] + 1, buffer.size))
        change.last[root], change.last_copy[root] = near, uses[-1]

    def _check_alias(self, name: str, root: str) -> None:
        """The ops between a buffer and its reader must be able to run twice too."""
        graph = self._step.graph
        for tensor in graph.by_name[name].inputs:
            alias = op_of(tensor)
            while graph.roots[tensor] == root and alias != op_of(root):
                if not graph.by_name[alias].repeatable:
                    raise _NotPossibleError
                alias = op_of(graph.by_name[alias].alias or root)

    def _supply(self, root: str, at: int, depth: int) -> None:
        """Have a buffer's contents for a second run."""
        buffer = self._step.buffers.get(root)
        if buffer is None:
            if self._step.is_old_value(root, at):
                raise _NotPossibleError
            return
        if buffer.kept or at <= self._last(root):
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
        """Recompute a source, unless it is small beside what is made of it."""
        is_small = buffer.size * TUNING.kept_part <= self._size
        if buffer.size >= self._step.least and not is_small:
            before = self.change.copy()
            try:
                self.run(op_of(buffer.root), at, depth)
            except _NotPossibleError:
                self.change = before
            else:
                return
        if buffer.size >= self._size:
            raise _NotPossibleError
        self._keep(buffer, at)

    def _keep(self, buffer: Buffer, at: int) -> None:
        """Keep an original for longer."""
        self.change.bytes.append((self._last(buffer.root) + 1, at + 1, buffer.size))
        self.change.last[buffer.root] = at

    def _keep_copy(self, buffer: Buffer, at: int) -> None:
        """Keep what a second run makes for longer, if it must be."""
        root = buffer.root
        known = self.change.last_copy
        last = known[root] if root in known else self._chosen.last_copy(root)
        if at > last:
            self.change.bytes.append((last + 1, at + 1, buffer.size))
            known[root] = at

    def _run_earlier(self, name: str, at: int, second: int, depth: int) -> None:
        """Let an op that runs again do so before an earlier position."""
        if depth > TUNING.recompute_depth:
            raise _NotPossibleError
        self.change.second[name] = at
        for buffer in self._step.made[name]:
            self.change.bytes.append((at, second, buffer.size))
        for root in self._step.read[name]:
            self._supply(root, at, depth + 1)

    def _last(self, root: str) -> int:
        known: Mapping[str, int] = self.change.last
        return known[root] if root in known else self._chosen.last(root)
