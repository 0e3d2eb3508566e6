"""What the demo claims, checked; its table, its figure and its result file.

Everything here reads results only. The order of trials is the demo's: plain Keras with
enough memory, plain Keras with half of it, the callback with half of it, the callback
with about the least that works.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from experiments.runner import OUT_OF_MEMORY, Trial
from lms.report.memory_figure import MemoryCurve, draw_memory
from lms.units import format_bytes
from profiling.record import circumstances, write_json

__all__ = ["draw", "failed_claims", "print_table", "save"]

_SAME = ("loss", "dice", "weights_sha256")


def failed_claims(trials: Sequence[Trial]) -> list[str]:
    """What did not come out as claimed; empty if all did."""
    plain, *others = trials
    if plain.result is None:
        return [f"{plain.name} did not train: {plain.error}"]
    failed = []
    refused, *planned = others
    if refused.result is not None:
        failed.append(f"{refused.name} trained: it does not run out of memory here")
    elif OUT_OF_MEMORY not in (refused.error or ""):
        failed.append(f"{refused.name} did not run out of memory: {refused.error}")
    for trial in planned:
        failed += _failed_of(trial, plain.result)
    return failed


def _failed_of(trial: Trial, plain: Mapping[str, Any]) -> list[str]:
    if trial.result is None:
        return [f"{trial.name} did not train: {trial.error}"]
    failed = [
        f"{trial.name} has another {key.partition('_')[0]} than plain Keras"
        for key in _SAME
        if trial.result[key] != plain[key]
    ]
    report, peak = trial.result["report"], trial.result["peak_bytes"]
    if trial.memory is not None and peak > trial.memory:
        failed.append(f"{trial.name} used {format_bytes(peak)}, more than there is")
    if report["swap_count"] == 0:
        failed.append(f"{trial.name} swapped nothing: it fits by itself")
    return failed


def print_table(trials: Sequence[Trial], console: Console) -> None:
    """One column for each trial; all of them but the second trained."""
    table = Table(
        title="One training step",
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("")
    for trial in trials:
        table.add_column(trial.name.replace(", ", "\n"), justify="right")
    for label, cell in _ROWS:
        table.add_row(label, *(cell(trial) for trial in trials))
    plain = trials[0].result or {}
    console.print()
    console.print(table)
    console.print(
        f"After {len(plain['loss'])} epochs every loss, metric, weight and optimizer "
        "slot is equal bit for bit.\nPeaks and persistent bytes count all that is in "
        "the device's memory, after the first step.",
        soft_wrap=True,
    )


def _memory(trial: Trial) -> str:
    return "enough" if trial.memory is None else format_bytes(trial.memory)


def _measured_peak(trial: Trial) -> str:
    if trial.result is None:
        return "out of memory"
    return format_bytes(trial.result["peak_bytes"])


def _result(key: str, write: Callable[[Any], str]) -> Callable[[Trial], str]:
    return lambda trial: "-" if trial.result is None else write(trial.result[key])


def _report(key: str) -> Callable[[Trial], str]:
    def cell(trial: Trial) -> str:
        report = (trial.result or {}).get("report")
        return "-" if report is None else format_bytes(report[key])

    return cell


_ROWS: tuple[tuple[str, Callable[[Trial], str]], ...] = (
    ("device memory", _memory),
    ("measured peak", _measured_peak),
    ("predicted peak", _report("predicted_peak_bytes")),
    ("unplanned peak", _report("unplanned_peak_bytes")),
    ("persistent", _report("persistent_bytes")),
    ("lower bound", _report("lower_bound_bytes")),
    ("swapped out", _report("swapped_out_bytes")),
    ("swapped in", _report("swapped_in_bytes")),
    ("step time", _result("median_step_seconds", "{:.2f} s".format)),
    ("loss", _result("loss", lambda loss: f"{loss[-1]:.6f}")),
)


def draw(trials: Sequence[Trial], path: Path) -> None:
    """Memory over a step of plain Keras, and of the callback in half of the memory."""
    planned = trials[2]
    assert planned.result is not None
    report, timeline = planned.result["report"], planned.result["timeline"]
    curves = [
        MemoryCurve(label="plain Keras", device=tuple(timeline["unplanned"]["device"])),
        MemoryCurve(
            label="the callback",
            device=tuple(timeline["planned"]["device"]),
            host=tuple(timeline["planned"]["host"]),
        ),
    ]
    measured = format_bytes(planned.result["peak_bytes"])
    plain = format_bytes((trials[0].result or {})["peak_bytes"])
    draw_memory(
        curves,
        path,
        title="A 3D U-Net trains in half of the memory that its step takes",
        note=(
            "Predicted, by sizes of tensors. "
            f"Measured by the allocator: plain Keras {plain}, the callback {measured}."
        ),
        persistent=timeline["persistent_bytes"],
        budget=planned.memory,
        budget_label="device memory",
        lower_bound=report["lower_bound_bytes"],
    )


def save(
    trials: Sequence[Trial],
    settings: Mapping[str, Any],
    failures: Sequence[str],
    path: Path,
) -> None:
    """Write every number, and under which circumstances it came about."""
    readable = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in settings.items()
    }
    write_json(
        path,
        circumstances()
        | {
            "settings": readable,
            "failed_claims": list(failures),
            "trials": [asdict(trial) for trial in trials],
        },
    )
