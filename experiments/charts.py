"""The charts of experiments: panels of lines and points, of bars, or of boxes.

An experiment says what stands where as plain data; here it becomes a figure. Room for
names and texts is made by Matplotlib's constrained layout.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.boxes import Box, draw_boxes
from experiments.plots import INK, MUTED, calm, new_figure, save

__all__ = ["Bar", "Box", "Panel", "Series", "draw_panels"]

_DASHED = (0, (6, 3))
_NEAR: Any = {"textcoords": "offset points", "fontsize": 9, "color": INK}


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points, and the line through them.

    Args:
        points: Pairs of x and y.
        colour: As Matplotlib knows it.
        label: For the legend; empty for none.
        marker: As Matplotlib knows it; empty for none.
        line: The same.
        texts: Beside the points, one for each, or none.
        spans: Heights from and to which a thin line goes through each point, or none.
        hollow: Whether markers are.
        filled: Whether the area below the line is tinted.
        alpha: How opaque it is.
    """

    points: Sequence[tuple[float, float]]
    colour: str
    label: str = ""
    marker: str = "o"
    line: str = ""
    texts: Sequence[str] = ()
    spans: Sequence[tuple[float, float]] = ()
    hollow: bool = False
    filled: bool = False
    alpha: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar.

    Args:
        label: Below it.
        height: From 0.
        colour: As Matplotlib knows it.
        text: Above it.
        mark: Height of a dotted line across it; 0 for none.
        way: What its colour means, for the legend; empty for none.
        group: Name below it and its neighbours of the same group, apart from others.
    """

    label: str
    height: float
    colour: str
    text: str
    mark: float = 0.0
    way: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes.

    Args:
        title: Above it.
        x: Name of the axis.
        y: The same.
        series: What is drawn into it; those in front last.
        bars: The same, side by side.
        boxes: The same, from the top down.
        level: Height of a dashed line; of boxes, its place from the left.
        limit: Place of a vertical line, and what it says.
        band: Relative width of a grey band about the diagonal; 0 for none.
        xlim: Ends of the axis; None for as far as the data goes.
        ylim: The same.
        xticks: Places and names; empty for Matplotlib's.
        log_ticks: Places on a logarithmic axis; empty for a linear one.
        beside: Heights, texts and colours to the right of the axes.
    """

    title: str = ""
    x: str = ""
    y: str = ""
    series: Sequence[Series] = ()
    bars: Sequence[Bar] = ()
    boxes: Sequence[Box] = ()
    level: float | None = None
    limit: tuple[float, str] | None = None
    band: float = 0.0
    xlim: tuple[float | None, float | None] = (None, None)
    ylim: tuple[float | None, float | None] = (None, None)
    xticks: Sequence[tuple[float, str]] = ()
    log_ticks: Sequence[float] = ()
    beside: Sequence[tuple[float, str, str]] = ()


def draw_panels(  # noqa: PLR0913 - one keyword for each part of a figure
    rows: Sequence[Sequence[Panel]],
    path: Path,
    *,
    title: str,
    note: str,
    size: tuple[float, float],
    share: bool = False,
    heights: Sequence[float] | None = None,
) -> None:
    """Draw a grid of panels; one legend of all stands above them.

    Args:
        rows: From the top down, each as long as the first.
        path: PNG to write.
        title: What is seen.
        note: How the numbers came about.
        size: Inches.
        share: Whether all have one x-axis, and panels of a row one y-axis.
        heights: Of the rows, to each other.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "one.png"
        >>> panel = Panel(series=[Series(points=[(0, 1), (1, 2)], colour="red")])
        >>> draw_panels([[panel]], path, title="Up", note="Made up.", size=(6, 4))
        >>> path.exists()
        True
    """
    figure = new_figure(*size, title=title, note=note)
    grid: Any = figure.subplots(
        len(rows),
        len(rows[0]),
        squeeze=False,
        sharex=share,
        sharey="row" if share else False,
        height_ratios=heights,
    )
    for place, row in enumerate(rows):
        for axes, panel in zip(grid[place], row, strict=False):
            _fill(axes, panel)
            if share:
                axes.label_outer()
    above = _legend(figure)
    bottom, top = 0.3 / size[1], 1 - (0.5 + above) / size[1]
    figure.set_layout_engine(
        "constrained", rect=(0.006, bottom, 0.988, top - bottom), w_pad=0.1, h_pad=0.1
    )
    save(figure, path)


def _legend(figure: Figure) -> float:
    """Labels, each once, in rows below the headline; the inches that they take."""
    known: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            known.setdefault(label, handle)
    if not known:
        return 0.0
    wide, high = figure.get_size_inches()
    longest = 0.5 + 0.08 * max(map(len, known))  # inches
    columns = max(1, min(len(known), int(wide / longest)))
    figure.legend(
        known.values(),
        known,
        loc="upper left",
        bbox_to_anchor=(0.1 / wide, 1 - 0.42 / high),
        ncols=columns,
        frameon=False,
        fontsize=10,
    )
    return 0.1 + 0.22 * -(-len(known) // columns)


def _fill(axes: Axes, panel: Panel) -> None:
    calm(axes)
    axes.set_title(panel.title, loc="left", fontsize=11, color=INK)
    axes.set_xlabel(panel.x, fontsize=11, color=INK)
    axes.set_ylabel(panel.y, fontsize=11, color=INK)
    for each in panel.series:
        _series(axes, each)
    if panel.bars:
        _bars(axes, panel.bars)
    if panel.boxes:
        draw_boxes(axes, panel.boxes)
    _lines(axes, panel)
    _scales(axes, panel)
    for height, text, colour in panel.beside:
        axes.annotate(
            text,
            (1.0, height),
            (8, 0),
            ("axes fraction", "data"),
            "offset points",
            va="center",
            color=colour,
            annotation_clip=False,
        )


def _series(axes: Axes, series: Series) -> None:
    xs, ys = zip(*series.points, strict=True) if series.points else ((), ())
    axes.plot(
        xs,
        ys,
        color=series.colour,
        marker=series.marker or "none",
        markersize=4 if series.marker == "." else 7,
        markerfacecolor="white" if series.hollow else series.colour,
        linestyle=series.line or "none",
        linewidth=1.5,
        alpha=series.alpha,
        label=series.label or "_",
    )
    if series.filled:
        axes.fill_between(xs, ys, color=series.colour, alpha=0.12, linewidth=0)
    for x, ends in zip(xs, series.spans, strict=False):
        axes.plot([x, x], ends, color=series.colour, linewidth=1.2, zorder=1)
    for x, y, text in zip(xs, ys, series.texts, strict=False):
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        axes.annotate(text, (x, y), (8, 0), va="center", bbox=box, **_NEAR)


def _bars(axes: Axes, bars: Sequence[Bar]) -> None:
    known = {"": "_"}
    places: list[float] = []
    for bar, before in zip(bars, [None, *bars], strict=False):
        apart = before is not None and before.group != bar.group
        place = places[-1] + 1 + 0.7 * apart if places else 0.0
        places.append(place)
        label = known.get(bar.way, bar.way)
        known[bar.way] = "_"  # the legend has each once
        axes.bar(place, bar.height, 0.62, color=bar.colour, label=label)
        if bar.mark:
            axes.plot([place - 0.4, place + 0.4], [bar.mark] * 2, color=INK, ls=":")
        top = (place, max(bar.height, bar.mark))
        axes.annotate(bar.text, top, (0, 4), ha="center", **_NEAR)
    axes.set_ylim(0, 1.3 * max(max(bar.height, bar.mark) for bar in bars) or 1)
    names = [bar.label for bar in bars]
    axes.set_xticks(places, names, fontsize=9, color=INK)
    axes.tick_params(axis="x", length=0)
    _groups(axes, bars, places)


def _groups(axes: Axes, bars: Sequence[Bar], places: Sequence[float]) -> None:
    """Names of groups, below the names of their bars."""
    middles: dict[str, list[float]] = {}
    for bar, place in zip(bars, places, strict=True):
        middles.setdefault(bar.group, []).append(place)
    middles.pop("", None)
    if middles:
        second = axes.secondary_xaxis("bottom")
        names = [f"\n{name}" for name in middles]
        places = [(each[0] + each[-1]) / 2 for each in middles.values()]
        second.set_xticks(places, names, fontsize=9, fontweight="bold", color=INK)
        second.tick_params(axis="x", length=0)
        second.spines["bottom"].set_visible(False)


def _lines(axes: Axes, panel: Panel) -> None:
    if panel.level is not None:
        draw = axes.axvline if panel.boxes else axes.axhline
        draw(panel.level, color=INK, linewidth=1.2, linestyle=_DASHED)
    if panel.limit is not None:
        place, text = panel.limit
        axes.axvline(place, color=MUTED, linewidth=1.4, linestyle=":")
        across = axes.get_xaxis_transform()
        words = {"textcoords": "offset points", "color": MUTED, "fontsize": 9}
        words |= {"xycoords": across, "ha": "right"}
        axes.annotate(text, (place, 0.9), (-4, 0), **words)
    if panel.band:
        top = panel.xlim[1] or 1.0
        ends = [0.0, top]
        low, high = ([0.0, top / (1 + part)] for part in (panel.band, -panel.band))
        axes.fill_between(ends, low, high, color="#EDEDED", linewidth=0, zorder=0)
        axes.plot(ends, ends, color=MUTED, linewidth=1, zorder=1)


def _scales(axes: Axes, panel: Panel) -> None:
    if panel.log_ticks:
        axes.set_yscale("log")
        axes.set_yticks(panel.log_ticks, [f"{tick:g}" for tick in panel.log_ticks])
        axes.minorticks_off()
    if panel.xlim != (None, None):
        axes.set_xlim(*panel.xlim)
    if panel.ylim != (None, None):
        axes.set_ylim(*panel.ylim)
    if panel.xticks:
        places, names = zip(*panel.xticks, strict=True)
        axes.set_xticks(places, names)
