"""What the ops of a rewritten step wait for, by the chain of its plan.

    group 0 ──> group 1 ──> group 2 ──> ...        ──>  a control input

A group waits for the one before it, for the swap-outs whose room it needs, and until
what starts beside it is settled: copies have begun, or have their room. A swap-in waits
for its trigger and for the room that is freed for it.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence

from lms.ir.resolved import ResolvedPlan, ResolvedSwap, ResolvedSwapIn
from lms.tf import compat
from lms.tf.rewrite.transports import CopyOps

__all__ = ["Waits", "wait_for"]


def wait_for(node: compat.NodeDef, names: Sequence[str]) -> None:
    """Add control inputs; those that are there already are not repeated."""
    there = set(node.input)
    missing = (name for name in dict.fromkeys(names) if f"^{name}" not in there)
    node.input.extend(f"^{name}" for name in missing)


class Waits:
    """Collects what waits for what, then writes it into the nodes.

    Args:
        resolved: A plan that `lms.ir.plan.validate_plan` accepts, resolved.
        groups: The ops that wait for the same as an op, itself included, by its name;
            those that are in no group are left out.

    Attributes:
        released: Ops that a group waits for because it needs their room.
    """

    def __init__(
        self,
        resolved: ResolvedPlan,
        groups: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._groups = groups or {}
        self._plan = resolved
        self._chain = resolved.plan.chain
        self.released: dict[int, list[str]] = defaultdict(list)
        self._settled: dict[int, list[str]] = defaultdict(list)
        self._begun: dict[int, list[str]] = defaultdict(list)
        self._late: list[tuple[compat.NodeDef, int]] = []
        self._triggered: list[tuple[compat.NodeDef, int, int | None]] = []
        self._outside: list[tuple[str, str]] = []  # ops that are in no group

    def leave(self, swap: ResolvedSwap, out: CopyOps) -> None:
        """Take down a tensor's swap-out."""
        if swap.release_group is not None:
            self.released[swap.release_group].append(out.end.name)
        elif swap.release is not None:
            self._outside.append((self._name(swap.release), out.end.name))
        if out.settled is not None:
            producer = swap.buffer.producer
            following = self._plan.group_after(producer)
            self._settled[following].append(out.settled.name)
            if self._name(producer) in self._plan.group_of:
                self._begun[following].append(out.settled.name)
        if out.wait is not None:
            self._late.append((out.wait, self._latest_end(swap)))

    def come(self, copy: ResolvedSwapIn, back: CopyOps) -> None:
        """Take down a swap-in."""
        if copy.trigger is not None:
            self._triggered.append((back.start, copy.trigger, copy.trigger_group))
        if back.settled is not None and copy.trigger_group is not None:
            self._settled[copy.trigger_group + 1].append(back.settled.name)
        if back.wait is not None:
            self._late.append((back.wait, self._before(copy.first_read)))

    def wire(self, nodes: Mapping[str, compat.NodeDef]) -> None:
        """Add the control inputs.

        All ops of a group get the same: only then may the runtime fuse them. With what
        is settled, the device's allocator is asked in the order that was planned, in
        every step.

        What holds a thread until a copy has ended runs late: when the last group has
        that goes before what needs the copy. The next op would wait for the copy too.
        The swap-outs of what that group made begin first: with one thread they would
        wait as well.

        Args:
            nodes: The step's own, by name.
        """
        for start, trigger, at in self._triggered:
            wait_for(start, [self._name(trigger)])
            if at is not None:
                wait_for(start, [*self._chain[at], *self.released.get(at + 1, ())])
        for wait, groups in self._late:
            if groups > 0:
                begun = self._begun.get(groups, ())
                wait_for(wait, [*self._chain[groups - 1], *begun])
        for op, ended in self._outside:
            for name in self._groups.get(op, (op,)):
                wait_for(nodes[name], [ended])
        before: Sequence[str] = ()
        for i, group in enumerate(self._chain):
            names = *before, *self.released.get(i, ()), *self._settled.get(i, ())
            for name in group:
                wait_for(nodes[name], names)
            before = group

    def _name(self, position: int) -> str:
        return self._plan.ops[position].name

    def _before(self, position: int) -> int:
        """How many groups come before an op."""
        return bisect_left(self._plan.ends, position)

    def _latest_end(self, swap: ResolvedSwap) -> int:
        """How many groups may go before a swap-out must have ended.

        Those before the op that waits for its room; no more than up to the trigger of a
        swap-in, which starts when the swap-out has ended.
        """
        if swap.release is None:
            return 0
        triggers = (copy.trigger_group for copy in swap.swap_ins)
        most = (0 if group is None else group + 1 for group in triggers)
        return min(self._before(swap.release), *most)
