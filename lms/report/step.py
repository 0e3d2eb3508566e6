"""Plan and measurements of one traced step: one value, one line, one table, one JSON.

The callback, `fit_in_memory` and `python -m lms plan` all show this value; before a
training, measured fields are None.

Words: peaks and `persistent_bytes` count everything in the device's allocator, weights,
optimizer slots and data included; `lower_bound_bytes` is the largest single-op working
set without these.
"""

import io
import json
import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from lms.ir.graph import GraphView
from lms.ir.plan import SwapPlan
from lms.machine.hardware import Costs, Hardware
from lms.simulation.memory import MemoryTimeline
from lms.simulation.timeline import Timeline
from lms.storage.files import write_text
from lms.units import MIB, Seconds, format_bytes, format_seconds

__all__ = ["Held", "StepReport", "StepTimeline"]
__all__ += ["brief", "headline", "save_record", "table"]

# Packages on which a step's numbers depend.
_PACKAGES = ("tflms", "tensorflow", "keras", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """The plan and measurements of one traced function and signature.

    Args:
        kind: `train`, `test`, `predict`, or `step` for a custom loop.
        signature: Shapes of the inputs, readable.
        plan: The plan that runs; it has no swaps when everything fits.
        budget_bytes: Bytes that the step may use; None without a limit.
        margin_bytes: Bytes of the device's limit that are left to the allocator.
        predicted_peak_bytes: Peak of the plan, allocator losses included, with copies
            at the measured speed. Where the losses are uncertain, the highest peak of
            the placements that were tried.
        measured_peak_bytes: The allocator's own peak after the first step; None
            where it keeps no statistics or only one step ran.
        unplanned_peak_bytes: Predicted peak without any swap, in TensorFlow's order.
        persistent_bytes: In use before the step: weights, slots, data.
        lower_bound_bytes: The largest single-op working set.
        swapped_out_bytes: Copied to the host in each step.
        swapped_in_bytes: Copied back in each step.
        host_peak_bytes: Predicted host memory of offloaded tensors.
        swap_count: Tensors that leave the device in each step.
        planning_seconds: From the graph to the plan: schedule, search, placement.
        preparation_seconds: From the start of tracing to the callable.
        predicted_seconds: Predicted time of the step, by the costs of ops and copies.
            This field and the next five are None where no costs are known: a training
            whose step fits measures none.
        unplanned_seconds: Predicted time of the ops alone, each run once.
        utilisation: Share of the step in which the device computes, 0 to 1.
        launch_share: Share in which the device waits for the host to start an op.
        h2d_bytes_per_second: Rate of copies to the device; 0 without copies.
        d2h_bytes_per_second: Rate of copies to the host; 0 without copies.
        replans: How often the step ran out of memory and was replanned.
        unknown_memory: Names of loops whose memory is not predicted, and of ops whose
            output size is a guess.
        other_bytes: Persistent bytes that are neither the model's nor a batch's. Arrays
            that `fit` was given are among them: they lie on the device whole, unless
            their `tf.data.Dataset` is made within `tf.device("CPU:0")`.
        ops_cut: Ops that are split into chunks, as no plan fits with whole ones.
        not_planned: Why the step runs without a plan; else None.
        addresses: `planned`, or why a plan has no addresses; empty without a plan.
        device: The device, such as `GPU:1`, of a step of several; else empty.
        proof: What is proved of the step: `values, order, bytes`, or why bytes are not;
            empty without a plan.
        laws: Laws that the proof used, beside copies and second runs.
        compared: With `check`, copies back from the host that were compared so far.
        compared_again: With `check`, second runs that were compared so far.
        not_compared: With `check`, tensors that leave the device and are not compared:
            of bool, or of unknown size.
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
    utilisation: float | None = None
    launch_share: float | None = None
    h2d_bytes_per_second: float | None = None
    d2h_bytes_per_second: float | None = None
    replans: int = 0
    unknown_memory: tuple[str, ...] = ()
    other_bytes: int = 0
    ops_cut: int = 0
    not_planned: str | None = None
    addresses: str = ""
    device: str = ""
    proof: str = ""
    laws: str = ""
    compared: int = 0
    compared_again: int = 0
    not_compared: int = 0

    @property
    def fits_unplanned(self) -> bool:
        """Tell whether the step runs as TensorFlow would run it: no order, no swaps."""
        return self.plan.is_empty

    @property
    def recomputed_ops(self) -> int:
        """Ops that are recomputed in each step."""
        return len(self.plan.recomputed)

    @property
    def slowdown(self) -> float | None:
        """Ratio of predicted seconds, planned over unplanned."""
        if not self.predicted_seconds or not self.unplanned_seconds:
            return None
        return self.predicted_seconds / self.unplanned_seconds

    def numbers(self) -> dict[str, Any]:
        """Return all fields but the plan, and derived numbers, in JSON's types."""
        names = [f.name for f in fields(self) if f.name != "plan"]
        found = {name: getattr(self, name) for name in names}
        return found | {
            "planner": self.plan.planner,
            "chosen": self.plan.chosen,
            "fits_unplanned": self.fits_unplanned,
            "recomputed_ops": self.recomputed_ops,
            "slowdown": self.slowdown,
        }


class Held(NamedTuple):
    """A variable or input that a step has from its start: its op's name, its bytes."""

    name: str
    size: int
    is_input: bool = False
    is_on_host: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeline:
    """Predicted memory over one step of a report, without and with a plan.

    Args:
        unplanned: Bytes of the step at each op, nothing ordered, nothing swapped.
        planned: Bytes of the step at each op of the plan's order.
        persistent_bytes: Bytes below both curves.
        lanes: The planned step over time; None where nothing is swapped.
        graph: The ops that run, recomputed ones included.
        plan: The plan for this graph.
        held: What the step has from its start, part of `persistent_bytes` unless it
            lies on the host.
        costs: Seconds of ops; None where none are known, as of a step that fits.
        hardware: The device and its link; None likewise.
    """

    kind: str
    signature: str
    graph: GraphView = field(repr=False)
    unplanned: MemoryTimeline = field(repr=False)
    planned: MemoryTimeline = field(repr=False)
    persistent_bytes: int
    lanes: Timeline | None = field(default=None, repr=False)
    plan: SwapPlan = field(repr=False)
    held: tuple[Held, ...] = field(default=(), repr=False)
    costs: Costs | None = field(default=None, repr=False)
    hardware: Hardware | None = field(default=None, repr=False)


def headline(report: StepReport) -> str:
    """Summarise a report in one line."""
    place = report.device and f" on {report.device}"
    start = f"LMS {report.kind} step{place} ({report.signature}): "
    needs = format_bytes(report.unplanned_peak_bytes) + _unknown(report.unknown_memory)
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
        planned = f"may exceed {budget} in another order of ops, planned"
    return (
        f"{start}needs {needs}, {planned}: "
        f"{format_bytes(report.predicted_peak_bytes)} with {_changes(report)}"
    )


def save_record(path: Path, reports: Sequence[StepReport]) -> None:
    """Write what a checkpoint was trained with: versions, plans, what was proved.

    Example:
        >>> import json, tempfile
        >>> path = Path(tempfile.mkdtemp()) / "best.lms.json"
        >>> save_record(path, [])
        >>> sorted(json.loads(path.read_text()))
        ['made', 'steps', 'versions']
    """
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    steps = [each.numbers() | {"plan": asdict(each.plan)} for each in reports]
    made = datetime.now(UTC).isoformat(timespec="seconds")
    record = {"made": made, "versions": versions, "steps": steps}
    write_text(path, json.dumps(record, indent=1) + "\n")


def _unknown(names: Sequence[str]) -> str:
    """Mark a memory need that includes loops or ops of unknown memory."""
    if not names:
        return ""
    count = "1 loop or op" if len(names) == 1 else f"{len(names)} loops or ops"
    return f" ({count} of unknown memory)"


def _changes(report: StepReport) -> str:
    """Tell what a plan changes, what that costs, and what came of earlier plans."""
    text = "nothing swapped"
    if report.swap_count:
        size = format_bytes(report.swapped_out_bytes)
        text = f"{_count(report.swap_count, 'tensor')} ({size}) swapped"
    if report.recomputed_ops:
        text += f", {_count(report.recomputed_ops, 'op')} recomputed"
    if report.slowdown:
        text += f", predicted to take {report.slowdown:.2f} times as long as unplanned"
    if report.replans:
        times = "once" if report.replans == 1 else f"{report.replans} times"
        text += f"; ran out of memory and was replanned {times}"
    return text


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def table(reports: Sequence[StepReport]) -> str:
    """Lay out reports as a text table, one column for each."""
    if not reports:
        return "Nothing was planned yet: fit, evaluate or predict with the callback."
    shown = Table(title="Large model support")
    shown.add_column("per step")
    for report in reports:
        name = f"{report.device} {report.kind} {report.signature}".strip()
        shown.add_column(name, justify="right")
    for label, text_of in _ROWS:
        cells = [text_of(report) for report in reports]
        if any(cells):
            shown.add_row(label, *(cell or "-" for cell in cells))
    return _printed(shown, width=60 + 34 * len(reports))


def brief(
    title: str, names: Sequence[str], rows: Sequence[tuple[Any, ...]], last: str
) -> str:
    """Lay out predicted steps as a text table, one line for each.

    Args:
        title: The title.
        names: Names of the first columns.
        rows: Texts of the first columns, a report or None, its examples, and a text.
        last: The name of the last column.
    """
    shown = Table(title=title, title_justify="left")
    for name in (*names, "peak", "host memory", "an example", "times", last):
        side = "left" if name in ("", last, names[0]) else "right"
        shown.add_column(name, justify=side, no_wrap=name != last)
    for *texts, report, examples, note in rows:
        cells = ["-"] * 4
        if report is not None:
            sizes = report.predicted_peak_bytes, report.host_peak_bytes
            cells[:2] = map(format_bytes, sizes)
            cells[2] = format_seconds((report.predicted_seconds or 0.0) / examples)
            cells[3] = f"{report.slowdown or 1:.2f}"
        shown.add_row(*map(str, texts), *cells, note)
    said = "Nothing was run: memory and seconds are predicted. `times`: as long as the"
    return f"{_printed(shown, width=110)}\n{said}\nsame step in a memory that holds it."


def _printed(shown: Table, *, width: int) -> str:
    """Print a table into a text, without colours or a notebook's display."""
    text, no = io.StringIO(), False
    Console(file=text, width=width, force_jupyter=no, force_terminal=no).print(shown)
    return text.getvalue().rstrip()


def _text(name: str, write: Callable[[Any], str]) -> Callable[[StepReport], str]:
    """Return a function that formats a report's attribute; None gives ""."""

    def text(report: StepReport) -> str:
        value = getattr(report, name)
        return "" if value is None else write(value)

    return text


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.3g} GB/s" if bytes_per_second else ""


def _measured(report: StepReport) -> str:
    """Format the measured peak; mark a peak above the budget."""
    measured, budget = report.measured_peak_bytes, report.budget_bytes
    if measured is None:
        return ""
    above = budget is not None and measured > budget
    return format_bytes(measured) + (" (above the budget)" if above else "")


def _other(report: StepReport) -> str:
    return format_bytes(report.other_bytes) if report.other_bytes > MIB else ""


# Rows of a table: label, and text for a report; a row without any text is left out.
_ROWS: tuple[tuple[str, Callable[[StepReport], str]], ...] = (
    ("budget", _text("budget_bytes", format_bytes)),
    ("margin kept below the limit", _text("margin_bytes", format_bytes)),
    ("peak, unplanned (predicted)", _text("unplanned_peak_bytes", format_bytes)),
    ("loops and ops of unknown memory", lambda r: str(len(r.unknown_memory) or "")),
    ("peak, predicted", _text("predicted_peak_bytes", format_bytes)),
    ("peak, measured", _measured),
    ("persistent", _text("persistent_bytes", format_bytes)),
    ("persistent, not of model or batch", _other),
    ("lower bound (one op)", _text("lower_bound_bytes", format_bytes)),
    ("swapped out", _text("swapped_out_bytes", format_bytes)),
    ("swapped in", _text("swapped_in_bytes", format_bytes)),
    ("host memory", _text("host_peak_bytes", format_bytes)),
    ("tensors swapped", _text("swap_count", str)),
    ("ops recomputed", _text("recomputed_ops", str)),
    ("addresses", lambda r: r.addresses),
    ("proved", lambda r: r.proof),
    ("by laws", lambda r: r.laws),
    ("copies compared", lambda r: f"{r.compared or ''}"),
    ("second runs compared", lambda r: f"{r.compared_again or ''}"),
    ("tensors moved, not compared", lambda r: f"{r.not_compared or ''}"),
    ("ops split", lambda r: str(r.ops_cut or "")),
    ("planner", lambda r: r.plan.planner),
    ("chosen", lambda r: r.plan.chosen),
    ("step, unplanned (predicted)", _text("unplanned_seconds", format_seconds)),
    ("step, predicted", _text("predicted_seconds", format_seconds)),
    ("slowdown", _text("slowdown", "{:.2f}".format)),
    ("device utilisation", _text("utilisation", "{:.0%}".format)),
    ("waits for launches", _text("launch_share", "{:.0%}".format)),
    ("copies, host to device", _text("h2d_bytes_per_second", _rate)),
    ("copies, device to host", _text("d2h_bytes_per_second", _rate)),
    ("planning", _text("planning_seconds", "{:.1f} s".format)),
    ("tracing and planning", _text("preparation_seconds", "{:.1f} s".format)),
    ("replans", lambda r: str(r.replans or "")),
)
