"""Means by which a step trains that finds no plan, and which of them comes next.

    no plan ──> lists of loops to the host, all of them
            ──> large ops in parts, or variables to the host, a good part at a time
            ──> refused, once nothing is left

A plan moves what the step makes; these change the step. Ops are cut first where one op
needs most of what the step needs; else variables move first. In the end all has been
done that can be, whatever the budget: so the least budget is the same from each.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from lms.errors import BudgetError
from lms.ir.liveness import working_sets
from lms.machine.ranks import joined
from lms.planning.placement import certain_need
from lms.planning.problem import MemoryBudget
from lms.planning.settings import Settings
from lms.tf import compat
from lms.tf.lowering import TracedStep
from lms.tf.measure.same_bits import keeps_bits
from lms.tf.passes.host_variables import movable_to_host, size_of
from lms.tf.passes.splitting import OpSize, regions
from lms.tf.passes.tensor_lists import HostLists
from lms.units import Bytes

__all__ = ["NOTHING", "Means", "Refused", "advice", "further", "least_of"]

# One part of so many of the variables is moved at least.
_PART = 4

# Ops are cut to one part in so many of what the largest of them needs, one after the
# other.
_PARTS = (4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Changes of a step, so that it needs less of the card than any plan of it.

    Args:
        lists: Lists of loops that lie on the host.
        handles: Variables that lie there.
        sizes: What ops may need: the last one that helps holds; larger ones are cut.
        guesses: Whether sizes that only values tell are guessed, not bounded.
    """

    lists: tuple[HostLists, ...] = ()
    handles: tuple[Any, ...] = ()
    sizes: tuple[OpSize, ...] = ()
    guesses: bool = False

    def __add__(self, other: "Means") -> "Means":
        """Both."""
        return Means(
            lists=self.lists + other.lists,
            handles=self.handles + other.handles,
            sizes=self.sizes + other.sizes,
            guesses=self.guesses or other.guesses,
        )

    @property
    def op_size(self) -> OpSize | None:
        """The size that holds."""
        return next((each for each in reversed(self.sizes) if each.helps), None)

    def without_last_size(self) -> "Means":
        """The same where the last size was tried, and did not help."""
        *others, last = self.sizes
        return replace(self, sizes=(*others, replace(last, helps=False)))

    @property
    def size(self) -> Bytes:
        """Bytes that lie on the host by them."""
        sizes = [one.size for one in self.lists]
        return sum(sizes) + sum(map(size_of, self.handles))


NOTHING = Means()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A step that found no plan.

    Args:
        step: The step, with the means that were used.
        means: Those.
        settings: The user's knobs.
        error: Says how much it needs at least.
        budget: What it may use.
        is_here: Whether it runs on a device of this process.
    """

    step: TracedStep
    means: Means
    settings: Settings
    error: BudgetError
    budget: MemoryBudget
    is_here: bool = True


def further(refused: Refused) -> Means:
    """Means beside those that were used; nothing if there are no others."""
    if refused.step.lists:  # all of them: nobody orders what loops do beside
        return Means(lists=refused.step.lists)
    budget = refused.budget
    room = (refused.error.least_bytes or budget.total or 0) - budget.persistent
    ways = (_smaller_ops, _moved_state)
    if 2 * certain_need(refused.step.graph) < room or budget.step <= 0:
        ways = (_moved_state, _smaller_ops)
    found = (way(refused) for way in ways)
    return next((each for each in found if each != NOTHING), NOTHING)


def least_of(refusals: Sequence[BudgetError]) -> BudgetError:
    """The refusal that asks for least: ops whose parts are joined again need more."""
    return min(refusals, key=lambda each: each.least_bytes or math.inf)


def advice(settings: Settings) -> str:
    """Sentence on the means that would cost the same bits; empty if there is none."""
    exact = compat.ops_are_deterministic() and settings.slices is None
    if not (exact and settings.cuts_ops):
        return ""
    return ' `slices="any"` cuts more products; their last bits may differ then.'


def _smaller_ops(refused: Refused) -> Means:
    """The largest size below those that were tried to which an op can be cut."""
    step = refused.step
    if refused.settings.cuts_ops:
        for size in _sizes(refused):
            if regions(step.graph, step.nodes, size):
                return Means(sizes=(size,))
    return NOTHING


def _sizes(refused: Refused) -> Iterator[OpSize]:
    """Sizes that were not tried, by what the largest op needs as a whole."""
    if refused.means.sizes:
        last = refused.means.sizes[-1]
        whole, before, scratch = last.whole, last.most, last.scratch
    else:
        graph = refused.step.graph
        whole = before = max(working_sets(graph), default=0)
        scratch = {op.name: op.scratch for op in graph.ops if op.scratch}
    rows = refused.settings.slices == "any"
    sums = rows or not compat.ops_are_deterministic()
    proved = keeps_bits if refused.is_here and not rows else None
    for parts in _PARTS:
        most = whole // parts
        if most < before:  # whatever the budget: so the least one does not depend on it
            size = OpSize(most=most, sums=sums, rows=rows, whole=whole, proved=proved)
            yield replace(size, scratch=scratch)


def _moved_state(refused: Refused) -> Means:
    """The variables that move next: what is short, and a good part of those left."""
    if refused.settings.state == "device" or joined().size > 1:
        return NOTHING
    step = refused.step
    there = {id(a.captured) for a in step.arguments if a.lies_on_host}
    left = movable_to_host(step.graph, step.nodes, step.variables, step.device)
    left = [handle for handle in left if id(handle) not in there]
    sizes = list(accumulate(map(size_of, left), initial=0))
    short = (refused.error.least_bytes or 0) - (refused.budget.total or 0)
    least = max(short, sizes[-1] // _PART)
    return Means(handles=tuple(left[: bisect_left(sizes, least)]))
