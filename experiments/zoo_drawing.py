"""Draw the zoo's results: a table, a sentence, a figure. Nothing is trained."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from experiments.ledger import Head, Rows
from experiments.plots import INK, MUTED, new_figure, save, source
from experiments.question import Finding, shortened
from experiments.zoo_judging import SPARE, Outcome, Verdict, judge
from experiments.zoo_names import KINDS, NAMES, SMALL_NAMES, TITLES, kind_of
from lms.units import format_bytes

__all__ = ["finding", "goals", "plot"]

# Okabe and Ito: apart for colour-blind eyes; dark to light in print, too.
_COLOURS = {
    Outcome.TRAINED: "#0072B2",
    Outcome.NOT_COMPARED: "#56B4E9",
    Outcome.REFUSED: "#F0E442",
    Outcome.DEFECT: "#D55E00",
}
_SAID = {
    Outcome.TRAINED: "trained, equal bits",
    Outcome.NOT_COMPARED: "trained, plain Keras does not repeat its bits",
    Outcome.REFUSED: "refused, and its least budget works",
    Outcome.DEFECT: "defect",
}
_BAD_WIDTH = 90  # characters of a reason in the table


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """A model in a device: its repeats."""

    model: str
    column: str
    plain_peak: int
    memory: int
    verdicts: tuple[Verdict, ...]


def finding(_: Head, rows: Rows) -> Finding:
    """The sentence and the table."""
    cells = _cells(rows)
    columns = ["model", "outcome", "plain peak", "device", "of it"]
    columns += ["predicted", "measured", "swapped out", "run again", "planned anew"]
    columns += ["reason"]
    body = [_line(cell) for cell in cells]
    table = ("Trained with plain Keras's bits, or refused", columns, body)
    return _sentence(rows, cells), table


def goals(_: Head, rows: Rows) -> list[tuple[str, bool]]:
    """Whether nothing is a defect."""
    cells = _cells(rows)
    bad = [v for v in _verdicts(cells) if v.outcome is Outcome.DEFECT]
    if bad or not cells:
        models = len({verdict.row["model"] for verdict in bad})
        return [(f"{len(bad)} defects, of {models} models.", False)]
    return [("each training has plain Keras's bits or was refused rightly.", True)]


def _sentence(rows: Rows, cells: Sequence[_Cell]) -> str:
    counts = Counter(verdict.outcome for verdict in _verdicts(cells))
    models = list(dict.fromkeys(cell.model for cell in cells))
    bad = [
        model
        for model in models
        if any(
            verdict.outcome is Outcome.DEFECT
            for cell in cells
            if cell.model == model
            for verdict in cell.verdicts
        )
    ]
    said = ", ".join(
        f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome]
    )
    text = f"{sum(counts.values())} trainings of {len(models)} models: {said or 'none'}"
    text += f"; without any defect: {len(models) - len(bad)} models."
    if bad:
        text += f" Defects: {', '.join(TITLES[model] for model in bad)}."
    unplain = sorted({TITLES[row["model"]] for row in rows if _fails_plainly(row)})
    if unplain:
        text += f" Plain Keras does not train {', '.join(unplain)}."
    return text


def _fails_plainly(row: Mapping[str, Any]) -> bool:
    return row["kind"] == "plain" and bool(row["error"])


def _cells(rows: Rows) -> list[_Cell]:
    """All models in the order of their kinds, each from the largest device down."""
    found: list[_Cell] = []
    for model in (*NAMES, *SMALL_NAMES):
        mine = [row for row in rows if row["model"] == model]
        if not mine or any(map(_fails_plainly, mine)):
            continue
        peak = max(row["peak_bytes"] for row in mine if row["kind"] == "plain")
        groups: dict[tuple[str, int], list[Verdict]] = {}
        for verdict in judge(mine):
            key = _column(verdict.row), verdict.row["memory_bytes"]
            groups.setdefault(key, []).append(verdict)
        found += [
            _Cell(
                model=model,
                column=column,
                plain_peak=peak,
                memory=memory,
                verdicts=tuple(verdicts),
            )
            for (column, memory), verdicts in groups.items()
        ]
    return found


def _column(row: Mapping[str, Any]) -> str:
    """Where a training stands: its share of plain Keras's peak, or `least`."""
    if row["kind"] == "training":
        return f"{row['share']:g}"
    return row["kind"]


def _verdicts(cells: Sequence[_Cell]) -> list[Verdict]:
    return [verdict for cell in cells for verdict in cell.verdicts]


def _line(cell: _Cell) -> list[str]:
    counts = Counter(verdict.outcome for verdict in cell.verdicts)
    outcomes = [
        f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome]
    ]
    reasons = dict.fromkeys(v.reason for v in cell.verdicts if v.reason)
    share = cell.memory / cell.plain_peak
    asked = ", asked" if cell.column == "asked" else ""
    return [
        TITLES[cell.model],
        ", ".join(outcomes) + asked,
        format_bytes(cell.plain_peak),
        format_bytes(cell.memory),
        f"{share:.0%}" + (", least" if cell.column == "least" else ""),
        *_numbers(cell),
        "; ".join(_short(reason) for reason in reasons),
    ]


def _short(reason: str) -> str:
    if reason.startswith(("refused", "at least", "least", "names", f"{SPARE}")):
        return reason[:_BAD_WIDTH]
    return shortened(reason)[:_BAD_WIDTH]


def _numbers(cell: _Cell) -> list[str]:
    """Take the largest of each number that the reports of all repeats give."""
    reports = [v.row["report"] for v in cell.verdicts if v.row.get("report")]

    def largest(name: str) -> int | None:
        return max((r[name] for r in reports if r[name] is not None), default=None)

    def size(name: str) -> str:
        value = largest(name)
        return "-" if value is None else format_bytes(value)

    def count(name: str) -> str:
        value = largest(name)
        return "-" if value is None else str(value)

    sizes = ("predicted_peak_bytes", "measured_peak_bytes", "swapped_out_bytes")
    return [*map(size, sizes), count("recomputed_ops"), count("replans")]


def plot(head: Head, rows: Rows, path: Path) -> None:
    """A row for each model, a column for each device, a tile for each repeat."""
    cells = _shown(_cells(rows))
    if not cells:
        return
    columns = sorted({c.column for c in cells} - {"least"}, reverse=True)
    columns += ["least"] * any(cell.column == "least" for cell in cells)
    places = _places(cells)
    halves = _halves(places)
    tall = max(len(half) for half in halves)
    height = 1.6 + 0.36 * tall
    width = max(9.0, 6.5 * len(halves))
    figure = new_figure(
        width,
        height,
        title="Models of others in less memory: the same bits, or a right refusal",
        note=f"Each tile is a run. {source(head)}",
    )
    panels: Any = figure.subplots(1, len(halves), squeeze=False)[0]
    figure.subplots_adjust(
        left=2.3 / width,
        right=1 - 0.2 / width,
        top=1 - 1.2 / height,
        bottom=0.4 / height,
        wspace=2.4 / 4.5,
    )
    for axes, half in zip(panels, halves, strict=True):
        _panel(axes, half, tall, columns, cells)
    there = {verdict.outcome for verdict in _verdicts(cells)}
    figure.legend(
        handles=[
            Patch(color=_COLOURS[o], label=_SAID[o]) for o in Outcome if o in there
        ],
        loc="upper left",
        bbox_to_anchor=(0.1 / width, 1 - 0.42 / height),
        ncols=len(there),
        frameon=False,
        fontsize=10.5,
    )
    save(figure, path)


def _shown(cells: Sequence[_Cell]) -> list[_Cell]:
    """Those with a tile: what was asked has one if it left nothing to try."""
    tried = {cell.model for cell in cells if cell.column == "least"}
    kept = [c for c in cells if c.column != "asked" or c.model not in tried]
    return [replace(c, column="least") if c.column == "asked" else c for c in kept]


def _places(cells: Sequence[_Cell]) -> list[str]:
    """Models and the headlines of their kinds, from the top down."""
    models = list(dict.fromkeys(cell.model for cell in cells))
    places: list[str] = []
    for kind in (*KINDS, "small"):
        members = [model for model in models if kind_of(model) == kind]
        places += [f"# {kind}", *members] if members else []
    return places


def _halves(places: Sequence[str]) -> list[list[str]]:
    """One panel, or two where there are many; a kind is not torn apart."""
    if len(places) <= 16:
        return [list(places)]
    heads = [i for i, place in enumerate(places) if place.startswith("#")]
    cut = min(heads, key=lambda i: abs(2 * i - len(places)))
    return [list(places[:cut]), list(places[cut:])]


def _panel(
    axes: Axes,
    places: Sequence[str],
    tall: int,
    columns: Sequence[str],
    cells: Sequence[_Cell],
) -> None:
    axes.set_xlim(0, len(columns))
    axes.set_ylim(tall, 0)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.xaxis.tick_top()
    names = [_headline(column) for column in columns]
    axes.set_xticks([i + 0.45 for i in range(len(columns))], names, fontsize=10.5)
    axes.set_yticks([])
    for y, place in enumerate(places):
        _name(axes, place, y)
        for cell in cells:
            if cell.model == place and cell.column in columns:
                _tiles(axes, cell, columns.index(cell.column), y)


def _headline(column: str) -> str:
    return "least x 1.05" if column == "least" else f"{float(column):.0%} of peak"


def _name(axes: Axes, place: str, y: int) -> None:
    kind = place.startswith("#")
    axes.annotate(
        place.removeprefix("# ") if kind else TITLES[place],
        (0, y + 0.5),
        (-151 if kind else -4, 0),
        textcoords="offset points",
        ha="left" if kind else "right",
        va="center",
        fontsize=9.5 if kind else 10.5,
        color=MUTED if kind else INK,
        style="italic" if kind else "normal",
    )


def _tiles(axes: Axes, cell: _Cell, x: int, y: int) -> None:
    wide = 0.9 / len(cell.verdicts)
    for i, verdict in enumerate(cell.verdicts):
        corner = (x + i * wide, y + 0.08)
        colour = _COLOURS[verdict.outcome]
        axes.add_patch(Rectangle(corner, wide - 0.02, 0.84, color=colour, lw=0))
    if cell.column == "least":
        share = f"{cell.memory / cell.plain_peak:.0%}"
        axes.text(
            x + 0.45,
            y + 0.5,
            share,
            ha="center",
            va="center",
            fontsize=9,
            color="white",
        )
