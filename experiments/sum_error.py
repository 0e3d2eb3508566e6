"""How wrong are TensorFlow's sums over a volume, and those of one axis at a time?

Random volumes of three labels: predictions between 0.44 and 1, of mean 0.72, and truths
that hold a half, a fifth and a twentieth of the voxels. Of each size, in float32 by
TensorFlow's own sums, by `unet3d.sums`, and in float64 by NumPy: the sum of the
predictions, the case study's loss, the soft Dice that it is made of, and the variance
of the predictions, as instance normalisation takes it. By TensorFlow alone: the
gradients of a convolution's bias and of its kernel, of one voxel, which are sums over
the volume too. All but the loss are those of the label that is farthest off.

Claim: summed one axis at a time, all of them are right to one in a million.

Known weakness: the loss averages over the labels, whose errors have both signs, so that
they may happen to cancel. A GPU sums in another way: nothing is said of it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.charts import Panel, Series, draw_panels
from experiments.ledger import Head, Ledger, Row, Rows
from experiments.plots import COLOURS, source
from experiments.question import Answer, Finding

__all__ = ["ANSWER", "main", "worst"]

_EMULATED = "Nothing: sums on the CPU, with all of its memory."
_SIZES = (48, 96, 144, 192, 224, 256)
_RIGHT, _WRONG = 1e-6, 1e-3  # relative
_PLACES = (1e-8, 1e-6, 1e-4, 1e-2)

Values = NDArray[np.float64]


def _add_settings(parser: Any) -> None:
    parser.add_argument("--sizes", type=int, nargs="+", default=_SIZES)


def _run(options: Any) -> None:
    """A minute and 2 GiB of memory."""
    # The page of results imports this file, and needs no TensorFlow.
    from experiments.volume_sums import measure

    ledger = Ledger(options.results, {}, anew=options.anew)
    for size in options.sizes:
        if ledger.find({"size": size}) is None:
            print(f"{size}^3", flush=True)
            for name, values in measure(size).items():
                row = worst(*values)
                ledger.once({"size": size, "of": name}, lambda row=row: row)


def worst(own: Values, ours: Values | None, exact: Values) -> Row:
    """Relative errors of the label that is farthest off, and its value.

    Args:
        own: By TensorFlow's own sums, one number for each label.
        ours: One axis at a time; None if there is no such way.
        exact: In float64.

    Example:
        >>> worst(np.array([1.0, 2.0]), None, np.array([1.0, 4.0]))
        {'own_error': 0.5, 'error': None, 'value': 4.0}
    """
    label = int(np.argmax(np.abs(own / exact - 1)))

    def error(values: Values) -> float:
        return float(abs(values[label] / exact[label] - 1))

    apart = None if ours is None else error(ours)
    return {"own_error": error(own), "error": apart, "value": float(exact[label])}


def _finding(_: Head, rows: Rows) -> Finding:
    sums = {row["size"]: row["own_error"] for row in rows if row["of"] == "sum"}
    first = min((size for size in sums if sums[size] > _WRONG), default=max(sums))
    largest = max(row["error"] for row in rows if row["error"] is not None)
    text = (
        f"TensorFlow's sum is wrong by {sums[first]:.1%} at {first}^3 and by "
        f"{sums[max(sums)]:.1%} at {max(sums)}^3. One axis at a time, no number is "
        f"wrong by more than {largest:.0e}."
    )
    columns = ["size", "of", "TensorFlow's sum", "one axis at a time", "float64"]
    body = [_cells(row) for row in rows]
    table = ("Relative errors of sums over volumes", columns, body)
    return text, table


def _cells(row: Row) -> list[str]:
    apart = "-" if row["error"] is None else f"{row['error']:.1e}"
    start = [f"{row['size']}^3", row["of"], f"{row['own_error']:.1e}", apart]
    return [*start, f"{row['value']:.7g}"]


def _goals(_: Head, rows: Rows) -> Iterator[tuple[str, bool]]:
    largest = max(row["error"] for row in rows if row["error"] is not None)
    text = f"one axis at a time, all are right to {_RIGHT:g}: the worst is off by "
    yield f"{text}{largest:.1e}.", largest <= _RIGHT


def _plot(head: Head, rows: Rows, path: Path) -> None:
    ways = (
        ("own_error", "plain", "TensorFlow's own sum"),
        ("error", "budget", "one axis at a time"),
    )
    names = [*dict.fromkeys(row["of"] for row in rows if row["error"] is not None)]
    panels = [
        Panel(
            title=f"{name[:1].upper()}{name[1:]}",
            x="voxels along each axis",
            y="relative error" if name == names[0] else "",
            series=[
                Series(
                    points=[
                        (row["size"], max(row[error], _PLACES[0] / 10))
                        for row in rows
                        if row["of"] == name
                    ],
                    colour=COLOURS[colour],
                    label=label,
                    line="-",
                )
                for error, colour, label in ways
            ],
            log_ticks=_PLACES,
            ylim=(_PLACES[0] / 20, 1),
        )
        for name in names
    ]
    draw_panels(
        [panels],
        path,
        title="Sums of float32 over a volume",
        note=f"Against sums in float64. Without a GPU. {source(head)}",
        size=(12, 4),
        share=True,
    )


ANSWER = Answer(
    name="sum_error",
    title="Sums over volumes",
    emulated=_EMULATED,
    about=__doc__,
    add_settings=_add_settings,
    run=_run,
    finding=_finding,
    plot=_plot,
    goals=_goals,
)
main = ANSWER.main

if __name__ == "__main__":
    raise SystemExit(main())
