"""A forecast in words, as a table, and as data."""

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from lms.commands.forecast import DeviceWorkload, Forecast
from lms.ir.graph import op_of
from lms.ir.plan import Swap
from lms.ir.recompute import original_name
from lms.report import unknown
from lms.simulation.timeline import Cause, Lane, Timeline
from lms.units import Bytes, Seconds, format_bytes

__all__ = ["Moved", "as_data", "device", "moved", "show", "too_large"]

# How many swapped tensors are printed.
_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A tensor that leaves the device.

    Args:
        tensor: Its name below the layer.
        layer: Scope of the op that makes it: for Keras the path of the layer.
        size: Bytes of one copy.
        out: When the swap-out starts, from the start of the step; None for what the
            host has anyhow.
        back: When the swap-ins start.
    """

    tensor: str
    layer: str
    size: Bytes
    out: Seconds | None
    back: tuple[Seconds, ...]


def device(workload: DeviceWorkload) -> str:
    """Say in one line what the numbers are for and where they come from."""
    hardware = workload.speeds.hardware
    if workload.speeds.costs.source == "measured":
        return f"{hardware.name}, {format_bytes(hardware.memory)}: measured here"
    return f"{hardware.name}: a roofline of stated rates, not measured"


def show(found: Forecast, console: Console) -> None:
    """Print the verdict, the table and the largest swapped tensors."""
    console.print(_verdict(found))
    console.print(f"For {device(found.workload)}.")
    if found.workload.speeds.costs.source != "measured":
        console.print(
            "A roofline is the best that hardware could do, and counts no scratch "
            "memory: expect longer steps and a higher peak."
        )
    console.print(_table(found))
    if found.plan.swaps:
        console.print(_largest(found))


def too_large(found: Forecast) -> str:
    """Why a plan that exceeds its budget is none."""
    least = format_bytes(found.peak_bytes, at_least=True)
    return (
        f"`budget` must be at least {least} for this plan, got "
        f" {format_bytes(found.budget.total or 0)}. Use a larger budget, or the "
        "budget planner."
    )


def moved(found: Forecast) -> tuple[Moved, ...]:
    """Tensors that leave the device, the largest first; equal ones as they leave."""
    starts: dict[tuple[Lane, str], list[Seconds]] = {}
    for interval in found.timeline.intervals:
        starts.setdefault((interval.lane, interval.name), []).append(interval.start)
    every = [_moved(swap, starts) for swap in found.plan.swaps]
    return tuple(sorted(every, key=lambda one: (-one.size, one.out or 0.0)))


def as_data(found: Forecast) -> dict[str, Any]:
    """All of a forecast but the graph, as JSON can hold it."""
    return {
        "fits": True,
        "fits_unplanned": found.fits_unplanned,
        "planner": found.plan.planner,
        "signature": found.workload.signature,
        "costs": found.workload.speeds.costs.source,
        "hardware": asdict(found.workload.speeds.hardware),
        "budget_bytes": found.budget.total,
        "margin_bytes": found.budget.margin,
        "persistent_bytes": found.budget.persistent,
        "unplanned_peak_bytes": found.unplanned_peak_bytes,
        "predicted_peak_bytes": found.peak_bytes,
        "lower_bound_bytes": found.lower_bound_bytes,
        "swapped_out_bytes": found.plan.swapped_out_bytes,
        "swapped_in_bytes": found.plan.swapped_in_bytes,
        "host_bytes": found.host_bytes,
        "recomputed_ops": len(found.plan.recomputed),
        "swap_count": len(found.plan.swaps),
        "host_peak_bytes": found.timeline.host_peak,
        "predicted_seconds": found.timeline.seconds,
        "unplanned_seconds": found.unplanned.seconds,
        "slowdown": found.slowdown,
        "utilisation": found.timeline.utilisation,
        "launch_share": _launch_share(found.timeline),
        "h2d_bytes_per_second": found.timeline.throughput(Lane.H2D),
        "d2h_bytes_per_second": found.timeline.throughput(Lane.D2H),
        "moved": [asdict(one) for one in moved(found)],
        "plan": asdict(found.plan),
        "timeline": asdict(found.timeline),
        "unplanned_timeline": asdict(found.unplanned),
    }


def _verdict(found: Forecast) -> str:
    needs = format_bytes(found.unplanned_peak_bytes)
    needs += unknown(found.workload.unknown_memory)
    budget = format_bytes(found.budget.total or 0)
    if found.fits_unplanned:
        fits = "May fit" if found.workload.unknown_memory else "Fits"
        return f"{fits}: the step needs {needs} of {budget}, nothing is planned."
    start = f"Does not fit: the step needs {needs} of {budget}."
    if found.unplanned_peak_bytes <= (found.budget.total or 0):
        start = f"May not fit: the step needs {needs} of {budget}, more by chance."
    count = len(found.plan.swaps)
    moved = f"{count} tensor{'s' * (count > 1)}" if count else "nothing"
    peak = format_bytes(found.peak_bytes)
    return f"{start} Planned, it does: {peak} in a fixed order, with {moved} swapped."


def _table(found: Forecast) -> Table:
    shown = Table(title=f"One training step: {found.workload.signature}")
    shown.add_column("predicted")
    shown.add_column("", justify="right")
    for label, value in _rows(found):
        shown.add_row(label, value)
    return shown


def _rows(found: Forecast) -> list[tuple[str, str]]:
    timeline, plan = found.timeline, found.plan
    sizes = [
        ("budget", found.budget.total or 0),
        ("margin kept below the limit", found.budget.margin),
        ("persistent", found.budget.persistent),
        ("peak, nothing planned", found.unplanned_peak_bytes),
        ("peak, planned", found.peak_bytes),
        ("lower bound (one op)", found.lower_bound_bytes),
        ("swapped out", plan.swapped_out_bytes),
        ("swapped in", plan.swapped_in_bytes),
        ("host memory needed", found.host_bytes),
    ]
    return [
        *((label, format_bytes(size)) for label, size in sizes),
        ("tensors swapped", str(len(plan.swaps))),
        ("ops recomputed", str(len(plan.recomputed))),
        ("planner", plan.planner),
        ("step, nothing planned", _seconds(found.unplanned.seconds)),
        ("step, planned", _seconds(timeline.seconds)),
        ("slowdown", f"{found.slowdown:.2f}"),
        ("device utilisation", f"{timeline.utilisation:.0%}"),
        ("waiting for ops to be started", f"{_launch_share(timeline):.0%}"),
        ("copies, host to device", _rate(timeline, Lane.H2D)),
        ("copies, device to host", _rate(timeline, Lane.D2H)),
    ]


def _launch_share(timeline: Timeline) -> float:
    """Part of the step in which the device waits for the host to start an op."""
    waits = sum(s.seconds for s in timeline.stalls if s.cause is Cause.LAUNCH)
    return waits / timeline.seconds if timeline.seconds else 0.0


def _largest(found: Forecast) -> Table:
    every = moved(found)
    count = f"{_SHOWN} of {len(every)} " if len(every) > _SHOWN else ""
    shown = Table(title=f"Largest swapped tensors: {count}by layer")
    for name in ("layer", "tensor"):
        shown.add_column(name, overflow="fold")
    for name in ("size", "out at", "back at"):
        shown.add_column(name, justify="right", no_wrap=True)
    for one in every[:_SHOWN]:
        back = ", ".join(_seconds(at) for at in one.back)
        out = "" if one.out is None else _seconds(one.out)
        shown.add_row(one.layer, one.tensor, format_bytes(one.size), out, back)
    return shown


def _moved(swap: Swap, starts: dict[tuple[Lane, str], list[Seconds]]) -> Moved:
    name = original_name(swap.tensor)
    layer, _, _ = op_of(name).rpartition("/")
    return Moved(
        tensor=name.removeprefix(f"{layer}/"),
        layer=layer,
        size=swap.size,
        out=min(starts.get((Lane.D2H, swap.tensor), ()), default=None),
        back=tuple(sorted(starts.get((Lane.H2D, swap.tensor), ()))),
    )


def _seconds(seconds: Seconds) -> str:
    """Seconds, or milliseconds below one.

    Example:
        >>> _seconds(1.5), _seconds(0.0123)
        ('1.50 s', '12.3 ms')
    """
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _rate(timeline: Timeline, lane: Lane) -> str:
    rate = timeline.throughput(lane)
    return f"{rate / 1e9:.3g} GB/s" if rate else "-"
