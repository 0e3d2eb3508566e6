"""How wrong are TensorFlow's sums over a volume, and those of one axis at a time?

Random volumes of three labels: predictions between 0.44 and 1, of mean 0.72, and
truths that hold a half, a fifth and a twentieth of the voxels. Of each size, in
float32 by TensorFlow's own sums, by `unet3d.sums`, and in float64 by NumPy: the sum
of the predictions, the case study's loss, the soft Dice that it is made of, the
variance of the predictions; and by TensorFlow alone the gradients of a convolution's
bias and of its kernel. All but the loss are those of the label that is farthest off.

Known weakness: the loss averages over the labels, whose errors have both signs, so that
they may happen to cancel. A GPU sums in another way: nothing is said of it.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.charts import COLOURS, Panel, Series
from experiments.question import Answer
from experiments.runner import Book, Row, Rows

__all__ = ["TITLE", "add_settings", "answer", "units", "worst"]

TITLE = "Sums over volumes"
_SIZES = (48, 96, 144, 192, 224, 256)
_RIGHT = 1e-6  # relative

Values = NDArray[np.float64]


def add_settings(parser: Any) -> None:
    """Which sizes: a minute and 2 GiB of memory."""
    parser.add_argument("--sizes", type=int, nargs="+", default=_SIZES)


def units(options: Any) -> Iterable[Callable[[Book], None]]:
    """A unit for each size."""
    for size in options.sizes:
        yield lambda book, size=size: _measure(book, size)


def _measure(book: Book, size: int) -> None:
    if book.find({"size": size}) is not None:
        return
    from unet3d.sum_errors import measure  # needs TensorFlow

    for name, values in measure(size).items():
        row = {**worst(*values), "error": None}
        book.once({"size": size, "of": name}, lambda row=row: row)


def worst(own: Values, ours: Values | None, exact: Values) -> Row:
    """Relative errors of the label that is farthest off, and its value.

    Args:
        own: By TensorFlow's own sums, one number for each label.
        ours: One axis at a time; None if there is no such way.
        exact: In float64.

    Example:
        >>> worst(np.array([1.0, 2.0]), None, np.array([1.0, 4.0]))
        {'own_error': 0.5, 'our_error': None, 'value': 4.0}
    """
    label = int(np.argmax(np.abs(own / exact - 1)))

    def error(values: Values) -> float:
        return float(abs(values[label] / exact[label] - 1))

    apart = None if ours is None else error(ours)
    return {"own_error": error(own), "our_error": apart, "value": float(exact[label])}


def answer(rows: Rows) -> Answer:
    """Relative errors by size."""
    sums = {row["size"]: row["own_error"] for row in rows if row["of"] == "sum"}
    large = max(sums)
    most = max(row["our_error"] for row in rows if row["our_error"] is not None)
    text = (
        f"TensorFlow's sum is wrong by {sums[large]:.1%} at {large}^3. One axis at a "
        f"time, no number is wrong by more than {most:.0e}"
    )
    columns = ["size", "of", "TensorFlow's sum", "one axis at a time", "float64"]
    body = [_cells(row) for row in rows]
    lines = (
        ("own_error", "plain", "TensorFlow's own"),
        ("our_error", "callback", "by axis"),
    )
    series = [
        Series(
            points=[(r["size"], 100 * r[error]) for r in rows if r["of"] == "sum"],
            colour=COLOURS[colour],
            label=label,
            line="-",
        )
        for error, colour, label in lines
    ]
    panel = Panel(x="voxels along each axis", y="relative error, %", series=series)
    return Answer(
        finding=f"{text}.",
        table=("Relative errors of sums over volumes", columns, body),
        verdicts=[(most <= _RIGHT, f"{text}, wanted {_RIGHT:g}")],
        panels=[[panel]],
        headline="Sums of float32 over a volume",
    )


def _cells(row: Row) -> list[str]:
    apart = "" if row["our_error"] is None else f"{row['our_error']:.1e}"
    start = [f"{row['size']}^3", row["of"], f"{row['own_error']:.1e}", apart]
    return [*start, f"{row['value']:.7g}"]
