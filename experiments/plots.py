"""What the figures of experiments share, in the style of the library's own."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lms.figures.style import (
    BLUE,
    INK,
    MUTED,
    ORANGE,
    PURPLE,
    VERMILION,
    calm,
    new_figure,
    save,
)

__all__ = ["COLOURS", "INK", "MUTED", "calm", "legend_above", "new_figure"]
__all__ += ["save", "source"]

COLOURS = {
    "plain": MUTED,
    "remat": ORANGE,
    "grappler": PURPLE,
    "threshold": BLUE,
    "serialised": BLUE,
    "budget": VERMILION,
}


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
