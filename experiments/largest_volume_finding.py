"""The finding of `largest_volume`: sentences, a table, a goal, a figure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.charts import Bar, Panel, draw_panels
from experiments.ledger import Head, Rows
from experiments.plots import COLOURS, source
from experiments.question import Finding, shortened
from experiments.servers import PUBLISHED_LARGER
from lms.units import format_bytes

__all__ = ["finding", "goals", "plot"]

_LEAST = 4.6  # times plain Keras's voxels
_TITLES = {"unet": "3D U-Net", "resnet": "ResNet", "transformer": "transformer"}
_GROWS = {"unet": "voxels", "resnet": "images", "transformer": "tokens"}
# Names in the table, and in the figure.
_WAYS = {
    "plain": ("plain Keras", "plain\nKeras"),
    "remat": ("RematScope", "Remat-\nScope"),
    "grappler": ("Grappler's recomputation", "Grappler's\nrecompute"),
    "by_hand": ("blocks by hand", "blocks\nby hand"),
    "mixed": ("mixed precision", "mixed\nprecision"),
    "threshold": ("IBM's rule", "IBM's\nrule"),
    "serialised": ("IBM's rule, serialised", "IBM's rule,\nserialised"),
    "budget": ("the callback", "the\ncallback"),
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
        chosen: Knobs of IBM's rule there.
        times: Size over plain Keras's; voxels for the U-Net.
        reason: Why the next size did not train.
    """

    way: str
    mode: str
    size: int | None
    predicted: int | None
    peak: int | None
    swapped: int
    chosen: str
    times: float
    reason: str


def finding(_: Head, rows: Rows) -> Finding:
    """The sentences and the table."""
    columns = ["model", "way", "largest", "predicted", "times", "peak", "swapped out"]
    columns += ["what stops the next"]
    body: list[list[str]] = []
    best: list[dict[str, _Limit]] = []
    said: list[str] = []
    for model in _models(rows):
        memory = format_bytes(_memory(model, rows))
        limits = _limits(model, rows)
        body += [_cells(model, memory, limit) for limit in limits]
        best.append({limit.way: limit for limit in limits if limit.size})
        said.append(_said(model, memory, best[-1]))
    text = f"{' '.join(said)} {PUBLISHED_LARGER} {_others(best)}"
    return text.rstrip(), ("The largest that trains", columns, body)


def _said(model: str, memory: str, best: Mapping[str, _Limit]) -> str:
    cube, grows = ("^3", "") if model == "unet" else ("", f" {_GROWS[model]}")
    reached = [
        f"{_WAYS[way][0]} up to {best[way].size}{cube}{grows}"
        + ("" if way == "plain" else f" ({best[way].times:.2f} times)")
        for way in ("plain", "budget", "threshold", "serialised")
        if way in best
    ]
    return f"In {memory} the {_TITLES[model]} trains with {', with '.join(reached)}."


def _others(limits: Sequence[Mapping[str, _Limit]]) -> str:
    """The sentence on ways that plan nothing."""
    reached = {
        way: max((best[way].times for best in limits if way in best), default=0.0)
        for way in ("remat", "grappler", "by_hand", "mixed")
    }
    said = [f"{_WAYS[way][0]} {times:.2f}" for way, times in reached.items() if times]
    if not said:
        return ""
    return f"Other ways reach at most so many times plain Keras's: {', '.join(said)}."


def _cells(model: str, memory: str, limit: _Limit) -> list[str]:
    cube, said = "^3" if model == "unet" else "", limit.mode or limit.chosen
    return [
        f"{_TITLES[model]}, {memory}",
        _WAYS[limit.way][0] + (f" ({said})" if said else ""),
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
    known = list(_WAYS)
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
    report = best.get("report", {}) if best else {}
    name, _, mode = way.partition(":")
    power = 3 if model == "unet" else 1
    return _Limit(
        way=name,
        mode=mode,
        size=size,
        predicted=max(fits, default=None),
        peak=best["peak_bytes"] if best else None,
        swapped=report.get("swapped_out_bytes", 0),
        chosen=report.get("chosen", ""),
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
        chosen="",
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


def goals(_: Head, rows: Rows) -> Iterator[tuple[str, bool]]:
    """Judge how many voxels train."""
    limits = {limit.way: limit for limit in _limits("unet", rows)}
    if {"budget", "plain"} <= set(limits):
        times = limits["budget"].times
        said = f"the callback trains at least {_LEAST} times plain Keras's voxels"
        yield f"{said}: {times:.2f}.", times >= _LEAST


def plot(head: Head, rows: Rows, path: Path) -> None:
    """A bar for each way, a panel for each model."""
    panels = [
        Panel(
            title=f"{_TITLES[model]}, {format_bytes(_memory(model, rows))}: "
            f"{_GROWS[model]} over plain Keras's",
            bars=[_bar(limit, model) for limit in _limits(model, rows)],
        )
        for model in _models(rows)
    ]
    draw_panels(
        [panels],
        path,
        title="The largest that trains in one memory",
        note="Memory: 1.05 of plain Keras's peak at the base size; an emulated device. "
        f"Dotted: predicted. {source(head)}",
        size=(4.2 * len(panels) + 1.4, 4.9),
    )


def _bar(limit: _Limit, model: str) -> Bar:
    cube, power = ("³", 3) if model == "unet" else ("", 1)
    text, mark = "does\nnot run" if limit.mode == "no mode" else "nothing\ntrains", 0.0
    if limit.size:
        text = f"{limit.size}{cube}\n{limit.times:.2f} x"
        mark = limit.times * ((limit.predicted or 0) / limit.size) ** power
    return Bar(
        label=_WAYS[limit.way][1],
        height=limit.times,
        colour=COLOURS[limit.way],
        text=text,
        mark=mark,
    )
