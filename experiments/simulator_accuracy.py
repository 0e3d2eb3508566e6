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

Claims: each peak within 10 % of the predicted one, each time within 20 %.
"""

import statistics
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from experiments.ledger import Ledger
from experiments.lines import command_line, read_lines
from experiments.quiet import quiet_median
from experiments.trials import run_trial
from lms.machine.emulated_link import LinkRates
from lms.storage.files import draft_of
from lms.units import MIB, format_bytes

__all__ = ["main"]

_NAME = "simulator_accuracy"
_FOLDER = Path("build") / "experiments" / _NAME
_MODELS = ("unet", "resnet", "transformer")
_COLOURS = dict(zip(_MODELS, ("#D55E00", "#0072B2", "#009E73"), strict=True))
_TITLES = {"unet": "3D U-Net", "resnet": "ResNet", "transformer": "transformer"}
_PEAK_CLAIM, _TIME_CLAIM = 0.10, 0.20
_WIDTH = 116  # columns of the terminal that the table takes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or draw.

    Args:
        arguments: The words after `python -m experiments.simulator_accuracy`.

    Returns:
        The exit status: 1 if a claim does not hold.
    """
    options = command_line(_NAME, __doc__, _add_settings).parse_args(
        sys.argv[1:] if arguments is None else arguments
    )
    if options.command == "draw":
        return _draw(options.results, options.figure)
    _run(options)
    return 0


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
    key: Mapping[str, Any],
    probe: Mapping[str, Any],
    settings: Mapping[str, int],
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


def _draw(results: Path, figure: Path) -> int:
    head, rows = read_lines(results)
    trained = [row for row in rows if row["error"] is None]
    table = Table(title="Predicted and measured", title_justify="left")
    table.add_column("model")
    names = ("memory", "peak", "measured", "", "step", "in turns", "measured", "")
    for name in (*names, "replans"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(_TITLES[row["model"]], *_cells(row))
    Console(width=_WIDTH).print(table)
    peaks = [abs(_peak_error(row)) for row in trained]
    times = [abs(_time_error(row)) for row in trained]
    holds = bool(trained) and len(trained) == len(rows)
    if not trained:
        print("All trials failed.")
        return 1
    for what, errors, claim in (
        ("peak", peaks, _PEAK_CLAIM),
        ("time", times, _TIME_CLAIM),
    ):
        within = sum(error <= claim for error in errors)
        holds = holds and within == len(errors)
        print(
            f"{what}: {within} of {len(errors)} within {claim:.0%}, median error "
            f"{statistics.median(errors):.1%}, largest {max(errors):.1%}"
        )
    promises = [abs(_promise_error(row)) for row in trained]
    within = sum(error <= _TIME_CLAIM for error in promises)
    print(
        f"the promise alone: {within} of {len(promises)} within {_TIME_CLAIM:.0%}, "
        f"median error {statistics.median(promises):.1%}, largest {max(promises):.1%}"
    )
    _plot(trained, figure, f"{head['machine']['processor']}, commit {head['commit']}")
    print(f"Figure: {figure}")
    return 0 if holds else 1


def _cells(row: Mapping[str, Any]) -> list[str]:
    memory = format_bytes(row["memory_bytes"])
    if row["error"] is not None:
        return [memory, "failed", "", "", "", "", "", "", ""]
    return [
        memory,
        format_bytes(row["predicted_peak_bytes"]),
        format_bytes(row["measured_peak_bytes"]),
        f"{_peak_error(row):+.1%}",
        f"{row['predicted_seconds']:.3f} s",
        f"{_seconds(row):.3f} s",
        f"{quiet_median(row):.3f} s",
        f"{_time_error(row):+.1%}",
        str(row["replans"]),
    ]


def _peak_error(row: Mapping[str, Any]) -> float:
    return row["predicted_peak_bytes"] / row["measured_peak_bytes"] - 1


def _seconds(row: Mapping[str, Any]) -> float:
    """Predicted from ops as fast as they were between the steps."""
    return statistics.median(row["predicted_seconds_in_turns"])


def _time_error(row: Mapping[str, Any]) -> float:
    return _seconds(row) / quiet_median(row) - 1


def _promise_error(row: Mapping[str, Any]) -> float:
    return row["predicted_seconds"] / quiet_median(row) - 1


def _plot(rows: Sequence[Mapping[str, Any]], path: Path, source: str) -> None:
    figure = Figure(figsize=(10.0, 5.2), dpi=150)
    FigureCanvasAgg(figure)
    figure.text(0.02, 0.94, "Steps, predicted and measured", fontsize=15, weight="bold")
    figure.text(
        0.02,
        0.02,
        "A CPU as the device, with an emulated link; each point is a model planned "
        f"into one memory. {source}",
        fontsize=8,
        color="#6B6B6B",
    )
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.08, right=0.97, top=0.83, bottom=0.17, wspace=0.25)
    _scatter(
        left,
        [
            (
                r["model"],
                r["predicted_peak_bytes"] / MIB,
                r["measured_peak_bytes"] / MIB,
            )
            for r in rows
        ],
        _PEAK_CLAIM,
        "peak memory (MiB)",
    )
    _scatter(
        right,
        [(r["model"], _seconds(r), quiet_median(r)) for r in rows],
        _TIME_CLAIM,
        "step (seconds)",
    )
    with draft_of(path) as draft:
        figure.savefig(draft, format="png")


def _scatter(
    axes: Any, points: Sequence[tuple[str, float, float]], claim: float, what: str
) -> None:
    largest = 1.08 * max(max(x, y) for _, x, y in points)
    line = [0.0, largest]
    axes.fill_between(
        line,
        [0.0, largest / (1 + claim)],
        [0.0, largest / (1 - claim)],
        color="#EDEDED",
        linewidth=0,
    )
    axes.plot(line, line, color="#6B6B6B", linewidth=1)
    for model in _MODELS:
        mine = [(x, y) for name, x, y in points if name == model]
        if mine:
            xs, ys = zip(*mine, strict=True)
            axes.scatter(
                xs, ys, color=_COLOURS[model], s=42, label=_TITLES[model], zorder=3
            )
    axes.set_xlim(0, largest)
    axes.set_ylim(0, largest)
    axes.set_xlabel(f"predicted {what}", fontsize=11)
    axes.set_ylabel("measured", fontsize=11)
    axes.set_title(f"grey: within {claim:.0%}", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=10, loc="lower right")


if __name__ == "__main__":
    raise SystemExit(main())
