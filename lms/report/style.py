"""One style for all figures: no legend to look up, labels beside what they name.

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
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

__all__ = ["BLUE", "GREEN", "ORANGE", "PURPLE", "SKY", "VERMILION", "Axes", "Patch"]
__all__ += ["COLOURS", "FONT", "INK", "MUTED", "Scale"]
__all__ += ["beside", "calm", "new_figure", "plain", "save", "tint"]

BLUE, SKY, GREEN = "#0072B2", "#56B4E9", "#009E73"
VERMILION, ORANGE, PURPLE = "#D55E00", "#E69F00", "#CC79A7"
COLOURS = (VERMILION, BLUE, GREEN)
# Greys for what is not a curve.
INK, MUTED = "#222222", "#6B6B6B"
_DPI = 150
FONT = 11.0  # points


@dataclass(frozen=True, slots=True)
class Scale:
    """Bytes as the axis counts them: one unit for a whole figure."""

    size: int
    unit: str

    @classmethod
    def of(cls, largest: int) -> "Scale":
        """The unit in which `largest` is easy to read."""
        return cls(GIB, "GiB") if largest >= 2 * GIB else cls(MIB, "MiB")

    def values(self, sizes: Sequence[int], base: int = 0) -> list[float]:
        """Sizes above `base` in this unit."""
        return [(size + base) / self.size for size in sizes]

    def text(self, size: int) -> str:
        """A size with its unit."""
        value = size / self.size
        return f"{value:.3g} {self.unit}" if value < 100 else f"{value:.0f} {self.unit}"


def new_figure(width: float, height: float, *, title: str, note: str) -> Figure:
    """A figure of that many inches with a headline, and a line of sources below."""
    figure = Figure(figsize=(width, height), dpi=_DPI)
    FigureCanvasAgg(figure)
    top, bottom = 1 - 0.31 / height, 0.112 / height
    figure.text(0.02, top, title, fontsize=FONT + 4, color=INK, weight="bold")
    figure.text(0.02, bottom, note, fontsize=FONT - 3, color=MUTED)
    return figure


def tint(colour: str, share: float = 0.14) -> tuple[float, float, float]:
    """A share of the colour mixed with white, opaque: one area may cover another."""
    red, green, blue = (1 - share * (1 - part) for part in to_rgb(colour))
    return red, green, blue


def calm(axes: Axes) -> None:
    """No more ink than the axes need."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(which="both", colors=MUTED, labelsize=FONT - 2)


def plain(axes: Axes, span: tuple[float, float], top: float) -> None:
    """Calm axes with a little room above `top`."""
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
    """Write a PNG under another name first, so that it is never half done."""
    with draft_of(path) as draft:
        figure.savefig(draft, format="png", dpi=dpi)
