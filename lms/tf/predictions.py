"""Predictions of a step: its report and its timeline."""

from lms.ir.liveness import lower_bound
from lms.ir.plan import SwapPlan
from lms.planning.problem import PlannedStep
from lms.report import StepReport, StepTimeline
from lms.simulation.executor import simulate
from lms.tf.capture.specialising import TracedStep
from lms.units import Seconds

__all__ = ["report_of", "timeline_of"]


def report_of(
    kind: str, step: TracedStep, planned: PlannedStep, planning_seconds: Seconds
) -> StepReport:
    """The report of a step that has not run yet.

    Args:
        kind: `train`, `test`, `predict` or `step`.
        step: The step that runs.
        planned: Its plan.
        planning_seconds: What planning took; whoever knows what came before adds it.
    """
    plan, budget, timeline = planned.plan, planned.budget, planned.timeline
    return StepReport(
        kind=kind,
        signature=step.signature,
        plan=plan,
        budget_bytes=budget.total,
        margin_bytes=budget.margin,
        predicted_peak_bytes=planned.peak_bytes,
        predicted_seconds=None if timeline is None else timeline.seconds,
        unplanned_seconds=None if timeline is None else _plain_seconds(planned),
        measured_peak_bytes=None,
        unplanned_peak_bytes=planned.plain_peak_bytes,
        persistent_bytes=budget.persistent,
        lower_bound_bytes=lower_bound(planned.workload.graph),
        swapped_out_bytes=plan.swapped_out_bytes,
        swapped_in_bytes=plan.swapped_in_bytes,
        host_peak_bytes=planned.memory.host_peak,
        swap_count=len(plan.swaps),
        planning_seconds=planning_seconds,
        preparation_seconds=planning_seconds,
        unknown_memory=step.unknown_memory,
        other_bytes=max(
            0,
            budget.persistent
            - step.captured_bytes
            - step.input_bytes
            - step.constant_bytes,
        ),
    )


def _plain_seconds(planned: PlannedStep) -> Seconds:
    """Predicted seconds of the step where there is room for all."""
    graph, speeds = planned.workload.graph, planned.workload.speeds()
    plain = SwapPlan(planner="none", order=tuple(op.name for op in graph.ops))
    return simulate(graph, plain, speeds.costs, speeds.hardware).seconds


def timeline_of(kind: str, step: TracedStep, planned: PlannedStep) -> StepTimeline:
    """Predicted memory over a step, without a plan and with it."""
    return StepTimeline(
        kind=kind,
        signature=step.signature,
        unplanned=planned.workload.plain_memory,
        planned=planned.memory,
        persistent_bytes=planned.budget.persistent,
        lanes=planned.timeline,
    )
