"""Plans a model's training step before it trains, for this device or another."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from lms.commands import plan_view
from lms.commands.forecast import DeviceWorkload, Forecast, forecast, training_of
from lms.commands.model_file import read_subject
from lms.errors import BudgetError, LMSError
from lms.figures import draw_lanes
from lms.machine.hardware import PRESETS
from lms.planning.candidates import Recompute
from lms.planning.settings import read_settings
from lms.storage.files import write_text
from lms.tf.capture.keras_step import batch_specs, check_model

__all__ = ["NO_PLAN", "Request", "plan"]

# Exit code where no plan fits.
NO_PLAN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request of the command line.

    Args:
        subject: FILE.py:function.
        budget: Bytes of device memory; None takes the device's less a margin.
        hardware: A preset; None measures the present device.
        link: The preset whose link to the host is taken; None leaves the device's.
        planner: "budget", or "threshold" for IBM's rule.
        recompute: As for `LMSCallback`.
        json: File for the whole forecast.
        figure: PNG for the steps over time.
        output: File for the plan alone, which `LMSCallback(plan=...)` obeys.
    """

    subject: str
    budget: int | None = None
    hardware: str | None = None
    link: str | None = None
    planner: str = "budget"
    recompute: Recompute = None
    json: Path | None = None
    figure: Path | None = None
    output: Path | None = None


def plan(request: Request) -> int:
    """Plan, print, and write what was asked for.

    Returns:
        The exit code: 0 where a plan exists, else `NO_PLAN`.

    Raises:
        ValueError: If the subject is not what it must be.
    """
    for path in (request.json, request.figure, request.output):
        _check_file(path)
    _check_format(request.figure)
    settings = read_settings(
        budget=request.budget,
        thresholds={} if request.planner == "threshold" else None,
        recompute=request.recompute,
    )
    model, specs = _model_and_specs(request.subject)
    console = _console()
    about: dict[str, Any] = {"subject": request.subject}
    try:
        workload = _workload(request, model, specs)
        about["device"] = plan_view.device(workload)
        found = forecast(workload, settings)
        _check_room(found)
    except BudgetError as error:
        console.print(f"Does not fit, and no plan makes it fit: {error}")
        _write(request.json, about | _refusal(error))
        return NO_PLAN
    plan_view.show(found, console)
    _write(request.json, about | plan_view.as_data(found))
    if request.output is not None:
        write_text(request.output, found.plan.to_json(indent=1) + "\n")
    if request.figure is not None:
        _draw(found, request)
    return 0


def _console() -> Console:
    """As wide as the terminal; names of layers are long where there is none."""
    console = Console(soft_wrap=True, highlight=False)
    if not console.is_terminal:
        console.width = 100
    return console


def _check_file(path: Path | None) -> None:
    if path is None:
        return
    if path.is_dir():
        raise ValueError(f"`{path}` must be a file, got a folder. Name a file in it.")
    if not path.absolute().parent.is_dir():
        raise ValueError(
            f"`{path}` must be in a folder that exists, got '{path.parent}'. Make it."
        )


def _check_format(figure: Path | None) -> None:
    if figure is not None and figure.suffix.lower() != ".png":
        raise ValueError(
            f"`{figure}` must end with .png, got {figure.suffix or 'no ending'!r}. "
            "Figures are drawn as PNG."
        )


def _model_and_specs(name: str) -> tuple[Any, tuple[Any, ...]]:
    """The model, and its batch as specs: the arrays would take device memory."""
    subject = read_subject(name)
    check_model(subject.model)
    return subject.model, batch_specs(subject.batch)


def _workload(request: Request, model: Any, specs: Sequence[Any]) -> DeviceWorkload:
    hardware = None if request.hardware is None else PRESETS[request.hardware]
    with _refused_in_words(request.subject):
        workload = training_of(model, specs, hardware=hardware, budget=request.budget)
    if request.link is None:
        return workload
    link = PRESETS[request.link]
    hardware = workload.speeds.hardware
    return workload.on(
        replace(hardware, h2d=link.h2d, d2h=link.d2h, latency=link.latency)
    )


@contextmanager
def _refused_in_words(name: str) -> Iterator[None]:
    """Within it the model's own code runs, which fails in any way it likes."""
    try:
        yield
    except LMSError:
        raise
    except Exception as error:
        words = next((line for line in str(error).splitlines() if line.strip()), "")
        raise ValueError(
            f"the model of `{name}` must accept its batch, got {type(error).__name__}: "
            f"{words.strip()} Try `model.train_on_batch` with it in Python."
        ) from error


def _check_room(found: Forecast) -> None:
    """The threshold rule swaps what it swaps: its plan may exceed the budget."""
    if found.peak_bytes > found.budget.most:
        raise BudgetError(plan_view.too_large(found), least_bytes=None)


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


def _draw(found: Forecast, request: Request) -> None:
    assert request.figure is not None
    draw_lanes(
        [("nothing swapped", found.unplanned), ("planned", found.timeline)],
        request.figure,
        title=f"One training step of {Path(request.subject).name}, predicted",
        note=plan_view.device(found.workload),
    )
