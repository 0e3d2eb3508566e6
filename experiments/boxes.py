"""Boxes of a chart: quartiles, whiskers and the median of what was measured."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from experiments.plots import INK, MUTED

__all__ = ["Box", "draw_boxes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Quartiles, whiskers of 5 to 95 %, and the median in figures; or nothing."""

    label: str
    values: Sequence[float]
    colour: str


def draw_boxes(axes: Axes, boxes: Sequence[Box]) -> None:
    """Draw them from the top down."""
    for place, box in enumerate(boxes):
        if not box.values:
            across = axes.get_yaxis_transform()
            words = {"ha": "right", "va": "center", "color": MUTED, "fontsize": 9}
            axes.text(0.98, place, "did not train", transform=across, **words)
            continue
        axes.boxplot(
            [box.values],
            positions=[place],
            orientation="horizontal",
            widths=0.5,
            whis=(5, 95),
            showfliers=False,
            patch_artist=True,
            boxprops={"facecolor": box.colour, "edgecolor": box.colour, "alpha": 0.75},
            medianprops={"color": INK, "linewidth": 1.6},
            whiskerprops={"color": box.colour},
            capprops={"color": box.colour},
            manage_ticks=False,
        )
        middle = statistics.median(box.values)
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
        words = {"ha": "center", "fontsize": 10, "color": INK, "bbox": ground}
        axes.text(middle, place - 0.42, f"{middle:.2f}", **words)
    axes.set_yticks(range(len(boxes)), [box.label for box in boxes])
    axes.set_ylim(len(boxes) - 0.2, -0.8)
