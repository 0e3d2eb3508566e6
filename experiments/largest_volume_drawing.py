"""What `largest_volume` found: a table, a sentence, a figure. Reads results only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.finding_console import show_finding
from experiments.lines import read_lines
from experiments.plots import COLOURS, INK, calm, new_figure, save, source
from experiments.report_findings import Finding, Head, Rows
from experiments.shortening import shortened
from lms.units import format_bytes

__all__ = ["draw", "finding"]

_CLAIMED = 4.6  # times plain Keras's voxels
_TITLES = {"unet": "3D U-Net", "resnet": "ResNet", "transformer": "transformer"}
_GROWS = {"unet": "voxels", "resnet": "images", "transformer": "tokens"}
_NAMES = {
    "plain": "plain Keras",
    "remat": "RematScope",
    "grappler": "Grappler's recomputation",
    "threshold": "TFLMS's rule",
    "budget": "budget",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limit:
    """The largest size of one way.

    Args:
        way: Without a mode.
        mode: Of `RematScope`, or empty.
        size: The largest that trained; None if none did.
        predicted: The largest that is predicted to; None if none was, or asked for.
        peak: Measured at the largest.
        swapped: Bytes that left the device in each step there.
        times: Size over plain Keras's; voxels for the U-Net.
        reason: Why the next size did not train.
    """

    way: str
    mode: str
    size: int | None
    predicted: int | None
    peak: int | None
    swapped: int
    times: float
    reason: str


def draw(results: Path, path: Path) -> int:
    """Print and draw; the exit status is 1 if the claim does not hold."""
    head, rows = read_lines(results)
    console = show_finding(finding(head, rows))
    _plot(head, rows, path)
    console.print(f"Drawn: {path}", soft_wrap=True)
    limits = {limit.way: limit for limit in _limits("unet", rows)}
    if "budget" not in limits or "plain" not in limits:
        return 0
    holds = limits["budget"].times >= _CLAIMED
    console.print(
        f"{'Holds' if holds else 'Failed'}: {limits['budget'].times:.2f} times plain "
        f"Keras's voxels train with a budget, claimed are {_CLAIMED}.",
        style=None if holds else "red",
        highlight=False,
    )
    return 0 if holds else 1


def finding(_: Head, rows: Rows) -> Finding:
    """The sentence and the table."""
    columns = ["model", "way", "largest", "predicted", "times", "peak", "swapped out"]
    columns += ["what stops the next"]
    body: list[list[str]] = []
    parts: list[str] = []
    for model in _models(rows):
        memory = format_bytes(_memory(model, rows))
        limits = _limits(model, rows)
        body += [_cells(model, memory, limit) for limit in limits]
        best = {limit.way: limit for limit in limits if limit.size}
        said = [
            f"{best[way].times:.2f} times with {_NAMES[way]}"
            for way in ("remat", "grappler", "threshold", "budget")
            if way in best
        ]
        plain = best["plain"].size if "plain" in best else None
        parts.append(
            f"{_TITLES[model]}, in {memory}: plain Keras trains {plain}"
            f"{'^3' if model == 'unet' else ' ' + _GROWS[model]}; {', '.join(said)}"
        )
    text = "Largest size that trains, over plain Keras's. " + ". ".join(parts) + "."
    return text, ("The largest that trains", columns, body)


def _cells(model: str, memory: str, limit: _Limit) -> list[str]:
    cube = "^3" if model == "unet" else ""
    return [
        f"{_TITLES[model]}, {memory}",
        _NAMES[limit.way] + (f" ({limit.mode})" if limit.mode else ""),
        "none" if limit.size is None else f"{limit.size}{cube}",
        "-" if limit.predicted is None else f"{limit.predicted}{cube}",
        f"{limit.times:.2f}",
        "-" if limit.peak is None else format_bytes(limit.peak),
        format_bytes(limit.swapped) if limit.swapped else "-",
        limit.reason,
    ]


def _models(rows: Rows) -> list[str]:
    there = {row["model"] for row in rows if "memory_bytes" in row}
    return [model for model in _TITLES if model in there]


def _memory(model: str, rows: Rows) -> int:
    return next(
        r["memory_bytes"] for r in rows if r["model"] == model and "memory_bytes" in r
    )


def _limits(model: str, rows: Rows) -> list[_Limit]:
    mine = [row for row in rows if row["model"] == model]
    tried = [row for row in mine if row["kind"] == "training"]
    known = list(_SHORT)
    ways = sorted(
        {row["way"] for row in tried}, key=lambda way: known.index(way.split(":")[0])
    )
    plain = max(
        (r["size"] for r in tried if r["way"] == "plain" and not r["error"]), default=0
    )
    found = [_limit(model, way, mine, plain) for way in ways]
    modes = [r for r in mine if r["kind"] == "probe" and r["way"].startswith("remat")]
    if modes and all(row["error"] for row in modes):
        found.insert(1, _no_remat(modes))
    return found


def _limit(model: str, way: str, mine: Rows, plain: int) -> _Limit:
    of_way = [row for row in mine if row["way"] == way]
    trained = [r for r in of_way if r["kind"] == "training" and not r["error"]]
    best = max(trained, key=lambda row: row["size"], default=None)
    fits = [r["size"] for r in of_way if r["kind"] == "prediction" and not r["error"]]
    size = best["size"] if best else None
    name, _, mode = way.partition(":")
    power = 3 if model == "unet" else 1
    return _Limit(
        way=name,
        mode=mode,
        size=size,
        predicted=max(fits, default=None),
        peak=best["peak_bytes"] if best else None,
        swapped=best.get("report", {}).get("swapped_out_bytes", 0) if best else 0,
        times=(size / plain) ** power if size and plain else 0.0,
        reason=_reason(of_way, size or 0),
    )


def _no_remat(modes: Rows) -> _Limit:
    return _Limit(
        way="remat",
        mode="no mode",
        size=None,
        predicted=None,
        peak=None,
        swapped=0,
        times=0.0,
        reason=shortened(modes[0]["error"]),
    )


def _reason(of_way: Rows, size: int) -> str:
    """Of the smallest size above that failed."""
    failed = [
        r for r in of_way if r["kind"] == "training" and r["error"] and r["size"] > size
    ]
    if not failed:
        return ""
    first = min(failed, key=lambda row: row["size"])
    return f"{first['size']}: {shortened(first['error'])}"


def _plot(head: Head, rows: Rows, path: Path) -> None:
    models = _models(rows)
    width = 4.2 * len(models) + 1.4
    figure = new_figure(
        width,
        4.9,
        title="The largest that trains in one memory",
        note=(
            "Memory: 1.05 of plain Keras's peak at the base size; an emulated device. "
            f"Dotted: predicted. {source(head)}"
        ),
    )
    panels: Any = figure.subplots(1, len(models), squeeze=False)[0]
    figure.subplots_adjust(
        left=0.5 / width, right=1 - 0.15 / width, top=0.8, bottom=0.2, wspace=0.14
    )
    for axes, model in zip(panels, models, strict=True):
        _bars(axes, model, _limits(model, rows), _memory(model, rows))
    save(figure, path)


def _bars(axes: Any, model: str, limits: Sequence[_Limit], memory: int) -> None:
    calm(axes)
    cube = "³" if model == "unet" else ""
    top = max(limit.times for limit in limits)
    for place, limit in enumerate(limits):
        axes.bar(place, limit.times, 0.62, color=COLOURS[limit.way])
        nothing = "nothing\ntrains" if limit.mode != "no mode" else "does\nnot run"
        size = nothing if limit.size is None else f"{limit.size}{cube}"
        times = "" if limit.size is None else f"\n{limit.times:.2f} x"
        power = 3 if model == "unet" else 1
        predicted = 0.0
        if limit.predicted and limit.size:
            predicted = limit.times * (limit.predicted / limit.size) ** power
            axes.plot([place - 0.4, place + 0.4], [predicted] * 2, color=INK, ls=":")
        axes.annotate(
            size + times,
            (place, max(limit.times, predicted)),
            (0, 4),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=9,
            color=INK,
        )
    axes.set_ylim(0, 1.3 * top)
    axes.set_xlim(-0.6, len(limits) - 0.4)
    labels = [_SHORT[limit.way] for limit in limits]
    axes.set_xticks(range(len(limits)), labels, fontsize=9, color=INK)
    axes.tick_params(axis="x", length=0)
    axes.set_title(
        f"{_TITLES[model]}, {format_bytes(memory)}: {_GROWS[model]} over plain Keras's",
        loc="left",
        fontsize=10,
        color=INK,
    )


_SHORT: Mapping[str, str] = {
    "plain": "plain\nKeras",
    "remat": "Remat-\nScope",
    "grappler": "Grappler's\nrecompute",
    "threshold": "TFLMS's\nrule",
    "budget": "budget",
}
