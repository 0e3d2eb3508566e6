"""The workload of a step on the present device, and the report of its plan.

    TracedStep ──with_scratch──> TracedStep ──workload_here──> Workload

Seconds of ops are measured only for steps that do not fit.
"""

from dataclasses import replace
from functools import cache

from lms.ir.liveness import lower_bound
from lms.ir.plan import SwapPlan
from lms.planning.addresses import why_unsealed
from lms.planning.problem import PlannedStep, Speeds, Workload
from lms.planning.select import workload_of
from lms.report.step import Held, StepReport, StepTimeline
from lms.simulation.executor import simulate
from lms.simulation.timeline import Cause, Lane, Timeline
from lms.tf.lowering import TracedStep
from lms.tf.measure.devices import Device
from lms.tf.measure.scratch import measure_scratch, with_reserved, with_scratch
from lms.tf.measure.speeds import measure_costs, measure_hardware
from lms.units import Seconds

__all__ = ["over_time", "report_of", "timeline_of"]
__all__ += ["unplanned_timeline", "with_measured_scratch", "workload_here"]


def report_of(
    kind: str, step: TracedStep, planned: PlannedStep, planning_seconds: Seconds
) -> StepReport:
    """The report of a step that has not run yet.

    Args:
        kind: `train`, `test`, `predict` or `step`.
        step: The step that runs.
        planned: Its plan.
        planning_seconds: Seconds of planning alone; `prepare` adds the stages before.
    """
    plan, budget = planned.plan, planned.budget
    if planned.sealed and budget.is_whole_device:  # no margin is kept
        budget = replace(budget, total=budget.limit, margin=0)
    report = StepReport(
        kind=kind,
        signature=step.signature,
        plan=plan,
        budget_bytes=budget.total,
        margin_bytes=budget.margin,
        predicted_peak_bytes=planned.peak_bytes,
        measured_peak_bytes=None,
        unplanned_peak_bytes=budget.persistent + planned.workload.plain.peak,
        persistent_bytes=budget.persistent,
        lower_bound_bytes=lower_bound(planned.workload.graph),
        swapped_out_bytes=plan.swapped_out_bytes,
        swapped_in_bytes=plan.swapped_in_bytes,
        host_peak_bytes=planned.memory.host_peak,
        swap_count=len(plan.swaps),
        planning_seconds=planning_seconds,
        preparation_seconds=planning_seconds,
        unknown_memory=step.unknown_memory,
        other_bytes=max(0, budget.persistent - step.held_bytes),
        ops_cut=step.ops_cut,
        addresses=_addresses(planned),
    )
    if planned.timeline is None:
        return report
    return over_time(report, planned.timeline, unplanned_timeline(planned.workload))


def _addresses(planned: PlannedStep) -> str:
    if planned.sealed or planned.runs_plain:
        return "planned" * planned.sealed
    why = planned.budget.unsealed or why_unsealed(planned.workload.graph)
    return f"not planned: {why or 'the plan is given, or no packing was found'}"


def over_time(
    report: StepReport, timeline: Timeline, unplanned: Timeline
) -> StepReport:
    """A report with predicted seconds and rates.

    Args:
        report: The report without these.
        timeline: The planned step over time.
        unplanned: The result of `unplanned_timeline`.
    """
    waits = sum(s.seconds for s in timeline.stalls if s.cause is Cause.LAUNCH)
    return replace(
        report,
        predicted_seconds=timeline.seconds,
        unplanned_seconds=unplanned.seconds,
        utilisation=timeline.utilisation,
        launch_share=waits / timeline.seconds if timeline.seconds else 0.0,
        h2d_bytes_per_second=timeline.throughput(Lane.H2D),
        d2h_bytes_per_second=timeline.throughput(Lane.D2H),
    )


def unplanned_timeline(workload: Workload) -> Timeline:
    """The step over time without a plan, where all tensors fit."""
    graph, speeds = workload.graph, workload.speeds()
    plain = SwapPlan(planner="none", order=graph.order)
    return simulate(graph, plain, speeds.costs, speeds.hardware)


def timeline_of(kind: str, step: TracedStep, planned: PlannedStep) -> StepTimeline:
    """Predicted memory over a step, without a plan and with it."""
    speeds = planned.workload.speeds() if planned.timeline else None
    return StepTimeline(
        kind=kind,
        signature=step.signature,
        graph=planned.graph,
        unplanned=planned.workload.plain_memory,
        planned=planned.memory,
        persistent_bytes=planned.budget.persistent,
        lanes=planned.timeline,
        plan=planned.plan,
        held=tuple(
            Held(a.name, a.size, a.captured is None, a.lies_on_host)
            for a in step.arguments
            if not a.is_of_another(step.device)
        ),
        costs=speeds and speeds.costs,
        hardware=speeds and speeds.hardware,
    )


def with_measured_scratch(step: TracedStep, device: Device) -> TracedStep:
    """The step, and TensorFlow's own step, with measured scratch of their ops."""
    needs = measure_scratch(step, device)

    def measured(step: TracedStep) -> TracedStep:
        return with_reserved(
            replace(step, graph=with_scratch(step.graph, *needs)), device
        )

    return replace(measured(step), own=step.own and measured(step.own))


def workload_here(step: TracedStep, device: Device) -> Workload:
    """The workload of a step with measured scratch; if asked, ops are timed once."""

    @cache
    def speeds() -> Speeds:
        return Speeds(
            costs=measure_costs(step, device), hardware=measure_hardware(device)
        )

    return workload_of(step.graph, (step.own or step).graph, speeds)
