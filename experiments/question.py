"""The form of an answer: sentences, tables and figures as plain data, of rows alone.

A question fills the form; `experiments.drawing` draws its figure. Axes begin at 0, or
say that they do not; predictions are hollow points; a failed training is a cross below
the axis; an interval is a thin line; a way has the same colour in all figures. Colours
and markers are Matplotlib's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from profiling.tables import Table

__all__ = ["COLOURS", "Answer", "Bar", "Panel", "Series", "Verdict", "sentences"]

# One for each way to train, in all figures; `lms.report.style` has the first ones too.
COLOURS = {
    "plain": "#6B6B6B",
    "callback": "#D55E00",
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
    """Points, and the line through them."""

    points: Sequence[tuple[float, float]]  # of crosses: x, and the row below the axis
    colour: str = COLOURS["callback"]
    label: str = ""  # for the legend; empty for none
    marker: str = "o"  # "x" for failed trainings; empty for none
    line: str = ""
    spans: Sequence[tuple[float, float]] = ()  # ends of each point's interval
    hollow: bool = False  # promised, not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar, from 0."""

    label: str
    length: float  # 0 for a failed training
    colour: str = COLOURS["callback"]
    text: str = ""  # behind the bar
    span: tuple[float, float] | None = None  # interval of the length
    promised: float = 0.0  # length at which a hollow point is drawn; 0 for none
    is_open: bool = False  # less was not tried: drawn without a filling


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes, with series or bars, from the top down."""

    title: str = ""
    x: str = ""
    y: str = ""
    series: Sequence[Series] = ()
    bars: Sequence[Bar] = ()
    level: float | None = None  # of a dashed line: a height, of bars a length
    xlim: tuple[float, float | None] = (0.0, None)
    ylim: tuple[float, float] | None = None  # None: from 0
    names: Sequence[str] = ()  # labels of heights 0, 1, ... from the top down
    log: bool = False  # the axis of values: x where there are bars or names, else y


# A claim: True if the claim holds, None if undecided; and its sentence.
Verdict = tuple[bool | None, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer that rows give to a question."""

    finding: str  # a few sentences
    table: Table  # at most eight rows
    more: Sequence[Table] = ()  # full tables, for a page of their own
    verdicts: Sequence[Verdict] = ()  # claims that hold, fail or are undecided
    panels: Sequence[Sequence[Panel]] = ()  # the figure, from the top down
    headline: str = ""  # of the figure
    drawn: str = ""  # the rows in the figure, where these are not all rows


def sentences(verdicts: Iterable[Verdict]) -> str:
    """Write claims as sentences.

    Example:
        >>> sentences([(True, "it holds"), (None, "IBM's may")])
        "It holds. IBM's may."
    """
    return " ".join(f"{text[:1].upper()}{text[1:]}." for _, text in verdicts)
