"""From a workload and a budget to a planned step: the one road that all callers take.

    Workload, Settings, MemoryBudget, HostBudget ──plan_step──> PlannedStep

`fit`, `fit_in_memory`, recovery, `python -m lms plan` and the experiments differ in
where the workload comes from (measured here, or by a roofline) and in what they do with
the planned step (build it, or show it), and in nothing between.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from itertools import accumulate
from typing import TypeAlias

from lms.errors import HostMemoryError
from lms.ir.graph import GraphView
from lms.ir.host_state import read_bytes, sent_bytes, written_bytes
from lms.ir.liveness import buffers
from lms.ir.plan import SwapPlan, planned_graph, validate_plan
from lms.machine.costs import completed
from lms.planning.memory_budget import UNLIMITED, HostBudget, MemoryBudget
from lms.planning.prefetch import Speeds
from lms.planning.risk import FittedPlan, Risk
from lms.planning.select import choose_plan, fits_easily, plain_plan
from lms.planning.settings import Settings
from lms.planning.stored_plan import fitted_plan
from lms.simulation.allocator import SmallPool
from lms.simulation.executor import simulate
from lms.simulation.memory import MemoryTimeline, simulate_memory
from lms.simulation.timeline import Timeline
from lms.units import Bytes, format_bytes

__all__ = ["PlannedStep", "Reason", "Workload", "plan_step"]

_SLOW_LINK = 1e6  # bytes per second

_Choose: TypeAlias = Callable[
    [GraphView, FittedPlan, Settings, MemoryBudget, Callable[[], Speeds]], FittedPlan
]


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
        host_bytes: What the host must have for swapped tensors.
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
    host_bytes: Bytes
    risk: Risk

    @property
    def peak_bytes(self) -> Bytes:
        """Predicted peak, persistent bytes included."""
        return self.budget.persistent + self.step_bytes

    @property
    def plain_peak_bytes(self) -> Bytes:
        """The same of the step without a plan."""
        return self.budget.persistent + self.workload.plain.peak

    @property
    def state_in_bytes(self) -> Bytes:
        """Bytes of state on the host that the step copies to the device."""
        again = (s.size * len(s.swap_ins) for s in self.plan.swaps if s.held)
        return read_bytes(self.graph) + sum(again)

    @property
    def state_out_bytes(self) -> Bytes:
        """Bytes that the step copies to the host for its state."""
        return sent_bytes(self.graph)

    @property
    def runs_plain(self) -> bool:
        """Whether it runs as TensorFlow would run it."""
        return self.reason in (Reason.FITS, Reason.FITS_EASILY)


def plan_step(
    workload: Workload,
    settings: Settings,
    budget: MemoryBudget,
    host: HostBudget,
    *,
    choose: _Choose = choose_plan,
) -> PlannedStep:
    """Plan a step into a budget; what the host cannot hold is recomputed.

    Args:
        workload: The step.
        settings: The user's knobs.
        budget: Memory of the device.
        host: Memory of the host.
        choose: Makes the plan: anew, or as it was made before.

    Returns:
        A valid plan with its predictions; the plain one if everything fits.

    Raises:
        BudgetError: If no plan fits; names the op and the least budget.
        HostMemoryError: If the host cannot hold what is swapped out.
        PlanError: If a stored plan is not one of this step.
    """
    stored = settings.plan is not None
    found = _planned(workload, settings, budget, host, choose)
    if host.free is None or found.host_bytes <= host.free:
        return found
    may_choose = settings.planner == "budget" and settings.recompute is None
    if may_choose and not stored:
        always = replace(settings, recompute=True)
        found = _planned(workload, always, budget, host, _moving_least(choose))
    if found.host_bytes > host.free:
        raise HostMemoryError(
            f"host memory must hold {format_bytes(found.host_bytes)} of swapped "
            f"tensors, {format_bytes(host.free)} are free. Close other programs, or "
            "use a larger `budget`, a smaller batch or a smaller volume."
        )
    return replace(found, reason=Reason.SMALL_HOST)


def _moving_least(choose: _Choose) -> _Choose:
    """A choice as over a link so slow that the fewest bytes are the fastest."""

    def chosen(
        graph: GraphView,
        plain: FittedPlan,
        settings: Settings,
        budget: MemoryBudget,
        speeds: Callable[[], Speeds],
    ) -> FittedPlan:
        def slow() -> Speeds:
            found = speeds()
            link = replace(found.hardware, h2d=_SLOW_LINK, d2h=_SLOW_LINK)
            return replace(found, hardware=link)

        return choose(graph, plain, settings, budget, slow)

    return chosen


def _planned(
    workload: Workload,
    settings: Settings,
    budget: MemoryBudget,
    host: HostBudget,
    choose: _Choose,
) -> PlannedStep:
    plain, speeds = workload.plain, workload.speeds
    if settings.plan is not None:
        fitted = fitted_plan(workload.graph, workload.own, plain, settings.plan, budget)
    else:
        fitted = choose(workload.graph, plain, settings, budget, speeds)
    if fitted.plan == plain.plan:
        return _plain(workload, fitted, budget)
    plan = fitted.plan
    graph = planned_graph(workload.graph, plan)
    validate_plan(graph, plan)
    memory = simulate_memory(graph, plan)
    costs = completed(speeds().costs, graph, speeds().hardware)
    timeline = simulate(graph, plan, costs, speeds().hardware)
    return PlannedStep(
        workload=workload,
        budget=budget,
        reason=Reason.PLANNED,
        plan=plan,
        graph=graph,
        small_pool=fitted.small_pool,
        memory=memory,
        timeline=timeline,
        step_bytes=_peak(fitted, timeline),
        host_bytes=written_bytes(graph)
        + (_buffers_by_size(graph, plan) if host.by_size else memory.host_peak),
        risk=fitted.risk,
    )


def _plain(workload: Workload, fitted: FittedPlan, budget: MemoryBudget) -> PlannedStep:
    validate_plan(workload.own, fitted.plan)
    easily = fits_easily(fitted, budget)
    return PlannedStep(
        workload=workload,
        budget=budget,
        reason=Reason.FITS_EASILY if easily else Reason.FITS,
        plan=fitted.plan,
        graph=workload.own,
        small_pool=fitted.small_pool,
        memory=workload.plain_memory,
        timeline=None,
        step_bytes=fitted.peak,
        host_bytes=0,
        risk=fitted.risk,
    )


def _peak(fitted: FittedPlan, timeline: Timeline) -> Bytes:
    """Bytes of the step at its peak, copies ending when they do.

    Where the plan says which op waits for room, room is given back just before it.
    Where it does not, as with IBM's rule, a slow link keeps tensors on the device.
    """
    if all(swap.release is not None for swap in fitted.plan.swaps):
        return fitted.peak
    return timeline.allocator_peak(capacity=UNLIMITED) or fitted.peak


def _buffers_by_size(graph: GraphView, plan: SwapPlan) -> Bytes:
    """Bytes of the host's buffers, each used again only for tensors of its size."""
    moved = {swap.tensor for swap in plan.swaps if not swap.held}
    moments: dict[Bytes, list[tuple[int, int]]] = defaultdict(list)
    for buffer in buffers(graph.reordered(plan.order)):
        if buffer.root in moved:
            moments[buffer.size] += [(buffer.producer, 1), (buffer.last + 1, -1)]
    return sum(
        size * max(accumulate(change for _, change in sorted(changes)))
        for size, changes in moments.items()
    )
