"""Rewrites of a step for which no plan fits, in the order in which lms tries them.

    no plan ──> offload the lists of all loops
            ──> split large ops, or offload variables, a good part at a time
            ──> refuse, once no rewrite is left

A plan offloads tensors that the step makes; a rewrite changes the step itself. Ops are
split first where one op needs most of the step's memory; else variables are offloaded
first. A refusal comes after all rewrites, so the least budget depends on no budget.
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

# At least 1/4 of the remaining variables' bytes is offloaded at once.
_PART = 4

# Op sizes to try in turn: 1/4, 1/8 and 1/16 of the largest op's working set.
_PARTS = (4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Rewrites of the step itself that lower its memory need.

    Args:
        lists: Lists of loops that lie on the host.
        handles: Variables that lie on the host.
        sizes: Op sizes tried; ops larger than the last one that helps are split.
        guesses: Whether dynamic shapes are guessed, not bounded.
    """

    lists: tuple[HostLists, ...] = ()
    handles: tuple[Any, ...] = ()
    sizes: tuple[OpSize, ...] = ()
    guesses: bool = False

    def __add__(self, other: "Means") -> "Means":
        """The union of two sets of rewrites."""
        return Means(
            lists=self.lists + other.lists,
            handles=self.handles + other.handles,
            sizes=self.sizes + other.sizes,
            guesses=self.guesses or other.guesses,
        )

    @property
    def op_size(self) -> OpSize | None:
        """The last op size that helps; None without one."""
        return next((each for each in reversed(self.sizes) if each.helps), None)

    def without_last_size(self) -> "Means":
        """These rewrites, with the last op size marked as no help."""
        *others, last = self.sizes
        return replace(self, sizes=(*others, replace(last, helps=False)))

    @property
    def size(self) -> Bytes:
        """Bytes of the offloaded lists and variables."""
        sizes = [one.size for one in self.lists]
        return sum(sizes) + sum(map(size_of, self.handles))


NOTHING = Means()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A step for which no plan fits.

    Args:
        step: The step after all rewrites so far.
        means: The rewrites so far.
        settings: The user's knobs.
        error: The refusal, with the least budget.
        budget: The memory that the step may use.
        is_here: Whether the step runs on a device of this process.
    """

    step: TracedStep
    means: Means
    settings: Settings
    error: BudgetError
    budget: MemoryBudget
    is_here: bool = True


def further(refused: Refused) -> Means:
    """The next rewrite to try; NOTHING when all were tried."""
    if refused.step.lists:  # all at once: no plan orders the ops of loops
        return Means(lists=refused.step.lists)
    budget = refused.budget
    room = (refused.error.least_bytes or budget.total or 0) - budget.persistent
    ways = (_smaller_ops, _moved_state)
    if 2 * certain_need(refused.step.graph) < room or budget.step <= 0:
        ways = (_moved_state, _smaller_ops)
    found = (way(refused) for way in ways)
    return next((each for each in found if each != NOTHING), NOTHING)


def least_of(refusals: Sequence[BudgetError]) -> BudgetError:
    """The refusal with the smallest least budget; joining split ops can raise one."""
    return min(refusals, key=lambda each: each.least_bytes or math.inf)


def advice(settings: Settings) -> str:
    """Advice on a rewrite that may change last bits; empty where there is none."""
    exact = compat.ops_are_deterministic() and settings.slices is None
    if not (exact and settings.cuts_ops):
        return ""
    return ' `slices="any"` cuts more products; their last bits may differ then.'


def _smaller_ops(refused: Refused) -> Means:
    """The largest untried op size to which some op can be split."""
    step = refused.step
    if refused.settings.cuts_ops:
        for size in _sizes(refused):
            if regions(step.graph, step.nodes, size):
                return Means(sizes=(size,))
    return NOTHING


def _sizes(refused: Refused) -> Iterator[OpSize]:
    """Yield untried op sizes, as parts of the largest unsplit op's working set."""
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
        if most < before:  # without the budget: so the least one is independent
            size = OpSize(most=most, sums=sums, rows=rows, whole=whole, proved=proved)
            yield replace(size, scratch=scratch)


def _moved_state(refused: Refused) -> Means:
    """The variables to offload next: the missing bytes, and 1/4 of all that remain."""
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
