"""A step with its costs, and the same step with its plan."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from lms.ir.graph import GraphView
from lms.ir.plan import SwapPlan
from lms.planning.memory_budget import MemoryBudget
from lms.planning.prefetch import Speeds
from lms.planning.risk import FittedPlan, Risk
from lms.planning.select import plain_plan
from lms.simulation.allocator import SmallPool
from lms.simulation.memory import MemoryTimeline, simulate_memory
from lms.simulation.timeline import Timeline
from lms.units import Bytes

__all__ = ["PlannedStep", "Reason", "Workload"]


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

    @classmethod
    def of(
        cls, graph: GraphView, own: GraphView, speeds: Callable[[], Speeds]
    ) -> "Workload":
        """A workload with its plain plan; the arguments are those of the class."""
        kept = own.constant_bytes - graph.constant_bytes
        return cls(graph=graph, own=own, plain=plain_plan(own, kept), speeds=speeds)

    @property
    def kept_bytes(self) -> Bytes:
        """Bytes of constants that only TensorFlow's own graph keeps."""
        return self.own.constant_bytes - self.graph.constant_bytes

    @property
    def plain_memory(self) -> MemoryTimeline:
        """Predicted memory of the step in TensorFlow's own way."""
        found = simulate_memory(self.own, self.plain.plan)
        kept = self.kept_bytes
        return replace(found, device=tuple(kept + used for used in found.device))


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
    def plain_peak_bytes(self) -> Bytes:
        """The same of the step without a plan."""
        return self.budget.persistent + self.workload.plain.peak

    @property
    def runs_plain(self) -> bool:
        """Tell whether the step runs as TensorFlow would run it."""
        return self.reason in (Reason.FITS, Reason.FITS_EASILY, Reason.NO_PLAN)
