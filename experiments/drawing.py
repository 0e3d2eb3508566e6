"""Figures from plain data: panels of points with intervals, lines, and bars."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.question import Bar, Panel, Series
from lms.errors import extra
from lms.report.style import INK, calm, new_figure, save

with extra("figures"):
    from matplotlib.axes import Axes
    from matplotlib.ticker import FuncFormatter, NullLocator
    from matplotlib.transforms import offset_copy

__all__ = ["draw_panels"]

_HEIGHT, _WIDTH = 4.6, 11.0  # inches: of a row of points, of a figure
_BESIDE: Any = {"textcoords": "offset points", "fontsize": 9, "color": INK}
_BESIDE |= {"bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1}}
_ROW = 11  # points of height of a row of crosses below the axis


def draw_panels(
    rows: Sequence[Sequence[Panel]], path: Path, *, title: str, note: str
) -> None:
    """Draw a grid of panels, from the top down, below one legend.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "one.png"
        >>> panel = Panel(series=[Series(points=[(0, 1), (1, 2)], colour="red")])
        >>> draw_panels([[panel]], path, title="Up", note="Made up.")
        >>> path.exists()
        True
    """
    most = max(len(panel.bars or panel.names) for row in rows for panel in row)
    height = 1.9 + 0.27 * most if most else _HEIGHT * len(rows)
    figure = new_figure(_WIDTH, height, title=title, note=note)
    grid: Any = figure.subplots(len(rows), len(rows[0]), squeeze=False)
    for axes, panel in zip(grid.flat, (p for row in rows for p in row), strict=True):
        _fill(axes, panel)
    above = _legend(figure, height)
    bottom, top = 0.3 / height, 1 - (0.5 + above) / height
    place = (0.006, bottom, 0.988, top - bottom)
    figure.set_layout_engine("constrained", rect=place, w_pad=0.1, h_pad=0.1)
    save(figure, path)


def _legend(figure: Any, height: float) -> float:
    """Draw each label once, in rows below the headline; return the rows' inches."""
    known: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            known.setdefault(label, handle)
    if not known:
        return 0.0
    columns = max(1, int(_WIDTH / (0.6 + 0.08 * max(map(len, known)))))
    place: Any = {"loc": "upper left", "bbox_to_anchor": (0.01, 1 - 0.42 / height)}
    names = {"ncols": columns, "frameon": False, "fontsize": 10}
    figure.legend(known.values(), known, **place, **names)
    return 0.1 + 0.22 * -(-len(known) // columns)


def _fill(axes: Axes, panel: Panel) -> None:
    if not (panel.series or panel.bars):
        axes.set_axis_off()
        return
    calm(axes)
    is_flat = bool(panel.bars or panel.names)
    log = " (log axis)" * panel.log
    from_ = f" (axis from {panel.xlim[0]:g})" if panel.xlim[0] and not log else ""
    axes.set_title(panel.title, loc="left", fontsize=11, color=INK)
    axes.set_xlabel(panel.x + from_ + log * is_flat, fontsize=11, color=INK)
    axes.set_ylabel(panel.y + log * (not is_flat), fontsize=11, color=INK)
    for each in panel.series:
        _series(axes, each)
    if panel.bars:
        _bars(axes, panel.bars)
    elif panel.names:
        _name(axes, panel.names)
    else:
        axes.set_ylim(*(panel.ylim or (0, 1.06 * axes.get_ylim()[1])))
    if panel.level is not None:
        draw = axes.axvline if is_flat else axes.axhline
        draw(panel.level, color=INK, linewidth=1.2, linestyle=(0, (6, 3)), zorder=0)
    if panel.log:
        _stretch(axes, panel, is_flat=is_flat)
    axes.set_xlim(*panel.xlim)
    crosses = [p[1] for one in panel.series if one.marker == "x" for p in one.points]
    axes.tick_params(axis="x", pad=4 + _ROW * (1 + max(crosses, default=-1)))


def _stretch(axes: Axes, panel: Panel, *, is_flat: bool) -> None:
    """Make the axis of values logarithmic, with plain numbers at its ticks."""
    (axes.set_xscale if is_flat else axes.set_yscale)("log", base=10 if is_flat else 2)
    axis = axes.xaxis if is_flat else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())
    if panel.ylim:
        axes.set_ylim(*panel.ylim)


def _series(axes: Axes, series: Series) -> None:
    xs, ys = zip(*series.points, strict=True) if series.points else ((), ())
    known: dict[str, Any] = {}
    if series.marker == "x" and series.points:  # below the axis, a row for each way
        down = -_ROW * (0.75 + series.points[0][1])
        axis, figure = axes.get_xaxis_transform(), axes.get_figure(root=True)
        place = offset_copy(axis, figure, y=down, units="points")
        known, ys = {"transform": place, "clip_on": False}, [0.0] * len(xs)
    axes.plot(
        xs,
        ys,
        color=series.colour,
        marker=series.marker or "none",
        markersize=4 if series.marker == "." else 7,
        markeredgewidth=2 if series.marker == "x" else 1.4,
        markerfacecolor="white" if series.hollow else series.colour,
        linestyle=series.line or "none",
        linewidth=1.6,
        label=series.label or "_",
        **known,
    )
    for x, ends in zip(xs, series.spans, strict=False):
        axes.plot([x, x], ends, color=series.colour, linewidth=1.4, zorder=1)


def _bars(axes: Axes, bars: Sequence[Bar]) -> None:
    for place, bar in enumerate(bars):
        inside = "white" if bar.is_open else bar.colour
        axes.barh(place, bar.length, 0.62, color=inside, edgecolor=bar.colour)
        end = max(bar.length, bar.promised, *(bar.span or ()))
        if bar.span:
            axes.plot(bar.span, [place] * 2, color=INK, linewidth=1.4)
        if bar.promised:
            hollow: Any = {"markerfacecolor": "white", "markersize": 7}
            axes.plot(bar.promised, place, "o", color=bar.colour, **hollow)
        if not bar.length:
            axes.plot(0, place, "x", color=bar.colour, markersize=8, clip_on=False)
        axes.annotate(bar.text, (end, place), (8, 0), va="center", **_BESIDE)
    _name(axes, [bar.label for bar in bars])
    axes.margins(x=0.2)


def _name(axes: Axes, names: Sequence[str]) -> None:
    """Label heights from the top down."""
    axes.set_yticks(range(len(names)), names, fontsize=9, color=INK)
    axes.set_ylim(len(names) - 0.4, -0.6)
