"""What `true_size` found: a table, a sentence, the headline figure."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.finding_console import show_finding
from experiments.lines import read_lines
from experiments.plots import COLOURS, INK, calm, new_figure, save, source
from experiments.quiet import quiet_median
from experiments.report_findings import Finding, Head, Rows
from experiments.shortening import shortened
from lms.units import GIB, MIB, format_bytes, parse_size

__all__ = ["draw", "finding"]

_WAYS = {"plain": "plain Keras", "budget": "LMS"}


def draw(results: Path, path: Path) -> int:
    """Print and draw; the exit status is 1 if the claim does not hold."""
    head, rows = read_lines(results)
    console = show_finding(finding(head, rows))
    small, large = head["settings"]["sizes"]
    memory = _memory(head)
    plain = _training(rows, "plain", small, memory)
    refused = _training(rows, "plain", large, memory)
    planned = _training(rows, "budget", large, memory)
    if plain and planned and "curves" in planned:
        _plot(head, rows, path)
        console.print(f"Drawn: {path}", soft_wrap=True)
    holds = bool(
        plain
        and not plain["error"]
        and refused
        and refused["error"]
        and planned
        and not planned["error"]
    )
    console.print(
        f"{'Holds' if holds else 'Failed'}: {large}^3 trains with large model support "
        f"where {small}^3 trains plainly and {large}^3 does not.",
        style=None if holds else "red",
        highlight=False,
    )
    return 0 if holds else 1


def finding(head: Head, rows: Rows) -> Finding:
    """The sentence and the table."""
    small, large = head["settings"]["sizes"]
    memory = _memory(head)
    plain = _training(rows, "plain", small, memory)
    pace = _step(plain) / small**3 if plain and not plain["error"] else None
    trained = [r for r in rows if r["kind"] == "training"]
    columns = ["size", "way", "device", "voxels", "peak", "predicted", "swapped out"]
    columns += ["step", "step per voxel", "how it ended"]
    body = [_cells(row, small, pace) for row in trained]
    parts = [_main_part(rows, small, large, memory, pace)]
    least = _least(rows, large)
    if least:
        parts.append(f"the least memory in which {large}^3 trained is {least}")
    best = _largest(rows, memory)
    if best and best["size"] > large:
        parts.append(
            f"the largest that trained in {format_bytes(memory)} is {best['size']}^3, "
            f"{(best['size'] / small) ** 3:.2f} times the voxels"
        )
    text = ". ".join(f"{part[:1].upper()}{part[1:]}" for part in parts if part)
    return f"{text}.", ("Trainings", columns, body)


def _main_part(
    rows: Rows, small: int, large: int, memory: int, pace: float | None
) -> str:
    planned = _training(rows, "budget", large, memory)
    refused = _training(rows, "plain", large, memory)
    if planned is None or planned["error"] or pace is None:
        return f"{large}^3 was not trained in {format_bytes(memory)}"
    cost = _step(planned) / (pace * large**3)
    ends = "runs out of memory" if refused and refused["error"] else "trains"
    return (
        f"In {format_bytes(memory)}, where {small}^3 trains plainly and {large}^3 "
        f"{ends}, {large}^3 trains with large model support: "
        f"{format_bytes(planned['peak_bytes'])} measured, a step of "
        f"{_step(planned):.1f} s, {cost:.2f} times as long per voxel as one of "
        f"{small}^3"
    )


def _cells(row: Mapping[str, Any], small: int, pace: float | None) -> list[str]:
    words = [f"{row['size']}^3", _WAYS[row["way"]], format_bytes(row["memory_bytes"])]
    words.append(f"{(row['size'] / small) ** 3:.2f}")
    if row["error"]:
        return [*words, "", "", "", "", "", shortened(row["error"])]
    report = row.get("report", {})
    predicted, swapped = (
        report.get("predicted_peak_bytes"),
        report.get("swapped_out_bytes"),
    )
    scaled = f"{_step(row) / (pace * row['size'] ** 3):.2f}" if pace else "-"
    again = report.get("replans", 0)
    return [
        *words,
        format_bytes(row["peak_bytes"]),
        "-" if predicted is None else format_bytes(predicted),
        format_bytes(swapped) if swapped else "-",
        f"{_step(row):.1f} s",
        scaled,
        f"trained, planned anew {again} times" if again else "trained",
    ]


def _step(row: Mapping[str, Any]) -> float:
    """The median without the first, which initialises."""
    return quiet_median(row, skipped=1)


def _memory(head: Head) -> int:
    return parse_size(head["settings"]["memory"]) // MIB * MIB


def _training(
    rows: Rows, way: str, size: int, memory: int, kind: str = "training"
) -> Mapping[str, Any] | None:
    for row in rows:
        if (row["kind"], row["way"], row["size"], row["memory_bytes"]) == (
            kind,
            way,
            size,
            memory,
        ):
            return row
    return None


def _least(rows: Rows, size: int) -> str:
    trained = [
        row["memory_bytes"]
        for row in rows
        if (row["kind"], row["way"], row["size"]) == ("training", "budget", size)
        and not row["error"]
    ]
    return format_bytes(min(trained)) if len(trained) > 1 else ""


def _largest(rows: Rows, memory: int) -> Mapping[str, Any] | None:
    trained = [
        row
        for row in rows
        if row["kind"] == "training" and row["memory_bytes"] == memory
        if not row["error"]
    ]
    return max(trained, key=lambda row: row["size"], default=None)


def _plot(head: Head, rows: Rows, path: Path) -> None:
    """Memory over one step: the smaller size plainly, the larger one planned."""
    small, large = head["settings"]["sizes"]
    memory = _memory(head)
    plain = _training(rows, "plain", small, memory)
    planned = _training(rows, "budget", large, memory)
    predicted = _training(rows, "plain", small, memory, "prediction")
    assert plain
    assert planned
    times = (large / small) ** 3
    figure = new_figure(
        10.0,
        5.6,
        title=f"{large}³ in a memory for {small}³: {times:.2f} times the voxels",
        note=(
            "3D U-Net of the case study, batch 1, float32. Curves predicted, peaks of "
            f"the allocator measured; the device is emulated. {source(head)}"
        ),
    )
    axes, host = figure.subplots(
        2, 1, sharex=True, height_ratios=(3.2, 1), squeeze=True
    )
    figure.subplots_adjust(left=0.075, right=0.785, top=0.88, bottom=0.135, hspace=0.1)
    base = planned["report"]["persistent_bytes"]
    curves = planned["curves"]
    _curve(axes, curves["unplanned"], base, "#BBBBBB", dashed=True)
    if predicted and "curves" in predicted:
        held = predicted["persistent_bytes"]
        _curve(axes, predicted["curves"]["unplanned"], held, COLOURS["threshold"])
        top = _peak(plain)
        _beside(
            axes, 0.55 * memory, f"{small}³, plain Keras\n{top}", COLOURS["threshold"]
        )
    _curve(axes, curves["planned"], base, COLOURS["budget"])
    unplanned = max(curves["unplanned"]) + base
    _beside(
        axes,
        0.93 * unplanned,
        f"{large}³ without a plan:\n{_gib(unplanned)}",
        "#8A8A8A",
    )
    axes.axhline(memory / GIB, color=INK, linewidth=1.4, linestyle=(0, (6, 3)))
    _beside(axes, memory, f"device memory\n{_gib(memory)}", INK)
    _beside(axes, 0.22 * memory, f"{large}³, LMS\n{_peak(planned)}", COLOURS["budget"])
    axes.set_ylim(0, 1.08 * max(unplanned, memory) / GIB)
    axes.set_ylabel("on the device (GiB)", color=INK)
    _curve(host, curves["host"], 0, COLOURS["budget"])
    _beside(
        host,
        0.5 * max(curves["host"]),
        f"{large}³, on the host\nat most {_gib(max(curves['host']))}",
        COLOURS["budget"],
    )
    host.set_ylim(0, 1.1 * max(curves["host"]) / GIB)
    host.set_ylabel("host (GiB)", color=INK)
    host.set_xlabel("share of the step's ops", color=INK)
    for part in (axes, host):
        calm(part)
        part.set_xlim(_begin(curves["unplanned"]), 1)
    save(figure, path)


def _curve(
    axes: Any, values: Sequence[int], base: int, colour: str, *, dashed: bool = False
) -> None:
    places = [i / max(1, len(values) - 1) for i in range(len(values))]
    heights = [(value + base) / GIB for value in values]
    if not dashed:
        axes.fill_between(places, heights, color=colour, alpha=0.12, linewidth=0)
    style = (0, (3, 1.5)) if dashed else "-"
    axes.plot(places, heights, color=colour, linewidth=1.3, linestyle=style)


def _begin(curve: Sequence[int]) -> float:
    """Where to begin: a step starts with small ops that hold next to nothing."""
    small = max(curve) / 20
    first = next(i for i, size in enumerate(curve) if size >= small)
    return max(0.0, first / len(curve) - 0.01)


def _beside(axes: Any, size: float, text: str, colour: str) -> None:
    axes.annotate(
        text,
        xy=(1.0, size / GIB),
        xycoords=("axes fraction", "data"),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        fontsize=10,
        color=colour,
        annotation_clip=False,
    )


def _peak(row: Mapping[str, Any]) -> str:
    return f"measured peak {_gib(row['peak_bytes'])}" if not row["error"] else "failed"


def _gib(size: int) -> str:
    return f"{size / GIB:.3g} GiB"
