"""One look for the figures of experiments: a headline, a line of sources, calm axes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lms.storage.files import draft_of

__all__ = [
    "COLOURS",
    "INK",
    "MUTED",
    "calm",
    "legend_above",
    "new_figure",
    "save",
    "source",
]

# Okabe and Ito, "Color Universal Design", 2008: apart for colour-blind eyes too.
COLOURS = {
    "plain": "#6B6B6B",
    "remat": "#E69F00",
    "grappler": "#CC79A7",
    "threshold": "#0072B2",
    "budget": "#D55E00",
}
INK, MUTED = "#222222", "#6B6B6B"


def new_figure(width: float, height: float, *, title: str, note: str) -> Figure:
    """A figure of so many inches with room for a headline above and a note below."""
    figure = Figure(figsize=(width, height), dpi=150)
    FigureCanvasAgg(figure)
    above, below = 1 - 0.36 / height, 0.12 / height
    figure.text(0.02, above, title, fontsize=15, weight="bold", color=INK)
    figure.text(0.02, below, note, fontsize=8, color=MUTED)
    return figure


def calm(axes: Axes) -> None:
    """No more ink than the axes need."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(colors=MUTED, labelsize=9)


def legend_above(figure: Figure, axes: Axes) -> None:
    """What the labels of one panel mean, in a row below the headline."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="upper left",
        bbox_to_anchor=(0.3 / figure.get_figwidth(), 0.92),
        ncols=len(labels),
        frameon=False,
        fontsize=10,
    )


def source(head: Mapping[str, Any]) -> str:
    """Machine and commit, for the note."""
    machine = head["machine"]
    return f"{machine['processor']}, {machine['cores']} cores; commit {head['commit']}"


def save(figure: Figure, path: Path) -> None:
    """Write a PNG under another name first, so that it is never half done."""
    with draft_of(path) as draft:
        figure.savefig(draft, format="png")
