"""Does a step take the memory and the time that was predicted?

Three models, each planned into five sizes of an emulated device on an emulated link,
in a process for each. The device's size is a share of what the step needs unplanned;
the link is so fast that copying all of that out and back takes as long as the step
computes. The prediction is made before the first step: ops are measured alone, then the
plan is played. The measured peak is the allocator's own, the measured time the median
of steps, the first two of each turn left out. Where a step ran out of memory and was
planned anew, the first promise is compared with the last plan's steps.

A shared machine is not always as fast. So a trial goes on in turns: ops are measured
anew and the plan is played with them, then a few steps are measured. A turn waits while
the hypervisor gives the processor to others, and steps that this disturbed are not
counted (`experiments.quiet`). Times are judged at the medians of both, the predictions
and the steps; the promise before the first step is reported too.

Goals: each peak within 10 % of the predicted one, each time within 20 % of the one
predicted from ops as fast as they were between the steps.
"""

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.charts import Panel, Series, draw_panels
from experiments.ledger import Head, Ledger, Row, Rows
from experiments.plots import source
from experiments.question import LINK, Answer, Finding, how_it_ended, shortened
from experiments.quiet import quiet_median
from experiments.runner import run_trial
from lms.machine.hardware import LinkRates
from lms.units import MIB, format_bytes

__all__ = ["ANSWER", "main"]

_FOLDER = Path("build") / "experiments" / "simulator_accuracy"
_MODELS = ("unet", "resnet", "transformer")
_PROMISE = "predicted before the first step"
_COLOURS = dict(zip(_MODELS, ("#D55E00", "#0072B2", "#009E73"), strict=True))
_TITLES = {"unet": "3D U-Net", "resnet": "ResNet", "transformer": "transformer"}
_PEAK_GOAL, _TIME_GOAL = 0.10, 0.20

_Off = Callable[[Row], float]


def _add_settings(parser: Any) -> None:
    parser.add_argument("--models", nargs="+", choices=_MODELS, default=_MODELS)
    parser.add_argument(
        "--shares", nargs="+", type=float, default=(0.8, 0.7, 0.6, 0.5, 0.4)
    )
    parser.add_argument("--steps", type=int, default=4, help="measured in each turn")
    parser.add_argument("--turns", type=int, default=4, help="of each trial")


def _run(options: Any) -> None:
    """Finished trials of the same settings are kept when a run goes on."""
    if min(options.steps, options.turns) < 1 or not all(
        0 < share < 1 for share in options.shares
    ):
        raise SystemExit(
            "--steps and --turns must be at least 1 and --shares between 0 and 1, got "
            f"{options.steps}, {options.turns} and {options.shares}. Change them."
        )
    settings = {"steps": options.steps, "turns": options.turns}
    ledger = Ledger(options.results, settings, anew=options.anew)
    console = Console()
    for model in options.models:
        keys = [{"model": model, "share": share} for share in options.shares]
        missing = [key for key in keys if ledger.find(key) is None]
        probe = _probe(model, options.steps, console) if missing else {}
        for key in missing:
            ledger.once(key, partial(_trial, key, probe, settings, console))


def _probe(model: str, steps: int, console: Console) -> dict[str, Any]:
    trial = run_trial(
        f"{model} with enough memory",
        memory=4096 * MIB,
        command=("experiments.accuracy_trial", "--probe"),
        flags=(f"--model={model}", f"--steps={steps}"),
        folder=_FOLDER,
        console=console,
    )
    if trial.result is None:
        raise SystemExit(f"{trial.name}: {trial.error}")
    return trial.result


def _trial(
    key: Row,
    probe: Row,
    settings: Row,
    console: Console,
) -> dict[str, Any]:
    model, share = key["model"], key["share"]
    needed = probe["unplanned_peak_bytes"]
    rate = 2 * (needed - probe["persistent_bytes"]) / probe["op_seconds"]
    trial = run_trial(
        f"{model} in {share:.0%} of what it needs",
        memory=int(share * needed),
        command=("experiments.accuracy_trial",),
        flags=(f"--model={model}", *(f"--{k}={n}" for k, n in settings.items())),
        folder=_FOLDER,
        console=console,
        link=LinkRates(h2d=rate, d2h=rate, latency=1e-5),
    )
    row = {
        "memory_bytes": int(share * needed),
        "unplanned_peak_bytes": needed,
        "link_rate": rate,
    }
    return row | {"error": trial.error} | (trial.result or {})


def _finding(_: Head, rows: Rows) -> Finding:
    trained = [row for row in rows if row["error"] is None]
    text = (
        f"{_within(rows, _peak_off, _PEAK_GOAL)} measured peaks lie within "
        f"{_PEAK_GOAL:.0%} of the predicted ones ({_errors(trained, _peak_off)}). "
        "Times are harder: of the steps predicted before the first one, "
        f"{_within(rows, _promise_off, _TIME_GOAL)} took a time within "
        f"{_TIME_GOAL:.0%} ({_errors(trained, _promise_off)}). Predicted again from "
        f"ops timed between the steps, {_within(rows, _time_off, _TIME_GOAL)} did "
        f"({_errors(trained, _time_off)})."
    )
    columns = ["model", "device", "predicted peak", "measured peak", "off by"]
    columns += ["predicted step", "measured step", "off by", "timed again", "off by"]
    columns += ["how it ended"]
    return text, ("Predicted and measured", columns, [_cells(row) for row in rows])


def _within(rows: Rows, off: _Off, most: float) -> str:
    """How many did not fail, and are no further off than that."""
    count = sum(row["error"] is None and abs(off(row)) <= most for row in rows)
    return f"{count} of {len(rows)}"


def _errors(trained: Rows, off: _Off) -> str:
    errors = [abs(off(row)) for row in trained]
    return f"median error {statistics.median(errors):.1%}, largest {max(errors):.1%}"


def _cells(row: Row) -> list[str]:
    words = [row["model"], format_bytes(row["memory_bytes"])]
    if row["error"] is not None:
        return [*words, *[""] * 8, shortened(row["error"])]
    return [
        *words,
        format_bytes(row["predicted_peak_bytes"]),
        format_bytes(row["measured_peak_bytes"]),
        f"{_peak_off(row):+.1%}",
        f"{row['predicted_seconds']:.3f} s",
        f"{quiet_median(row):.3f} s",
        f"{_promise_off(row):+.1%}",
        f"{_in_turns(row):.3f} s",
        f"{_time_off(row):+.1%}",
        how_it_ended(row["replans"]),
    ]


def _in_turns(row: Row) -> float:
    """Predicted from ops as fast as they were between the steps."""
    return statistics.median(row["predicted_seconds_in_turns"])


def _peak_off(row: Row) -> float:
    return row["predicted_peak_bytes"] / row["measured_peak_bytes"] - 1


def _promise_off(row: Row) -> float:
    return row["predicted_seconds"] / quiet_median(row) - 1


def _time_off(row: Row) -> float:
    return _in_turns(row) / quiet_median(row) - 1


def _goals(_: Head, rows: Rows) -> Iterator[tuple[str, bool]]:
    for what, off, most in (
        ("peak", _peak_off, _PEAK_GOAL),
        ("step, predicted from ops timed between the steps,", _time_off, _TIME_GOAL),
    ):
        count = _within(rows, off, most)
        text = f"each {what} is within {most:.0%} of what was predicted: {count}."
        yield text, bool(rows) and count == f"{len(rows)} of {len(rows)}"


def _plot(head: Head, rows: Rows, path: Path) -> None:
    trained = [row for row in rows if row["error"] is None]
    peaks = [
        (r["model"], r["predicted_peak_bytes"] / MIB, r["measured_peak_bytes"] / MIB)
        for r in trained
    ]
    first = [(r["model"], r["predicted_seconds"], quiet_median(r)) for r in trained]
    again = [(r["model"], _in_turns(r), quiet_median(r)) for r in trained]
    if trained:
        panels = [
            _panel("peak memory", peaks, _PEAK_GOAL, "predicted, MiB"),
            _panel("step", first, _TIME_GOAL, f"{_PROMISE}, s"),
            _panel("step", again, _TIME_GOAL, "predicted from ops timed again, s"),
        ]
        draw_panels(
            [panels],
            path,
            title="Steps, predicted and measured",
            note="A CPU as the device, with an emulated link; each point is a model "
            "planned into one memory. Hollow: promised before the first step. Ops were "
            "timed again between the measured steps. "
            f"{source(head)}",
            size=(14.0, 5.4),
        )


def _panel(
    title: str, points: list[tuple[str, float, float]], most: float, x: str
) -> Panel:
    top = 1.08 * max(max(x, y) for _, x, y in points)
    return Panel(
        title=f"{title}; grey: within {most:.0%}",
        x=x,
        y="measured, MiB" if x.endswith("MiB") else "measured, s",
        series=[
            Series(
                points=[(x, y) for name, x, y in points if name == model],
                colour=_COLOURS[model],
                label=_TITLES[model],
                hollow=x.startswith(_PROMISE),
            )
            for model in _MODELS
        ],
        band=most,
        xlim=(0, top),
        ylim=(0, top),
    )


ANSWER = Answer(
    name="simulator_accuracy",
    title="Steps, predicted and measured",
    emulated=LINK,
    about=__doc__,
    add_settings=_add_settings,
    run=_run,
    finding=_finding,
    plot=_plot,
    goals=_goals,
)
main = ANSWER.main

if __name__ == "__main__":
    raise SystemExit(main())
