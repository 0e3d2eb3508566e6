"""Errors of TensorFlow's sums over a volume, and of sums by one axis at a time.

Random volumes of three labels: predictions between 0.44 and 1, of mean 0.72, and truths
that hold a half, a fifth and a twentieth of the voxels. TensorFlow's own sums and
`unet3d.sums` compute in float32, NumPy in float64: sum and variance of the predictions,
soft Dice, and the case study's loss. Gradients of a convolution's bias and kernel have
TensorFlow's sums alone. Of all but the loss each way's worst label counts.

Known weakness: the loss averages over labels, whose errors may cancel. A GPU sums in
another way, which is not measured.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.question import COLOURS, Answer, Panel, Series
from experiments.runner import Book
from experiments.stats import Row, Rows

__all__ = ["SETTINGS", "TITLE", "answer", "measure", "parts", "worst"]

TITLE = "Sums over volumes"
SETTINGS = {"sizes": (48, 96, 144, 192, 224, 256)}  # a minute and 2 GiB of memory
_RIGHT = 1e-6  # largest relative error of a right sum

Values = NDArray[np.float64]


def parts(options: Any) -> Sequence[int]:
    """Return the sizes."""
    return options.sizes


def measure(book: Book, size: int, _: Any) -> None:
    """Sum volumes of a size in each way."""
    if book.find({"size": size}) is not None:
        return
    from experiments.sum_errors import measure as errors  # needs TensorFlow

    for name, values in errors(size).items():
        row = {**worst(*values), "error": None}
        book.once({"size": size, "of": name}, lambda row=row: row)


def worst(own: Values, ours: Values | None, exact: Values) -> Row:
    """Return each way's largest relative error, and the value at TensorFlow's.

    Arrays have one number for each label; `ours` is None if only TensorFlow sums.

    Example:
        >>> worst(np.array([1.0, 2.0]), None, np.array([1.0, 4.0]))
        {'own_error': 0.5, 'our_error': None, 'value': 4.0}
    """
    known = {
        f"{name}_error": None if one is None else float(np.abs(one / exact - 1).max())
        for name, one in (("own", own), ("our", ours))
    }
    return known | {"value": float(exact[np.argmax(np.abs(own / exact - 1))])}


def answer(rows: Rows) -> Answer:
    """Report relative errors by size."""
    sums = [row for row in rows if row["of"] == "sum"]
    large = max(sums, key=lambda row: row["size"])
    most = max(row["our_error"] for row in rows if row["our_error"] is not None)
    text = (
        f"TensorFlow's sum is wrong by {large['own_error']:.1%} at {large['size']}^3. "
        f"One axis at a time, no number is wrong by more than {_above(most):.1e}"
    )
    columns = ["size", "of", "TensorFlow's sum", "one axis at a time", "float64"]
    lines = (("own", "plain", "TensorFlow's own"), ("our", "callback", "by axis"))
    series = [
        Series(
            points=[(row["size"], 100 * row[f"{name}_error"]) for row in sums],
            colour=COLOURS[colour],
            label=label,
            line="-",
        )
        for name, colour, label in lines
    ]
    panel = Panel(x="voxels along each axis", y="relative error, %", series=series)
    return Answer(
        finding=f"{text}.",
        table=("Relative errors of sums over volumes", columns, [*map(_cells, rows)]),
        verdicts=[(most <= _RIGHT, f"{text}, wanted {_RIGHT:g}")],
        panels=[[panel]],
        headline="Sums of float32 over a volume",
    )


def _above(value: float) -> float:
    """Round a value up to two digits.

    Example:
        >>> f"{_above(3.43e-7):.1e}"
        '3.5e-07'
    """
    digit = 10 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / digit) * digit


def _cells(row: Row) -> list[str]:
    apart = "" if row["our_error"] is None else f"{row['our_error']:.1e}"
    start = [f"{row['size']}^3", row["of"], f"{row['own_error']:.1e}", apart]
    return [*start, f"{row['value']:.7g}"]
