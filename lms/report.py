"""Plan and measurements of one traced step, side by side.

Words: peaks and `persistent_bytes` count everything in the device's allocator, weights,
optimizer slots and data included; `lower_bound_bytes` is the largest single-op working
set without these.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from lms.ir.plan import SwapPlan
from lms.simulation.memory import MemoryTimeline
from lms.simulation.timeline import Timeline
from lms.units import MIB, Seconds, format_bytes

__all__ = ["StepReport", "StepTimeline", "headline", "table", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One traced function and signature.

    Args:
        kind: `train`, `test`, `predict`, or `step` for a custom loop.
        signature: Shapes of the inputs, readable.
        plan: The plan that runs; it has no swaps when everything fits.
        budget_bytes: What the step may use, or None where there is no limit.
        margin_bytes: What was left out of the device's limit for the allocator.
        predicted_peak_bytes: Peak of the plan, allocator losses included, with copies
            at the speed that was measured. Where the losses depend on what is not
            known, the middle of what is likely.
        measured_peak_bytes: The allocator's own peak after the first step; None
            where it keeps no statistics or only one step ran.
        unplanned_peak_bytes: Predicted peak without any swap, in TensorFlow's order.
        persistent_bytes: In use before the step: weights, slots, data.
        lower_bound_bytes: The largest single-op working set.
        swapped_out_bytes: Copied to the host in each step.
        swapped_in_bytes: Copied back in each step.
        host_peak_bytes: Host memory held by swapped tensors, predicted.
        swap_count: Tensors that leave the device in each step.
        planning_seconds: From the graph to the plan: schedule, search, placement.
        preparation_seconds: All of it, from the start of tracing to the callable.
        predicted_seconds: How long a step should take by measured ops and copies; None
            where nothing is swapped.
        unplanned_seconds: The same for the ops alone, each run once; None likewise.
        replans: How often it ran out of memory and was planned anew.
        unknown_memory: Names of loops whose memory is not known, and in no prediction;
            and of ops whose outputs may be of any size, which is guessed.
        other_bytes: What of the persistent bytes is neither the model's nor a batch's:
            arrays that `fit` was given lie on the device whole, unless their
            `tf.data.Dataset` is made within `tf.device("CPU:0")`.
        not_planned: Why there is no plan, where the step runs all the same; else None.
    """

    kind: str
    signature: str
    plan: SwapPlan
    budget_bytes: int | None
    margin_bytes: int
    predicted_peak_bytes: int
    measured_peak_bytes: int | None
    unplanned_peak_bytes: int
    persistent_bytes: int
    lower_bound_bytes: int
    swapped_out_bytes: int
    swapped_in_bytes: int
    host_peak_bytes: int
    swap_count: int
    planning_seconds: float
    preparation_seconds: float
    predicted_seconds: Seconds | None = None
    unplanned_seconds: Seconds | None = None
    replans: int = 0
    unknown_memory: tuple[str, ...] = ()
    other_bytes: int = 0
    not_planned: str | None = None

    @property
    def fits_unplanned(self) -> bool:
        """Tell whether the step runs as TensorFlow would run it: no order, no swaps."""
        return self.plan.is_empty


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeline:
    """Predicted memory over one step, without a plan and with it.

    Args:
        kind: As in the step's report.
        signature: As in the step's report.
        unplanned: Bytes of the step at each op, nothing ordered, nothing swapped.
        planned: Bytes of the step at each op of the plan's order.
        persistent_bytes: What lies below both curves.
        lanes: The planned step over time; None where nothing is swapped.
    """

    kind: str
    signature: str
    unplanned: MemoryTimeline = field(repr=False)
    planned: MemoryTimeline = field(repr=False)
    persistent_bytes: int
    lanes: Timeline | None = field(default=None, repr=False)


def headline(report: StepReport) -> str:
    """One line for one plan."""
    start = f"LMS {report.kind} step ({report.signature}): "
    needs = format_bytes(report.unplanned_peak_bytes) + unknown(report.unknown_memory)
    if report.budget_bytes is None:
        return f"{start}needs {needs}; the device has no limit, nothing is swapped"
    budget = format_bytes(report.budget_bytes)
    if report.margin_bytes:
        budget += f" (a margin of {format_bytes(report.margin_bytes)} kept)"
    if report.not_planned:
        return f"{start}runs as without LMS in {budget}, as it cannot be planned"
    if report.fits_unplanned:
        return f"{start}needs {needs}, fits in {budget}, nothing is swapped"
    planned = f"planned into {budget}"
    if report.unplanned_peak_bytes <= report.budget_bytes:
        planned = f"not sure to fit in {budget} in any order of ops, planned"
    return (
        f"{start}needs {needs}, {planned}: "
        f"{format_bytes(report.predicted_peak_bytes)} with {_swapped(report)}"
        f"{_besides(report)}{_again(report)}"
    )


def _swapped(report: StepReport) -> str:
    if not report.swap_count:
        return "nothing swapped"
    tensors = "1 tensor" if report.swap_count == 1 else f"{report.swap_count} tensors"
    return f"{tensors} ({format_bytes(report.swapped_out_bytes)}) swapped"


def unknown(names: Sequence[str]) -> str:
    """Words beside a need, if it includes loops or ops of unknown memory.

    Example:
        >>> unknown(["while"]), unknown([])
        (' (1 loop or op of unknown memory)', '')
    """
    if not names:
        return ""
    count = "1 loop or op" if len(names) == 1 else f"{len(names)} loops or ops"
    return f" ({count} of unknown memory)"


def _besides(report: StepReport) -> str:
    again = len(report.plan.recomputed)
    ops = "op" if again == 1 else "ops"
    text = f", {again} {ops} recomputed" if again else ""
    if report.predicted_seconds and report.unplanned_seconds:
        slowdown = report.predicted_seconds / report.unplanned_seconds
        text += f", predicted to take {slowdown:.2f} times as long as with room for all"
    return text


def _again(report: StepReport) -> str:
    if report.replans == 0:
        return ""
    times = "once" if report.replans == 1 else f"{report.replans} times"
    return f"; ran out of memory and planned anew {times}"


def table(reports: Sequence[StepReport]) -> str:
    """The reports as a text table, one column for each.

    Example:
        >>> print(table([]))
        Nothing was planned yet: fit, evaluate or predict with the callback first.
    """
    if not reports:
        return (
            "Nothing was planned yet: fit, evaluate or predict with the callback first."
        )
    shown = Table(title="Large model support")
    shown.add_column("per step")
    for report in reports:
        shown.add_column(f"{report.kind} {report.signature}", justify="right")
    for label, values in _rows(reports):
        shown.add_row(label, *values)
    text = io.StringIO()
    # In a notebook rich would display the table, write nothing, and colour the title.
    Console(
        file=text,
        width=60 + 34 * len(reports),
        force_jupyter=False,
        force_terminal=False,
    ).print(shown)
    return text.getvalue().rstrip()


def _measured(report: StepReport) -> str:
    """The measured peak; it is marked where it is above the budget."""
    measured, budget = report.measured_peak_bytes, report.budget_bytes
    if measured is None:
        return "-"
    above = budget is not None and measured > budget
    return format_bytes(measured) + (" (above the budget)" if above else "")


def _rows(reports: Sequence[StepReport]) -> list[tuple[str, list[str]]]:
    def sizes(name: str) -> list[str]:
        values = [getattr(report, name) for report in reports]
        return ["-" if value is None else format_bytes(value) for value in values]

    again = [len(report.plan.recomputed) for report in reports]
    chosen = [report.plan.chosen for report in reports]
    replans = [("planned anew", [str(report.replans) for report in reports])]
    loops = [len(report.unknown_memory) for report in reports]
    return [
        ("budget", sizes("budget_bytes")),
        ("margin kept below the limit", sizes("margin_bytes")),
        ("peak, nothing planned (predicted)", sizes("unplanned_peak_bytes")),
        *(
            [("loops and ops of unknown memory", list(map(str, loops)))]
            if any(loops)
            else ()
        ),
        ("peak, predicted", sizes("predicted_peak_bytes")),
        ("peak, measured", list(map(_measured, reports))),
        ("persistent", sizes("persistent_bytes")),
        *(
            [("of these neither the model's nor a batch's", sizes("other_bytes"))]
            if any(report.other_bytes > MIB for report in reports)
            else ()
        ),
        ("lower bound (one op)", sizes("lower_bound_bytes")),
        ("swapped out", sizes("swapped_out_bytes")),
        ("swapped in", sizes("swapped_in_bytes")),
        ("host memory", sizes("host_peak_bytes")),
        ("tensors swapped", [str(report.swap_count) for report in reports]),
        *([("ops recomputed", list(map(str, again)))] if any(again) else ()),
        ("planner", [r.plan.planner for r in reports]),
        *([("chosen", chosen)] if any(chosen) else ()),
        ("planning", [f"{report.planning_seconds:.1f} s" for report in reports]),
        ("with tracing", [f"{report.preparation_seconds:.1f} s" for report in reports]),
        *(replans if any(report.replans for report in reports) else ()),
    ]
