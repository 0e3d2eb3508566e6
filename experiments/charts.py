"""Contents of figures as plain data: points with intervals, lines, bars.

A question says what stands where; `experiments.drawing` draws it. Axes begin at 0, or
say that they do not; what was promised is hollow; what failed is a cross; an interval
is a thin line; one way has one colour.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["COLOURS", "Bar", "Panel", "Series"]

# One for each way to train, in all figures; `lms.report.style` has the first ones too.
COLOURS = {
    "plain": "#6B6B6B",
    "callback": "#D55E00",
    "cheap": "#EDA377",
    "kept": "#8C3B00",
    "rule": "#0072B2",
    "serialised": "#56B4E9",
    "by_hand": "#009E73",
    "remat": "#E69F00",
    "grappler": "#CC79A7",
    "swapping": "#6A3D9A",
    "mixed": "#B8A000",
    "accumulate": "#7A5195",
    "unified": "#444444",
    "xla": "#A0A0A0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points, and the line through them.

    Args:
        points: Pairs of x and y.
        colour: As Matplotlib knows it.
        label: For the legend; empty for none.
        marker: As Matplotlib knows it; "x" for what failed; empty for none.
        line: The same.
        texts: Beside the points, one for each, or none.
        spans: Ends of each point's interval, or none.
        hollow: Whether it was promised, not measured.
    """

    points: Sequence[tuple[float, float]]
    colour: str
    label: str = ""
    marker: str = "o"
    line: str = ""
    texts: Sequence[str] = ()
    spans: Sequence[tuple[float, float]] = ()
    hollow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar, from 0.

    Args:
        label: Before it.
        length: To the right; 0 for what failed.
        colour: As Matplotlib knows it.
        text: Behind it.
        span: Its interval, or None.
        promised: A hollow mark at so much; 0 for none.
    """

    label: str
    length: float
    colour: str
    text: str = ""
    span: tuple[float, float] | None = None
    promised: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes.

    Args:
        title: Above it.
        x: Name of the axis.
        y: The same.
        series: What is drawn into it; those in front last.
        bars: The same, from the top down.
        level: Place of a dashed line: a height, of bars a length.
        ylim: Ends of the axis; the lower one is said if it is not 0.
        xlim: The same.
    """

    title: str = ""
    x: str = ""
    y: str = ""
    series: Sequence[Series] = ()
    bars: Sequence[Bar] = ()
    level: float | None = None
    ylim: tuple[float, float | None] = (0.0, None)
    xlim: tuple[float, float | None] = (0.0, None)
