"""A model that does not fit, trained: `make demo`.

    subjects on disk --> arrays --> four trainings, each in a process and a card of
        its own --> one table, one figure, results.json

    plain Keras, enough memory      how much it takes, how long, and which numbers
    plain Keras, half of that       ends in TensorFlow's own out-of-memory error
    the callback, half of that      trains, with the same numbers
    the callback, a quarter of it   trains, with the same numbers

The card is emulated: TensorFlow's own GPU runtime, whose allocator has a hard limit. Op
determinism is on, so "the same" means bit for bit. Known weakness: kernels and copies
take the time of the machine's cores. Step times say nothing of a GPU's.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from experiments.runner import OUT_OF_MEMORY, Book, Row, Trial, measured, trained
from experiments.subjects import step_of
from lms.report.memory_figure import MemoryCurve, draw_memory
from lms.storage.files import write_arrays
from lms.units import MIB, format_bytes
from profiling.record import circumstances, write_json
from unet3d.data import prepare, read_subject
from unet3d.synthesis import synthesize

__all__ = ["failed_claims", "main"]

_NAMES = (
    "plain Keras, enough memory",
    "plain Keras, half of it",
    "the callback, half of it",
    "the callback, a quarter of it",
)
_SAME = {"losses": "losses", "sha256": "weights"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo.

    Args:
        arguments: The words after `python -m experiments.demo`.

    Returns:
        The exit status: 0 if everything that the demo claims came out so.
    """
    options = _parser().parse_args(arguments)
    console = Console(soft_wrap=True)
    started = time.perf_counter()
    options.output.mkdir(parents=True, exist_ok=True)
    rows = _rows(options, _arrays(options, console), console)
    failures = failed_claims(rows)
    results, figure = options.output / "results.json", options.output / "memory.png"
    told = {"failed_claims": failures, "trials": rows}
    write_json(results, circumstances() | told)
    if not failures:
        _print_table(rows, console)
        _draw(rows, figure)
        console.print(f"Memory over a step, drawn: {figure}")
    for failure in failures:
        console.print(f"Failed: {failure}", style="red", markup=False)
    console.print(f"All numbers: {results}")
    console.print(f"{time.perf_counter() - started:.0f} s in all")
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.demo",
        description="Train what does not fit, with plain Keras and the callback.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--output", type=Path, default=Path("build/demo"), help="folder to fill"
    )
    parser.add_argument("--size", type=int, default=48, help="voxels along an axis")
    parser.add_argument("--filters", type=int, default=8, help="of the top level")
    parser.add_argument("--depth", type=int, default=4, help="levels of the network")
    parser.add_argument("--subjects", type=int, default=2, help="to make and train on")
    parser.add_argument("--steps", type=int, default=8, help="of each training")
    parser.add_argument("--seed", type=int, default=0, help="of subjects")
    return parser


def _arrays(options: Any, console: Console) -> Path:
    """Subjects on disk as the network's arrays; those of an earlier run are taken."""
    sizes = (options.size, options.subjects, options.seed)
    path = options.output / f"arrays-{'-'.join(map(str, sizes))}.npz"
    if not path.exists():
        with console.status(f"Making {options.subjects} subjects"):
            folder = options.output / f"subjects-seed{options.seed}"
            made = synthesize(folder, subjects=options.subjects, seed=options.seed)
            pairs = [prepare(read_subject(each), options.size) for each in made]
            volumes, regions = (np.stack(part) for part in zip(*pairs, strict=True))
            write_arrays(path, {"x": volumes, "y": regions})
    console.print(f"{options.subjects} subjects of {options.size}^3 are in {path}")
    return path


def _rows(options: Any, arrays: Path, console: Console) -> list[dict[str, Any]]:
    """Each limit follows from what the trainings before it measured."""
    book = Book(path=options.output / "trials.jsonl", folder=options.output)
    shape = {"filters": options.filters, "depth": options.depth}
    trial = Trial(
        data=str(arrays.resolve()), shape=shape, steps=options.steps, curves=True
    )
    rows: list[dict[str, Any]] = []

    def train(way: str, memory: int | None) -> Row:
        name = _NAMES[len(rows)]
        with console.status(name):
            asked = replace(trial, way=way, memory=memory)
            row = {"name": name, **measured(asked, book, f"{way}-{memory}")}
        rows.append(row)
        ended = row["error"] or f"{row['seconds']:.0f} s"
        console.print(f"{name}: {ended}", markup=False)
        return row

    plain = train("plain", None)
    if trained(plain):
        half, quarter = (plain["peak_bytes"] // n // MIB * MIB for n in (2, 4))
        train("plain", half)
        train("callback", half)
        train("callback", quarter)
    return rows


def failed_claims(rows: Sequence[Row]) -> list[str]:
    """Claims that did not hold; empty if all did."""
    plain, *others = rows
    if not trained(plain):
        return [f"{plain['name']} did not train: {plain['error']}"]
    refused, *planned = others
    failed: list[str] = []
    if trained(refused):
        failed.append(f"{refused['name']} trained: it does not run out of memory here")
    elif OUT_OF_MEMORY not in (refused["error"] or ""):
        text = f"{refused['name']} did not run out of memory: {refused['error']}"
        failed.append(text)
    for row in planned:
        failed += _failed_of(row, plain)
    return failed


def _failed_of(row: Row, plain: Row) -> list[str]:
    name = row["name"]
    if not trained(row):
        return [f"{name} did not train: {row['error'] or row['refused']['error']}"]
    failed = [
        f"{name} has other {_SAME[key]} than plain Keras"
        for key in _SAME
        if row[key] != plain[key]
    ]
    peak = row["peak_bytes"]
    if peak > row["memory_bytes"]:
        failed.append(f"{name} used {format_bytes(peak)}, more than there is")
    if not row["report"]["swap_count"] and not row["report"]["recomputed_ops"]:
        failed.append(f"{name} moved and repeated nothing: it fits by itself")
    return failed


def _report(key: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        report = row.get("report")
        return "-" if report is None else format_bytes(report[key])

    return cell


def _memory(row: Row) -> str:
    size = row["memory_bytes"]
    return "enough" if size is None else format_bytes(size)


def _peak(row: Row) -> str:
    return format_bytes(row["peak_bytes"]) if trained(row) else "out of memory"


_CELLS: Mapping[str, Callable[[Row], str]] = {
    "device memory": _memory,
    "measured peak": _peak,
    "predicted peak": _report("predicted_peak_bytes"),
    "unplanned peak": _report("unplanned_peak_bytes"),
    "persistent": _report("persistent_bytes"),
    "swapped out": _report("swapped_out_bytes"),
    "swapped in": _report("swapped_in_bytes"),
    "step time": lambda row: f"{step_of(row):.2f} s" if trained(row) else "-",
    "last loss": lambda row: (
        f"{float.fromhex(row['losses'][-1]):.6f}" if trained(row) else "-"
    ),
}


def _print_table(rows: Sequence[Row], console: Console) -> None:
    """One column for each training; all of them but the second trained."""
    table = Table(title="One training step", box=SIMPLE_HEAD, title_justify="left")
    table.add_column("")
    for row in rows:
        table.add_column(row["name"].replace(", ", "\n"), justify="right")
    for label, cell in _CELLS.items():
        table.add_row(label, *map(cell, rows))
    console.print(table)
    console.print(
        f"After {len(rows[0]['losses'])} steps every loss, weight and optimizer slot "
        "is equal bit for bit.\nPeaks and persistent bytes count all that is in the "
        "device's memory, after the first step."
    )


def _draw(rows: Sequence[Row], path: Path) -> None:
    """Memory over a step of plain Keras, and of the callback in half of the memory."""
    planned, curves = rows[2], rows[2]["curves"]
    report = planned["report"]
    measured_peaks = [format_bytes(row["peak_bytes"]) for row in (rows[0], planned)]
    drawn = [
        MemoryCurve(label="plain Keras", device=tuple(curves["plain"])),
        MemoryCurve(
            label="the callback",
            device=tuple(curves["planned"]),
            host=tuple(curves["host"]),
        ),
    ]
    draw_memory(
        drawn,
        path,
        title="A 3D U-Net trains in half of the memory that its step takes",
        note="Predicted, by sizes of tensors. Measured by the allocator: plain Keras "
        f"{measured_peaks[0]}, the callback {measured_peaks[1]}.",
        persistent=report["persistent_bytes"],
        budget=planned["memory_bytes"],
        budget_label="device memory",
        lower_bound=report["lower_bound_bytes"],
    )


if __name__ == "__main__":
    raise SystemExit(main())
