"""The style of all figures: labels stand beside their curves, not in a legend.

Colours stay apart for colour-blind eyes: Okabe and Ito, "Color Universal Design", 2008.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lms.errors import extra
from lms.storage.files import draft_of
from lms.units import GIB, MIB

with extra("figures"):
    from matplotlib.axes import Axes
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

__all__ = ["BLUE", "GREEN", "ORANGE", "PURPLE", "SKY", "VERMILION", "Axes", "Patch"]
__all__ += ["COLOURS", "FONT", "INK", "MUTED", "Scale"]
__all__ += ["beside", "calm", "new_figure", "plain", "save", "tint"]

BLUE, SKY, GREEN = "#0072B2", "#56B4E9", "#009E73"
VERMILION, ORANGE, PURPLE = "#D55E00", "#E69F00", "#CC79A7"
COLOURS = (VERMILION, BLUE, GREEN)
# Greys for text and axes.
INK, MUTED = "#222222", "#6B6B6B"
_DPI = 150
FONT = 11.0  # points


@dataclass(frozen=True, slots=True)
class Scale:
    """The unit of bytes on all axes of a figure."""

    size: int
    unit: str

    @classmethod
    def of(cls, largest: int) -> "Scale":
        """Choose GiB where `largest` is at least 2 GiB, else MiB."""
        return cls(GIB, "GiB") if largest >= 2 * GIB else cls(MIB, "MiB")

    def values(self, sizes: Sequence[int]) -> list[float]:
        """Convert sizes to this unit."""
        return [size / self.size for size in sizes]

    def text(self, size: int) -> str:
        """Format a size with its unit."""
        value = size / self.size
        return f"{value:.3g} {self.unit}" if value < 100 else f"{value:.0f} {self.unit}"


def new_figure(width: float, height: float, *, title: str, note: str) -> Figure:
    """Make a figure, sized in inches, with a headline and a line of sources below."""
    figure = Figure(figsize=(width, height), dpi=_DPI)
    top, bottom = 1 - 0.31 / height, 0.112 / height
    figure.text(0.02, top, title, fontsize=FONT + 4, color=INK, weight="bold")
    figure.text(0.02, bottom, note, fontsize=FONT - 3, color=MUTED)
    return figure


def tint(colour: str, share: float = 0.14) -> tuple[float, float, float]:
    """Mix a share of the colour with white, opaque: one area may cover another."""
    red, green, blue = (1 - share * (1 - part) for part in to_rgb(colour))
    return red, green, blue


def calm(axes: Axes) -> None:
    """Hide the top and right line of the axes, and grey the others."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(which="both", colors=MUTED, labelsize=FONT - 2)


def plain(axes: Axes, span: tuple[float, float], top: float) -> None:
    """Calm the axes and set their limits, vertically from 0 to 6 % above `top`."""
    calm(axes)
    axes.set_xlim(*span)
    axes.set_ylim(0, 1.06 * top if top else 1)


def beside(axes: Axes, height: float, text: str, colour: str) -> None:
    """Write to the right of the axes, at a height of their data."""
    axes.annotate(
        text,
        xy=(1.0, height),
        xycoords=("axes fraction", "data"),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        fontsize=FONT - 1,
        color=colour,
        annotation_clip=False,
    )


def save(figure: Figure, path: Path, *, dpi: int = _DPI) -> None:
    """Write a PNG under another name first: the file is never half written."""
    with draft_of(path) as draft:
        figure.savefig(draft, format="png", dpi=dpi)
