"""Plans a model's training step before it trains, for this device or another.

Prints the callback's report (`lms.report.step`) and the largest swapped tensors.
"""

import json
import sys
import time
from argparse import Namespace
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lms.commands import forecast as fore
from lms.commands.largest import examples_of, largest
from lms.commands.model_file import Subject, read_function, read_subject
from lms.errors import BudgetError, HostMemoryError
from lms.ir.graph import op_of
from lms.ir.plan import Swap
from lms.ir.recompute import original_name
from lms.machine.hardware import PRESETS, Hardware, find_hardware
from lms.planning.settings import RECOMPUTE_WORDS, Settings, read_settings
from lms.report.page import Shown, as_page
from lms.report.progress import displayed, track
from lms.report.step import brief, headline, table
from lms.simulation.timeline import Lane, Timeline
from lms.storage.files import write_text
from lms.tf.capture.keras_step import names_of_layers
from lms.units import Seconds, format_bytes, format_seconds

__all__ = ["NO_PLAN", "plan"]

# Exit code where no plan fits.
NO_PLAN = 3

# Most swapped tensors that are printed.
_SHOWN = 10


def plan(request: Namespace) -> int:
    """Plan the step, print the report, write the requested files.

    `request` has the options of `python -m lms plan`, as its help describes them.

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
        host_memory=request.host_memory,
        replan=False,
    )
    if request.largest:
        return _largest_sizes(request)
    link = _found(request.link)
    started, subject = time.perf_counter(), read_subject(request.subject)
    if request.hardware == "all":
        return _every_card(request, subject, settings, link)
    wide = None if sys.stdout.isatty() else 100  # columns: names are long
    console = Console(soft_wrap=True, highlight=False, width=wide)
    about, captured = {"subject": request.subject}, None
    try:
        with _progress():
            hardware = _found(request.hardware)
            captured = fore.training_of(
                subject.model, subject.batch, settings, hardware=hardware, link=link
            )
            about["device"] = fore.described(captured.workload.speeds())
            found = fore.forecast(captured, time.perf_counter() - started)
    except BudgetError as error:
        console.print(f"Does not fit, and no plan makes it fit: {error}")
        console.print("--largest finds the largest size that trains.")
        refusal = {"fits": False, "message": str(error), "op": error.op_name}
        refusal |= {"least_budget_bytes": error.least_bytes, "plan": None}
        _write(request.json, about | refusal)
        if request.page is not None and captured is not None:
            _page(request.page, fore.refused(captured, error), subject)
        return NO_PLAN
    moved = _moved(found)
    _show(found, moved, console)
    _write(request.json, about | _data(found, moved))
    if request.output is not None:
        write_text(request.output, found.report.plan.to_json(indent=1) + "\n")
    if request.page is not None:
        _page(request.page, found, subject)
    return 0


def _found(text: str | None) -> Hardware | None:
    return None if text is None else find_hardware(text)


def _progress(*, always: bool = False) -> AbstractContextManager[None]:
    """Show progress on standard error, if that is a terminal or `always`."""
    console = Console(stderr=True)
    return displayed(console) if always or console.is_terminal else nullcontext()


def _largest_sizes(request: Namespace) -> int:
    for name, usual in (("link", None), ("planner", "budget"), ("recompute", "auto")):
        if (value := getattr(request, name)) != usual:
            raise ValueError(
                f"`--{name}` must not be with --largest: {value}. Drop it."
            )
    with _progress(always=True):
        found = largest(
            read_function(request.subject, 1),
            hardware=request.hardware,
            budget=request.budget,
            host_memory=request.host_memory,
            multiple=request.multiple,
        )
    print(found)
    rows = [
        {"question": row.question, "size": row.size, "next": row.above, "why": row.why}
        | (row.report.numbers() if row.report else {})
        for row in found.rows
    ]
    about = {"device": found.device, "is_whole": found.is_whole}
    _write(request.json, about | {"sizes": rows})
    return 0 if found.rows[-1].size else NO_PLAN


def _every_card(
    request: Namespace, subject: Subject, settings: Settings, link: Hardware | None
) -> int:
    """Print what each known card makes of the step, with a plan where it needs one."""
    lines, rows = list[Any](), list[dict[str, Any]]()
    count = examples_of(subject.batch)
    with _progress():
        t4 = PRESETS["t4"]  # the others get the same step
        captured = fore.training_of(subject.model, subject.batch, settings, hardware=t4)
        for name in track("planning for cards", list(PRESETS)):
            card = fore.on_card(captured, PRESETS[name], link)
            report = None
            with suppress(BudgetError, HostMemoryError):
                report = fore.forecast(card.above_floor()).report
            fits, support = "no", PRESETS[name].support
            if report is not None:
                fits = "as it is" if report.fits_unplanned else "with the callback"
            lines.append((name, fits, report, count, support and "kernels to compile"))
            numbers = {} if report is None else report.numbers()
            rows.append({"hardware": name, "fits": fits, "support": support} | numbers)
    title = f"{request.subject} on known cards, by rooflines of stated rates"
    print(brief(title, ("card", "fits"), lines, "TensorFlow"))
    print("By a roofline scratch memory counts as nothing: a step that fits may not.")
    for words in sorted({card.support for card in PRESETS.values()} - {""}):
        print(f"Kernels to compile: {words}.")
    _write(request.json, {"subject": request.subject, "cards": rows})
    return 0 if any(row["fits"] != "no" for row in rows) else NO_PLAN


def _check_files(request: Namespace) -> None:
    many = ["--largest"] * request.largest
    many += ["--hardware all"] * (request.hardware == "all")
    if len(many) > 1 or (many and (request.page or request.output)):
        raise ValueError(
            f"`{many[0]}` must be given with one card, and without --page and "
            "--output, which show one plan. Leave one out."
        )
    for path in filter(None, (request.json, request.page, request.output)):
        if path.is_dir():
            raise ValueError(f"`{path}` must be a file, got a folder. Name a file.")
        if not path.absolute().parent.is_dir():
            raise ValueError(
                f"`{path}` must be in an existing folder, got '{path.parent}'. Make it."
            )


def _moved(found: fore.Forecast) -> list[dict[str, Any]]:
    """List swapped tensors, the largest first; equal ones in order of departure.

    `layer` is the scope of the tensor's producer, for Keras the path of the layer.
    `out` and `back` are starts of copies; `out` is None where none leaves the device.
    """
    starts: dict[tuple[Lane, str], list[Seconds]] = {}
    for interval in (found.timeline.lanes or Timeline()).intervals:
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


def _show(found: fore.Forecast, moved: list[dict[str, Any]], console: Console) -> None:
    console.print(headline(found.report), markup=False)
    console.print(f"For {fore.described(found.speeds)}.")
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


def _data(found: fore.Forecast, moved: list[dict[str, Any]]) -> dict[str, Any]:
    return found.report.numbers() | {
        "fits": True,
        "on_host_bytes": found.on_host,
        "costs": found.speeds.costs.source,
        "hardware": asdict(found.speeds.hardware),
        "moved": moved,
        "plan": asdict(found.report.plan),
        "timeline": asdict(found.timeline.lanes or Timeline()),
    }


def _write(path: Path | None, data: dict[str, Any]) -> None:
    if path is not None:
        write_text(path, json.dumps(data) + "\n")


def _page(path: Path, shown: Shown, subject: Subject) -> None:
    write_text(path, as_page([shown], names_of_layers(subject.model)))
