"""A table and a figure of what trials found, from the result file alone.

Left: steps in the memory that 144^3 just fits in, over steps in all of the device's.
Right: peaks, measured over predicted.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.gpu_validation.catalogue import PARTS
from experiments.gpu_validation.claims import (
    failed_parts,
    judge_rows,
    overheads,
    predictions,
)
from experiments.ledger import read_lines
from lms.units import format_bytes

__all__ = ["draw"]

_WORDS = {True: "holds", False: "fails", None: "open"}


def draw(results: Path, figure: Path | None) -> int:
    """Print the tables, draw the figure where matplotlib is.

    Args:
        results: The file that `run` wrote.
        figure: A PNG file; None puts it beside the results.

    Returns:
        The exit status: 1 if a part failed.
    """
    head, rows = read_lines(results)
    console = Console(width=130)
    console.print(_trials(rows, _where(head, rows)))
    claims = judge_rows(rows)
    table = Table(title="What was claimed", title_justify="left")
    for name in ("part", "claim", "", "found"):
        table.add_column(name)
    for claim in claims:
        words = (PARTS[claim.part], claim.text, _WORDS[claim.holds], claim.found)
        table.add_row(*words)
    console.print(table)
    path = figure or results.with_name("figure.png")
    try:
        _plot(rows, _where(head, rows), path)
    except ImportError:
        console.print("No figure: matplotlib is missing here.")
    else:
        console.print(f"Figure: {path}")
    return 1 if failed_parts(rows, claims) else 0


def _where(head: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """On what it was measured."""
    machine = next((row for row in rows if row["name"] == "machine"), {})
    gpus = [str(gpu.get("device_name")) for gpu in machine.get("gpus") or ()]
    name = gpus[0] if gpus else "a rehearsal on a CPU"
    built = machine.get("built") or {}
    versions = [f"TensorFlow {head['versions']['tensorflow']}"]
    versions += [
        f"{name} {built[key]}"
        for name, key in (("CUDA", "cuda_version"), ("cuDNN", "cudnn_version"))
        if key in built
    ]
    return f"{name}; {', '.join(versions)}; commit {head['commit']}"


def _trials(rows: Sequence[Mapping[str, Any]], where: str) -> Table:
    table = Table(title=where, title_justify="left")
    table.add_column("part")
    table.add_column("trial")
    for name in ("memory", "ended", "peak", "predicted", "step", "predicted", "out"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(PARTS[row["part"]], row["name"], *_cells(row))
    return table


def _cells(row: Mapping[str, Any]) -> list[str]:
    report = row.get("report") or {}
    seconds = row.get("median_seconds") or (row.get("median") or {}).get("seconds")
    memory = (row.get("settings") or {}).get("budget") or row.get("memory_bytes")
    return [
        _size(memory),
        row["outcome"],
        _size(row.get("peak_bytes")),
        _size(report.get("predicted_peak_bytes")),
        "" if seconds is None else f"{seconds:.3f} s",
        _seconds(report.get("predicted_seconds")),
        _size(report.get("swapped_out_bytes")),
    ]


def _size(count: int | None) -> str:
    return "" if count is None else format_bytes(count)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f} s"


def _plot(rows: Sequence[Mapping[str, Any]], where: str, path: Path) -> None:
    from experiments.plots import COLOURS, INK, MUTED, calm, new_figure, save

    gpu = any(row["name"] == "machine" and row.get("gpus") for row in rows)
    title = "Swapping on a GPU" if gpu else "A rehearsal: these numbers say nothing"
    figure = new_figure(10.0, 5.0, title=title, note=where)
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.08, right=0.97, top=0.84, bottom=0.17, wspace=0.3)
    for axes in (left, right):
        calm(axes)
    done = {row["name"]: row for row in rows if row["outcome"] == "done"}
    ratios = overheads(done)
    names = [name.replace(" ", "³\n", 1) for name, _ in ratios]
    left.bar(names, [ratio for _, ratio in ratios], color=COLOURS["budget"])
    left.tick_params(axis="x", labelsize=8)
    left.axhline(1.1, color=INK, linewidth=1, linestyle=(0, (6, 3)))
    left.set_ylabel("step with support over step without")
    errors = [(n, e[0]) for n, row in done.items() if (e := predictions(row))]
    right.axvline(0.0, color=MUTED, linewidth=1)
    right.barh(
        [n for n, _ in errors], [100 * e for _, e in errors], color=COLOURS["budget"]
    )
    right.set_xlabel("predicted peak over measured, %")
    right.tick_params(axis="y", labelsize=7)
    save(figure, path)
