"""Trains a model that does not fit the card: `make demo`.

    subjects on disk --> arrays --> four trainings, each in a process and a card of
        its own --> one table, one figure, results.json

    plain Keras, enough memory      shows its peak and its numbers
    plain Keras, half of that       ends in TensorFlow's own out-of-memory error
    the callback, half of that      trains, with the same numbers
    the callback, a quarter of it   trains, with the same numbers

The card is emulated: TensorFlow's own GPU runtime, whose allocator has a hard limit. Op
determinism is on, so "the same" means bit for bit. The last three run at once, so times
are not compared.
"""

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from experiments.drawing import draw_panels
from experiments.question import COLOURS, Panel, Series
from experiments.runner import OUT_OF_MEMORY, Book, Trial, measured
from experiments.stats import Row, Rows, ending, trained
from lms.emulation.build import built
from lms.units import MIB, format_bytes
from profiling.record import circumstances, write_json
from unet3d.data import prepare, read_subject
from unet3d.files import write_arrays
from unet3d.synthesis import synthesize

__all__ = ["failed_claims", "main"]

_NAMES = (
    "plain Keras, enough memory",
    "plain Keras, half of it",
    "the callback, half of it",
    "the callback, a quarter of it",
)
_SIZE, _FILTERS, _DEPTH = 48, 8, 3  # voxels along an axis; channels; levels
_SUBJECTS, _STEPS = 2, 4
_SAME = {"losses": "losses", "sha256": "weights"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; the exit status is 0 if all claims hold."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, default=Path("build/demo"), help="place")
    output: Path = parser.parse_args(arguments).output
    console = Console(soft_wrap=True)
    started = time.perf_counter()
    output.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as pool:
        pool.submit(built)  # compile the card meanwhile
        arrays = _arrays(output, console)
    rows = _rows(output, arrays, console)
    failures = failed_claims(rows)
    results, figure = output / "results.json", output / "memory.png"
    write_json(results, circumstances() | {"failed_claims": failures, "trials": rows})
    if not failures:
        _print_table(rows, console)
        _draw(rows, figure)
        console.print(f"Memory over a step, drawn: {figure}")
    for failure in failures:
        console.print(f"Failed: {failure}", style="red", markup=False)
    console.print(f"All numbers: {results}")
    console.print(f"{time.perf_counter() - started:.0f} s in all")
    return 1 if failures else 0


def _arrays(output: Path, console: Console) -> Path:
    """Make the network's arrays of synthetic subjects, or take an earlier run's."""
    path = output / f"arrays-{_SIZE}-{_SUBJECTS}.npz"
    if not path.exists():
        with console.status(f"Making {_SUBJECTS} subjects"):
            made = synthesize(output / "subjects", subjects=_SUBJECTS, seed=0)
            pairs = [prepare(read_subject(each), _SIZE) for each in made]
            volumes, regions = (np.stack(part) for part in zip(*pairs, strict=True))
            write_arrays(path, {"x": volumes, "y": regions})
    console.print(f"{_SUBJECTS} subjects of {_SIZE}^3 are in {path}")
    return path


def _rows(output: Path, arrays: Path, console: Console) -> list[Row]:
    """Train four times; each limit is a part of plain Keras's peak."""
    book = Book(path=output / "trials.jsonl", folder=output)
    shape = {"path": str(arrays.resolve()), "filters": _FILTERS, "depth": _DEPTH}
    trial = Trial(model="scans", shape=shape, steps=_STEPS, curves=True)

    def train(name: str, way: str, memory: int | None) -> Row:
        asked = replace(trial, way=way, memory=memory)
        row = {"name": name, **measured(asked, book, f"{way}-{memory}")}
        ended = row["error"] or f"{row['seconds']:.0f} s"
        console.print(f"{name}: {ended}", markup=False)
        return row

    with console.status("Training"), ThreadPoolExecutor() as pool:
        plain = train(_NAMES[0], "plain", None)
        if not trained(plain):
            return [plain]
        half, quarter = (plain["peak_bytes"] // n // MIB * MIB for n in (2, 4))
        ways, memories = ("plain", "callback", "callback"), (half, half, quarter)
        return [plain, *pool.map(train, _NAMES[1:], ways, memories)]


def failed_claims(rows: Rows) -> list[str]:
    """Return the claims that do not hold."""
    plain = rows[0]
    if not trained(plain):
        return [f"{plain['name']} did not train: {plain['error']}"]
    _, refused, *planned = rows
    name, error = refused["name"], refused["error"]
    failed = [one for row in planned for one in _failed_of(row, plain)]
    if trained(refused):
        failed.append(f"{name} trained: it does not run out of memory here")
    elif OUT_OF_MEMORY not in (error or ""):
        failed.append(f"{name} did not run out of memory: {error}")
    return failed


def _failed_of(row: Row, plain: Row) -> list[str]:
    name = row["name"]
    if not trained(row):
        return [f"{name} did not train: {ending(row)}"]
    other = [_SAME[key] for key in _SAME if row[key] != plain[key]]
    failed = [f"{name} has other {what} than plain Keras" for what in other]
    if row["peak_bytes"] > row["memory_bytes"]:
        used = format_bytes(row["peak_bytes"])
        failed.append(f"{name} used {used}, more than its limit")
    if not row["report"]["swap_count"] and not row["report"]["recomputed_ops"]:
        failed.append(f"{name} moved and repeated nothing: it fits by itself")
    return failed


def _cells(row: Row) -> dict[str, str]:
    report = row.get("report") or {}
    sizes = {
        "device memory": (row["memory_bytes"], "enough"),
        "measured peak": (row.get("peak_bytes"), "out of memory"),
        "predicted peak": (report.get("predicted_peak_bytes"), "-"),
        "swapped out": (report.get("swapped_out_bytes"), "-"),
        "swapped in": (report.get("swapped_in_bytes"), "-"),
    }
    return {n: format_bytes(size) if size else e for n, (size, e) in sizes.items()}


def _print_table(rows: Rows, console: Console) -> None:
    """Print a column for each training; all but the second have trained."""
    table = Table("", title="One training step", box=SIMPLE_HEAD, title_justify="left")
    for row in rows:
        table.add_column(row["name"].replace(", ", "\n"), justify="right")
    columns = [_cells(row) for row in rows]
    for label in columns[0]:
        table.add_row(label, *(column[label] for column in columns))
    console.print(table)
    console.print(
        f"After {len(rows[0]['losses'])} steps every loss, weight and optimizer slot "
        "is equal bit for bit.\nPeaks count all that is in the device's memory, after "
        "the first step."
    )


def _draw(rows: Rows, path: Path) -> None:
    """Draw memory over a step of plain Keras, and of the callback in half."""
    planned, report = rows[2], rows[2]["report"]
    size, always = planned["memory_bytes"], report["persistent_bytes"]
    curves = planned["curves"]
    names = ("plain", "planned", "host")
    ops: dict[str, int] = dict(zip(names, curves["ops"], strict=True))

    def line(label: str, name: str, way: str, above: int = 0) -> Series:
        values, last = curves[name], max(1, len(curves[name]) - 1)
        text = f"{label}: {format_bytes(max(values) + above)}"
        points = [
            (i * ops[name] / last, (one + above) / MIB) for i, one in enumerate(values)
        ]
        colour = COLOURS[way]
        return Series(points=points, colour=colour, label=text, marker="", line="-")

    lines = [
        line("plain Keras, at most", "plain", "plain", always),
        line("the callback, at most", "planned", "callback", always),
    ]
    moved = [line("swapped-out tensors, at most", "host", "callback")]
    least = report["lower_bound_bytes"] + always
    own, ours = (format_bytes(row["peak_bytes"]) for row in (rows[0], planned))
    device = f"on the device; dashed: its {format_bytes(size)}; no plan's peak can be "
    device += f"below {format_bytes(least)}, the largest op and persistent tensors"
    x, y = "ops of the step so far, in the order of execution", "MiB, predicted"
    draw_panels(
        [
            [Panel(title=device, x=x, y=y, series=lines, level=size / MIB)],
            [Panel(title="on the host", x=x, y=y, series=moved)],
        ],
        path,
        title="A 3D U-Net in half of the memory that its step takes: predicted curves",
        note=f"Peaks that the allocator measured: plain Keras {own}, the callback "
        f"{ours}. Plain Keras's step and the planned one have other ops and orders.",
    )


if __name__ == "__main__":
    raise SystemExit(main())
