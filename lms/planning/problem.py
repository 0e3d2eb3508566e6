"""The question that is planned, and its answer: a step, the memory for it, its plan."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from lms.ir.graph import GraphView
from lms.ir.liveness import old_values
from lms.ir.plan import SwapPlan
from lms.planning.prefetch import Speeds
from lms.planning.risk import FittedPlan, Risk
from lms.planning.tuning import TUNING
from lms.simulation.allocator import SmallPool
from lms.simulation.memory import MemoryTimeline, simulate_memory
from lms.simulation.timeline import Timeline
from lms.units import MIB, Bytes

__all__ = [
    "UNLIMITED",
    "MemoryBudget",
    "PlannedStep",
    "Reason",
    "Workload",
    "budget_in",
]

UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """Memory of the device, in bytes; None where there is no limit.

    Args:
        total: What may be in use.
        margin: What is left out of the device's limit.
        persistent: What is in use beside the step.
        limit: What the device's allocator can hand out at most.
        holes: Free chunks that are not one piece with the others, the largest first.
        lost: What of `persistent` was not there yet when the step was first planned.
    """

    total: int | None
    margin: int
    persistent: int
    limit: int | None = None
    holes: tuple[int, ...] = ()
    lost: int = 0

    @property
    def step(self) -> int:
        """Bytes left for the step itself."""
        return UNLIMITED if self.total is None else self.total - self.persistent

    @property
    def is_whole_device(self) -> bool:
        """Tell whether only a margin is kept from the step, as without a budget."""
        if self.total is None:
            return True
        return self.limit is not None and self.total + self.margin >= self.limit

    @property
    def free(self) -> int:
        """Bytes that the device really has for the step, never fewer than `step`."""
        if self.limit is None:
            return UNLIMITED
        return max(self.step, self.limit - self.persistent)

    def tighter(self, now: "MemoryBudget", percent: int) -> "MemoryBudget":
        """Less room for the step, beside what is persistent now.

        Args:
            now: The room as it is measured now.
            percent: What is taken of the step's room.

        Example:
            >>> budget = MemoryBudget(total=300, margin=20, persistent=100)
            >>> now = MemoryBudget(total=300, margin=20, persistent=110)
            >>> tighter = budget.tighter(now, 94)
            >>> tighter.total, tighter.margin, tighter.persistent, tighter.lost
            (288, 32, 110, 10)
        """
        step = min(self.step, now.step) * percent // 100
        return replace(now.of(now.persistent + step), lost=self.lost_since(now))

    def lost_since(self, now: "MemoryBudget") -> int:
        """Bytes that are persistent now and were not there at first."""
        return self.lost + max(0, now.persistent - self.persistent)

    def device_for(self, budget: int) -> int:
        """Bytes of a device that leaves such a budget beside its margin: whole MiB.

        TensorFlow's limits of devices are whole MiB.

        Example:
            >>> budget = MemoryBudget(total=300, margin=20, persistent=100)
            >>> budget.device_for(62 * MIB - 1) / MIB
            64.0
        """
        part = math.ceil(budget / (TUNING.margin_part - 1))
        return math.ceil((budget + max(MIB, part)) / MIB) * MIB

    def device_has(self, step: int) -> bool:
        """Tell whether the device has so many bytes for the step, and its margin.

        Bytes lost since the step was first planned count as if they were there.

        Example:
            >>> whole = budget_in(64 * MIB, asked=None, persistent=MIB)
            >>> whole.device_has(61 * MIB), whole.device_has(62 * MIB)
            (True, False)
        """
        if self.limit is None:
            return True
        return self.device_for(self.persistent - self.lost + step) <= self.limit

    def of(self, budget: int) -> "MemoryBudget":
        """Another budget; what it leaves out counts as margin."""
        left_out = (self.total or budget) - budget
        return replace(self, total=budget, margin=self.margin + left_out)


def budget_in(
    limit: Bytes | None, *, asked: Bytes | None, persistent: Bytes
) -> MemoryBudget:
    """The room of a step in a device: the asked budget, at most all but a margin.

    Args:
        limit: What the device can hand out; None if that is not known.
        asked: The budget; None for as much as there is.
        persistent: Bytes in use beside the step.

    Example:
        >>> budget_in(320 << 20, asked=None, persistent=0).margin >> 20
        10
        >>> budget_in(320 << 20, asked=100 << 20, persistent=40 << 20).step >> 20
        60
        >>> budget_in(320 << 20, asked=1 << 40, persistent=0).margin >> 20
        10
    """
    if limit is None:
        return MemoryBudget(total=asked, margin=0, persistent=persistent)
    margin = max(MIB, limit // TUNING.margin_part)
    total = limit - margin
    if asked is not None and asked < total:
        total, margin = asked, 0
    return MemoryBudget(total=total, margin=margin, persistent=persistent, limit=limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A step that is to be planned, with the scratch of its ops.

    Args:
        graph: The step as planners see it.
        own: TensorFlow's own graph of it, which runs when everything fits.
        plain: The plan without swaps, of TensorFlow's own graph.
        speeds: Yields how long ops and copies take; asked only if it matters.
    """

    graph: GraphView
    own: GraphView
    plain: FittedPlan
    speeds: Callable[[], Speeds]

    @property
    def plain_memory(self) -> MemoryTimeline:
        """Predicted memory of the step in TensorFlow's own way."""
        found = simulate_memory(self.own, self.plain.plan)
        both = zip(found.device, old_values(self.own), strict=True)
        kept = self.own.constant_bytes - self.graph.constant_bytes
        return replace(found, device=tuple(kept + used + old for used, old in both))


class Reason(Enum):
    """Why a step got its plan."""

    FITS_EASILY = "It fits, whatever TensorFlow does."
    FITS = "It fits, unless TensorFlow needs much more than is predicted."
    PLANNED = "It does not fit without a plan."
    SMALL_HOST = "The host cannot hold what the fastest plan swaps out."
    NO_PLAN = "There is no plan, and nobody insists on one."


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A step, what is planned for it, and what is predicted of it.

    Args:
        workload: What was planned.
        budget: The memory that it was planned into.
        reason: Why it got this plan.
        plan: The plan; without swaps if the step fits.
        graph: The graph that runs: TensorFlow's own, or the planned one.
        small_pool: Chunks that are to be kept for small tensors.
        memory: Memory at each op of the plan's order.
        timeline: The planned step over time; None for a step that runs as it is.
        step_bytes: Predicted peak, without persistent bytes.
        risk: What is not known of the plan's placement.
    """

    workload: Workload
    budget: MemoryBudget
    reason: Reason
    plan: SwapPlan
    graph: GraphView
    small_pool: SmallPool
    memory: MemoryTimeline
    timeline: Timeline | None
    step_bytes: Bytes
    risk: Risk

    @property
    def peak_bytes(self) -> Bytes:
        """Predicted peak, persistent bytes included."""
        return self.budget.persistent + self.step_bytes

    @property
    def host_bytes(self) -> Bytes:
        """Bytes that the host must have for swapped tensors."""
        return self.memory.host_peak

    @property
    def runs_plain(self) -> bool:
        """Tell whether the step runs as TensorFlow would run it."""
        return self.reason in (Reason.FITS, Reason.FITS_EASILY, Reason.NO_PLAN)
