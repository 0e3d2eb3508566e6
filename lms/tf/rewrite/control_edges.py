"""What the ops of a rewritten step wait for, by the chain of its plan.

    group 0 ──> group 1 ──> group 2 ──> ...        ──>  a control input

A group waits for the one before it, for the swap-outs whose room it needs, and until
what starts beside it is settled: copies have begun, or have their room. A swap-in waits
for its trigger and for the room that is freed for it.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence

from lms.ir.plan import Swap, SwapIn, SwapPlan
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
        plan: A plan that `lms.ir.plan.validate_plan` accepts.
        groups: The ops that wait for the same as an op, itself included, by its name;
            those that are in no group are left out.

    Attributes:
        at: The group of each op that is in one.
        released: Ops that a group waits for because it needs their room.
    """

    def __init__(
        self, plan: SwapPlan, groups: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self._groups = groups or {}
        self.at: Mapping[str | None, int] = {
            name: i for i, group in enumerate(plan.chain) for name in group
        }
        self.released: dict[int, list[str]] = defaultdict(list)
        self._chain = plan.chain
        self._position = {name: i for i, name in enumerate(plan.order)}
        places = [[self._position[name] for name in group] for group in plan.chain]
        self._begins, self._ends = [min(p) for p in places], [max(p) for p in places]
        self._settled: dict[int, list[str]] = defaultdict(list)
        self._begun: dict[int, list[str]] = defaultdict(list)
        self._late: list[tuple[compat.NodeDef, int]] = []
        self._triggered: list[tuple[compat.NodeDef, str]] = []
        self._outside: list[tuple[str, str]] = []  # ops that are in no group

    def leave(self, swap: Swap, producer: str, out: CopyOps) -> None:
        """Take down a tensor's swap-out."""
        if swap.release in self.at:
            self.released[self.at[swap.release]].append(out.end.name)
        elif swap.release is not None:
            self._outside.append((swap.release, out.end.name))
        if out.settled is not None:
            following = bisect_right(self._begins, self._position[producer])
            self._settled[following].append(out.settled.name)
            if producer in self.at:
                self._begun[following].append(out.settled.name)
        if out.wait is not None:
            self._late.append((out.wait, self._latest_end(swap)))

    def come(self, copy: SwapIn, back: CopyOps) -> None:
        """Take down a swap-in."""
        if copy.trigger is not None:
            self._triggered.append((back.start, copy.trigger))
        if back.settled is not None and copy.trigger in self.at:
            self._settled[self.at[copy.trigger] + 1].append(back.settled.name)
        if back.wait is not None:
            self._late.append((back.wait, self._before(copy.readers)))

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
        for start, trigger in self._triggered:
            wait_for(start, [trigger])
            if trigger in self.at:
                at = self.at[trigger]
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

    def _before(self, ops: Sequence[str]) -> int:
        """How many groups come before all of some ops."""
        return bisect_left(self._ends, min(self._position[op] for op in ops))

    def _latest_end(self, swap: Swap) -> int:
        """How many groups may go before a swap-out must have ended.

        Those before the op that waits for its room; no more than up to the trigger of a
        swap-in, which starts when the swap-out has ended.
        """
        if swap.release is None:
            return 0
        triggers = (self.at.get(copy.trigger, -1) + 1 for copy in swap.swap_ins)
        return min(self._before([swap.release]), *triggers)
