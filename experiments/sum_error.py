"""How wrong are TensorFlow's sums over a volume, and those of one axis at a time?

    python -m experiments.sum_error

Random volumes of three labels: predictions between 0.44 and 1, of mean 0.72, and truths
that hold a half, a fifth and a twentieth of the voxels. Of each size, in float32 by
TensorFlow's own sums, by `unet3d`, and in float64 by NumPy: the sum of the predictions,
the case study's loss, the soft Dice that it is made of, and the variance of the
predictions, as instance normalisation takes it. All but the loss are those of the label
that is farthest off.

A GPU sums otherwise: there both should be right. A minute and 2 GiB of memory.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from profiling.tables import markdown
from unet3d.losses import SMOOTH, soft_dice, weighted_dice_loss
from unet3d.sums import moments, total

__all__ = ["main", "measure"]

_SIZES = (144, 192, 224, 256)
_VOXELS = (1, 2, 3)
_HELD = (0.5, 0.2, 0.05)  # parts of the voxels that a label holds

Volume = NDArray[np.float32]
Sum = Callable[[Any], Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table.

    Args:
        arguments: The words after `python -m experiments.sum_error`.
    """
    parser = argparse.ArgumentParser(
        prog="python -m experiments.sum_error",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=_SIZES)
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    columns = ["size", "of", "TensorFlow's sum", "one axis at a time", "float64"]
    body = [cells for size in options.sizes for cells in _rows(size)]
    print(markdown(("Relative errors of sums over volumes", columns, body)))
    return 0


def measure(size: int) -> dict[str, tuple[NDArray[np.float64], ...]]:
    """Sum, loss, Dice and variance of a volume of `size`^3.

    Returns:
        For each its values by TensorFlow's own sums, one axis at a time, and in
        float64.

    Example:
        >>> own, ours, exact = measure(8)["loss"]
        >>> np.abs(ours / exact - 1).max() < 1e-6
        np.True_
    """
    rng = np.random.default_rng(0)
    shape = (1, size, size, size, len(_HELD))
    guess = rng.random(shape, np.float32) * np.float32(0.56) + np.float32(0.44)
    truth = (rng.random(shape, np.float32) < _HELD).astype(np.float32)
    found = {
        "sum": (_naive(guess), total(guess, _VOXELS), _exact(guess)),
        "loss": (
            1 - np.mean(_dice(truth, guess, _naive)),
            weighted_dice_loss(truth, guess),
            1 - np.mean(_dice(truth, guess, _exact)),
        ),
        "Dice": (
            _dice(truth, guess, _naive),
            soft_dice(truth, guess),
            _dice(truth, guess, _exact),
        ),
        "variance": (
            tf.nn.moments(tf.constant(guess), _VOXELS)[1],
            moments(guess, _VOXELS)[1],
            _exact(np.square(guess - (_exact(guess) / size**3))) / size**3,
        ),
    }
    return {
        name: tuple(np.asarray(way, np.float64).ravel() for way in ways)
        for name, ways in found.items()
    }


def _dice(truth: Volume, guess: Volume, add: Sum) -> Any:
    return (2 * add(truth * guess) + SMOOTH) / (add(truth) + add(guess) + SMOOTH)


def _naive(values: Any) -> NDArray[np.float64]:
    return np.asarray(tf.reduce_sum(values, _VOXELS), np.float64)


def _exact(values: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(values.sum(axis=_VOXELS, dtype=np.float64))


def _rows(size: int) -> list[list[str]]:
    rows = []
    for name, (own, ours, exact) in measure(size).items():
        worst = int(np.argmax(np.abs(own / exact - 1)))
        errors = (f"{abs(way[worst] / exact[worst] - 1):.1e}" for way in (own, ours))
        rows.append([f"{size}^3", name, *errors, f"{exact[worst]:.7g}"])
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
