"""Plans a model's training step before it trains, for this device or another.

Prints the callback's report (`lms.report.step`) and the largest swapped tensors.
"""

import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lms.commands.forecast import Forecast, forecast, training_of
from lms.commands.model_file import Subject, read_subject
from lms.errors import BudgetError, LMSError
from lms.ir.graph import op_of
from lms.ir.plan import Swap
from lms.ir.recompute import original_name
from lms.machine.hardware import find_hardware
from lms.planning.problem import Speeds
from lms.planning.settings import RECOMPUTE_WORDS, Settings, read_settings
from lms.report.step import headline, table
from lms.simulation.timeline import Lane
from lms.storage.files import write_text
from lms.tf.capture.keras_step import batch_specs, check_model
from lms.tf.prepare import Captured
from lms.units import Seconds, format_bytes, format_seconds

__all__ = ["NO_PLAN", "Request", "plan"]

# Exit code where no plan fits.
NO_PLAN = 3

# Most swapped tensors that are printed.
_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Options of `python -m lms plan`, as its help describes them."""

    subject: str
    budget: int | None = None
    hardware: str | None = None
    link: str | None = None
    planner: str = "budget"
    recompute: str = "auto"
    json: Path | None = None
    figure: Path | None = None
    output: Path | None = None


def plan(request: Request) -> int:
    """Plan the step, print the report, write the requested files.

    Returns:
        The exit code: 0 where a plan exists, else `NO_PLAN`.

    Raises:
        ValueError: If the subject or the path of a file is invalid.
    """
    _check_files(request)
    settings = read_settings(
        budget=request.budget,
        thresholds={} if request.planner == "threshold" else None,
        recompute=RECOMPUTE_WORDS[request.recompute],
        replan=False,
    )
    subject = read_subject(request.subject)
    check_model(subject.model)
    # Arrays would take device memory.
    subject = replace(subject, batch=batch_specs(subject.batch))
    console, started = _console(), time.perf_counter()
    about: dict[str, Any] = {"subject": request.subject}
    try:
        captured = _captured(request, subject, settings)
        about["device"] = _device(captured.workload.speeds())
        found = forecast(captured, time.perf_counter() - started)
        _check_room(found)
    except BudgetError as error:
        console.print(f"Does not fit, and no plan makes it fit: {error}")
        _write(request.json, about | _refusal(error))
        return NO_PLAN
    moved = _moved(found)
    _show(found, moved, console)
    _write(request.json, about | _data(found, moved))
    if request.output is not None:
        write_text(request.output, found.report.plan.to_json(indent=1) + "\n")
    if request.figure is not None:
        _draw(found, request.figure, Path(request.subject).name)
    return 0


def _console() -> Console:
    """Make a console as wide as the terminal, else 100 columns: names are long."""
    console = Console(soft_wrap=True, highlight=False)
    if not console.is_terminal:
        console.width = 100
    return console


def _check_files(request: Request) -> None:
    for path in filter(None, (request.json, request.figure, request.output)):
        if path.is_dir():
            raise ValueError(
                f"`{path}` must be a file, got a folder. Name a file in it."
            )
        if not path.absolute().parent.is_dir():
            raise ValueError(
                f"`{path}` must be in an existing folder, got '{path.parent}'. Make it."
            )
    if (figure := request.figure) is None:
        return
    if figure.suffix.lower() != ".png":
        raise ValueError(
            f"`{figure}` must end with .png, got {figure.suffix or 'no ending'!r}. "
            "Figures are drawn as PNG."
        )
    import lms.report.lanes_figure  # noqa: F401 - needs an extra


def _captured(request: Request, subject: Subject, settings: Settings) -> Captured:
    """The step; what the model's own code raises, anything at all, in our words."""
    named = {"hardware": request.hardware, "link": request.link}
    chosen = {key: find_hardware(name) for key, name in named.items() if name}
    try:
        return training_of(subject.model, subject.batch, settings, **chosen)
    except LMSError:
        raise
    except Exception as error:
        words = next((line for line in str(error).splitlines() if line.strip()), "")
        raise ValueError(
            f"the model of `{subject.name}` must accept its batch, got "
            f"{type(error).__name__}: {words.strip()} Call `model.train_on_batch` with "
            "the batch in Python."
        ) from error


def _check_room(found: Forecast) -> None:
    """Refuse a plan above the budget, which the threshold rule may make."""
    report = found.report
    budget, peak = report.budget_bytes or 0, report.predicted_peak_bytes
    if peak > budget + report.margin_bytes:
        raise BudgetError(
            f"`budget` must be at least {format_bytes(peak, at_least=True)} for this "
            f"plan, got {format_bytes(budget)}. Use a larger budget, or the budget "
            "planner."
        )


def _device(speeds: Speeds) -> str:
    """Name the device and the source of its numbers, in one line."""
    hardware = speeds.hardware
    if speeds.costs.source == "measured":
        return f"{hardware.name}, {format_bytes(hardware.memory)}: measured here"
    return f"{hardware.name}: a roofline of stated rates, not measured"


def _moved(found: Forecast) -> list[dict[str, Any]]:
    """List swapped tensors, the largest first; equal ones in order of departure.

    `layer` is the scope of the tensor's producer, for Keras the path of the layer.
    `out` and `back` are starts of copies; `out` is None where none leaves the device.
    """
    starts: dict[tuple[Lane, str], list[Seconds]] = {}
    for interval in found.timeline.intervals:
        starts.setdefault((interval.lane, interval.name), []).append(interval.start)

    def moved(swap: Swap) -> dict[str, Any]:
        name = original_name(swap.tensor)
        layer, _, _ = op_of(name).rpartition("/")
        return {
            "tensor": name.removeprefix(f"{layer}/"),
            "layer": layer,
            "size": swap.size,
            "out": min(starts.get((Lane.D2H, swap.tensor), ()), default=None),
            "back": sorted(starts.get((Lane.H2D, swap.tensor), ())),
        }

    every = map(moved, found.report.plan.swaps)
    return sorted(every, key=lambda one: (-one["size"], one["out"] or 0.0))


def _show(found: Forecast, moved: list[dict[str, Any]], console: Console) -> None:
    console.print(headline(found.report), markup=False)
    console.print(f"For {_device(found.speeds)}.")
    if found.speeds.hardware.support:
        console.print(f"{found.speeds.hardware.support}.")
    if found.speeds.costs.source != "measured":
        console.print(
            "A roofline is the hardware's upper bound, and counts no scratch memory: "
            "expect longer steps and a higher peak."
        )
    if found.on_host:
        size = format_bytes(found.on_host)
        console.print(f"{size} of variables, or of lists of loops, lie on the host.")
    console.print(table([found.report]), markup=False)
    if moved:
        console.print(_largest(moved))


def _largest(moved: list[dict[str, Any]]) -> Table:
    count = f"{_SHOWN} of {len(moved)} " if len(moved) > _SHOWN else ""
    shown = Table(title=f"Largest swapped tensors: {count}by layer")
    for name in ("layer", "tensor"):
        shown.add_column(name, overflow="fold")
    for name in ("size", "out at", "back at"):
        shown.add_column(name, justify="right", no_wrap=True)
    for one in moved[:_SHOWN]:
        back = ", ".join(map(format_seconds, one["back"]))
        out = "" if one["out"] is None else format_seconds(one["out"])
        size = format_bytes(one["size"])
        shown.add_row(one["layer"], one["tensor"], size, out, back)
    return shown


def _data(found: Forecast, moved: list[dict[str, Any]]) -> dict[str, Any]:
    return found.report.numbers() | {
        "fits": True,
        "on_host_bytes": found.on_host,
        "costs": found.speeds.costs.source,
        "hardware": asdict(found.speeds.hardware),
        "moved": moved,
        "plan": asdict(found.report.plan),
        "timeline": asdict(found.timeline),
        "unplanned_timeline": asdict(found.unplanned),
    }


def _refusal(error: BudgetError) -> dict[str, Any]:
    return {
        "fits": False,
        "message": str(error),
        "op": error.op_name,
        "least_budget_bytes": error.least_bytes,
        "plan": None,
    }


def _write(path: Path | None, data: dict[str, Any]) -> None:
    if path is not None:
        write_text(path, json.dumps(data) + "\n")


def _draw(found: Forecast, path: Path, subject: str) -> None:
    from lms.report.lanes_figure import draw_lanes

    draw_lanes(
        [("nothing swapped", found.unplanned), ("planned", found.timeline)],
        path,
        title=f"One training step of {subject}, predicted",
        note=_device(found.speeds),
    )
