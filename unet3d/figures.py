"""Draws scores, losses and slices. No other file of unet3d draws.

Figures are made of plain data in the style of the library, and show every subject.
Source: boxes as in the case study: median, quartiles, and whiskers to the farthest
subject within 1.5 times the distance between the quartiles (Tukey).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lms.errors import extra
from lms.report.style import (
    BLUE,
    FONT,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    calm,
    new_figure,
    save,
    tint,
)
from unet3d.lines import several

with extra("unet3d"):
    from matplotlib.axes import Axes
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

__all__ = ["MOST_SETS", "Log", "Slice", "draw_boxes", "draw_gallery", "draw_losses"]

_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
MOST_SETS = len(_COLOURS)
_GRID = "#E4E4E4"
Log = Sequence[Mapping[str, float]]  # a row of a run for each epoch
# Regions from the outside in.
_OVERLAY = (GREEN, ORANGE, VERMILION, PURPLE, SKY, BLUE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slice:
    """One axial slice (height, width) of one subject.

    `regions` maps the truth and each set to the number of each pixel's last region,
    from 1, or 0 outside. `scores` maps each set to the text below its picture.
    """

    name: str
    image: NDArray[np.float32]
    regions: Mapping[str, NDArray[np.uint8]]
    scores: Mapping[str, str]


def draw_boxes(  # noqa: PLR0913 - values, and the words around them
    values: Mapping[str, Mapping[str, Sequence[float]]],
    path: Path,
    *,
    title: str,
    label: str,
    note: str,
    missed: Mapping[str, Mapping[str, int]] | None = None,
    limits: tuple[float | None, float | None] = (0, None),
) -> None:
    """Draw a box with whiskers and all subjects, for each region and set."""
    sets = list(next(iter(values.values())))
    wide = max(7.5, 2.2 + 1.1 * len(sets) * 3)
    figure, axes = _figure(title, note, width=wide, several=len(sets) > 1)
    width = 0.8 / len(sets)
    marks: list[tuple[float, str]] = []
    for place, (region, by_set) in enumerate(values.items()):
        for rank, name in enumerate(sets):
            known = [value for value in by_set[name] if np.isfinite(value)]
            centre = place + (rank - (len(sets) - 1) / 2) * width
            _box(axes, known, centre, width * 0.4, _COLOURS[rank])
            if lost := (missed or {}).get(region, {}).get(name, 0):
                marks.append((centre, f"{lost} of {lost + len(by_set[name])} missed"))
    names = []
    for region, by_set in values.items():
        count = int(np.isfinite(by_set[sets[0]]).sum())
        count += (missed or {}).get(region, {}).get(sets[0], 0)
        names.append(f"{region}\n{several(count, 'subject')}")
    axes.set_xticks(range(len(values)), names, fontsize=FONT, color=INK)
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.55, len(values) - 0.45)
    axes.set_ylim(bottom=_bottom(values, limits[0]), top=limits[1])
    axes.set_ylabel(label, fontsize=FONT, color=INK)
    edge = axes.get_xaxis_transform()
    for centre, text in marks:
        axes.scatter([centre], [0.97], marker="^", s=36, color=INK, transform=edge)
        place = {"ha": "center", "va": "top", "fontsize": FONT - 2}
        axes.annotate(text, (centre, 0.95), xycoords=edge, **place)
    if len(sets) > 1:
        _legend_of_sets(figure, sets)
    save(figure, path)


def draw_losses(logs: Mapping[str, Sequence[Log]], path: Path, *, note: str) -> None:
    """Draw loss and Dice over epochs, training dashed and validation solid.

    Runs of one set have one colour.
    """
    figure = new_figure(10, 4.4, title="Training", note=_shown(note))
    panels: Any = figure.subplots(1, 2)
    top = 0.78  # room for the names
    figure.subplots_adjust(left=0.08, right=0.98, top=top, bottom=0.2, wspace=0.24)
    names = {"loss": "loss", "dice_coefficient": "Dice of labels"}
    for axes, (column, label) in zip(panels, names.items(), strict=True):
        _lined(axes)
        highest = 1.0
        coloured = zip(logs.values(), _COLOURS, strict=False)
        for rows, colour in ((rows, c) for runs, c in coloured for rows in runs):
            epochs = [row["epoch"] + 1 for row in rows]
            for prefix, style in (("", (0, (4, 2))), ("val_", "-")):
                heights = [row[prefix + column] for row in rows]
                mark = "o" if len(rows) == 1 else ""  # one point makes no line
                line: Any = {"color": colour, "linestyle": style, "marker": mark}
                axes.plot(epochs, heights, linewidth=1.5, **line)
                highest = max(highest, *filter(np.isfinite, heights))
        axes.set_xlabel("epoch", fontsize=FONT, color=INK)
        axes.set_ylabel(label, fontsize=FONT, color=INK)
        axes.set_xlim(left=0)
        axes.set_ylim(0, 1.02 * highest)
    lines = [Line2D([], [], color=MUTED, linestyle=s) for s in ((0, (4, 2)), "-")]
    _legend(figure, lines, ["training", "validation"], (0.985, 0.99))
    if logs:
        _legend_of_sets(figure, list(logs))
    save(figure, path)


def draw_gallery(
    slices: Sequence[Slice], path: Path, *, names: Sequence[str], title: str, note: str
) -> None:
    """Draw a row per subject: the image, then truth and predictions laid over it."""
    columns = ["image", *slices[0].regions]
    rows = len(slices)
    size = (max(7.5, 0.4 + 2.4 * len(columns)), 1.35 + 2.95 * rows)
    figure = new_figure(*size, title=title, note=_shown(note))
    grid: Any = figure.subplots(rows, len(columns), squeeze=False)
    top = 1 - 0.85 / size[1]
    figure.subplots_adjust(
        left=0.045, right=0.99, top=top, bottom=0.5 / size[1], wspace=0.04, hspace=0.14
    )
    for row, shown in zip(grid, slices, strict=True):
        for axes, column in zip(row, columns, strict=True):
            _slice(axes, shown, column)
        row[0].set_ylabel(shown.name, fontsize=FONT - 1, color=INK)
    for axes, column in zip(grid[0], columns, strict=True):
        axes.set_title(_shown(column), fontsize=FONT, color=INK, pad=5)
    patches = [Patch(color=_OVERLAY[k % len(_OVERLAY)]) for k in range(len(names))]
    _legend(figure, patches, names, (0.995, 1 - 0.05 / size[1]))
    save(figure, path, dpi=110)  # noise does not compress


def _figure(
    title: str, note: str, *, width: float, several: bool
) -> tuple[Figure, Axes]:
    figure = new_figure(width, 4.8, title=_shown(title), note=_shown(note))
    axes = figure.subplots()
    top = 0.8 if several else 0.88
    figure.subplots_adjust(left=0.72 / width, right=0.985, top=top, bottom=0.2)
    _lined(axes)
    return figure, axes


def _lined(axes: Axes) -> None:
    """Draw calm axes with horizontal grid lines."""
    calm(axes)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def _box(
    axes: Axes, values: Sequence[float], centre: float, width: float, colour: str
) -> None:
    """Draw one box, and beside the box its subjects as dots, spread apart."""
    if not values:
        return
    line: Any = {"color": colour, "linewidth": 1.3}
    axes.boxplot(
        [list(values)],
        positions=[centre - 0.4 * width],
        widths=width,
        capwidths=width / 2,
        showfliers=False,  # every subject is a dot already
        patch_artist=True,
        manage_ticks=False,
        boxprops={
            "facecolor": tint(colour, 0.2),
            "edgecolor": colour,
            "linewidth": 1.3,
        },
        medianprops={"color": INK, "linewidth": 2.0, "solid_capstyle": "butt"},
        whiskerprops=line,
        capprops=line,
    )
    # Steps of the golden section keep neighbours in value apart.
    steps = np.arange(len(values)) * 0.618 % 1
    axes.scatter(
        centre + (0.3 + 0.6 * steps) * width,
        sorted(values),
        s=16,
        color=colour,
        edgecolors="white",
        linewidths=0.6,
        zorder=4,
    )


def _bottom(
    values: Mapping[str, Mapping[str, Sequence[float]]], limit: float | None
) -> float:
    """Choose the value at which the vertical axis begins."""
    if limit is not None:
        return limit
    known = [v for sets in values.values() for group in sets.values() for v in group]
    least = min((value for value in known if np.isfinite(value)), default=0.0)
    return float(np.floor(10 * least - 0.2) / 10)  # room below the lowest dot


def _shown(name: str) -> str:
    return name.replace("^3", "\N{SUPERSCRIPT THREE}")


def _legend_of_sets(figure: Figure, names: Sequence[str]) -> None:
    patches = [Patch(color=colour) for colour in _COLOURS[: len(names)]]
    _legend(figure, patches, names, (0.01, 0.91), side="left", columns=MOST_SETS)


def _legend(
    figure: Figure,
    handles: Sequence[Any],
    names: Sequence[str],
    corner: tuple[float, float],
    *,
    side: str = "right",
    columns: int = 4,
) -> None:
    place: Any = {"loc": f"upper {side}", "bbox_to_anchor": corner}
    figure.legend(
        handles,
        [_shown(name) for name in names],
        **place,
        ncols=min(len(names), columns),
        frameon=False,
        fontsize=FONT,
        handlelength=2.0 if isinstance(handles[0], Line2D) else 1.0,
        columnspacing=1.0,
    )


def _slice(axes: Axes, shown: Slice, column: str) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    brightest = float(np.percentile(shown.image, 99.5)) or 1.0
    axes.imshow(shown.image, cmap="gray", vmin=0, vmax=brightest)
    if column in shown.regions:
        axes.imshow(_paint(shown.regions[column]), interpolation="nearest")
    if column in shown.scores:
        text = shown.scores[column]
        axes.set_xlabel(text, fontsize=FONT - 2, color=MUTED, labelpad=3)


def _paint(regions: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Colour the regions, half transparent; healthy pixels stay clear."""
    painted = np.zeros((*regions.shape, 4))
    for value in range(1, int(regions.max()) + 1):
        colour = _OVERLAY[(value - 1) % len(_OVERLAY)]
        painted[regions == value] = (*to_rgb(colour), 0.55)
    return painted
