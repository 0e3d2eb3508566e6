"""Edges that the ops of a rewritten step wait for, by the chain of its plan.

    op 0 ──> op 1 ──> op 2 ──> ...        ──>  a control input

An ordered op waits for the one before it, for the swap-outs whose room it needs, and
until the swap-ins that start beside it have theirs. A swap-in waits for its trigger and
for the room that is freed for it.
"""

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

    Attributes:
        released: Ops that a link waits for because it needs their room.
    """

    def __init__(self, resolved: ResolvedPlan) -> None:
        self._plan = resolved
        self._chain = resolved.plan.chain
        self.released: dict[int, list[str]] = defaultdict(list)
        self._settled: dict[int, list[str]] = defaultdict(list)
        self._triggered: list[tuple[compat.NodeDef, int, int | None]] = []
        self._outside: list[tuple[str, str]] = []  # ops that are not ordered

    def leave(self, swap: ResolvedSwap, out: CopyOps) -> None:
        """Take down a tensor's swap-out."""
        if swap.release_link is not None:
            self.released[swap.release_link].append(out.end.name)
        elif swap.release is not None:
            self._outside.append((self._name(swap.release), out.end.name))

    def come(self, copy: ResolvedSwapIn, back: CopyOps) -> None:
        """Take down a swap-in."""
        if copy.trigger is not None:
            self._triggered.append((back.start, copy.trigger, copy.trigger_link))
        if back.settled is not None and copy.trigger_link is not None:
            self._settled[copy.trigger_link + 1].append(back.settled.name)

    def wire(self, nodes: Mapping[str, compat.NodeDef]) -> None:
        """Add the control inputs.

        With what is settled, the device's allocator is asked in the order that was
        planned, in every step.

        Args:
            nodes: The step's own, by name.
        """
        for start, trigger, at in self._triggered:
            wait_for(start, [self._name(trigger)])
            if at is not None:
                wait_for(start, self.released.get(at + 1, ()))
        for op, ended in self._outside:
            wait_for(nodes[op], [ended])
        before: Sequence[str] = ()
        for i, name in enumerate(self._chain):
            waits = *before, *self.released.get(i, ()), *self._settled.get(i, ())
            wait_for(nodes[name], waits)
            before = (name,)

    def _name(self, position: int) -> str:
        return self._plan.ops[position].name
