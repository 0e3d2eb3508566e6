"""Sums over random volumes: TensorFlow's own, one axis at a time, and in float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from unet3d.losses import SMOOTH, soft_dice, weighted_dice_loss
from unet3d.sums import moments, total

__all__ = ["measure"]

_VOXELS = (1, 2, 3)
_HELD = (0.5, 0.2, 0.05)  # share of the voxels with each label

Volume = NDArray[np.float32]
Values = NDArray[np.float64]
Sum = Callable[[Any], Any]


def measure(size: int) -> dict[str, tuple[Values, Values | None, Values]]:
    """Compute sums over a volume of `size`^3, and numbers that are made of sums.

    Each has values by TensorFlow's own sums, by sums of one axis at a time (None where
    only TensorFlow's own exist), and in float64.
    """
    rng = np.random.default_rng(0)
    shape = (1, size, size, size, len(_HELD))
    guess = rng.random(shape, np.float32) * np.float32(0.56) + np.float32(0.44)
    truth = (rng.random(shape, np.float32) < _HELD).astype(np.float32)
    found: dict[str, tuple[Any, Any, Any]] = {
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
        "bias gradient": (
            tf.raw_ops.BiasAddGrad(out_backprop=guess),
            None,
            _exact(guess),
        ),
        "kernel gradient": (
            _kernel_gradient(truth[..., :1], guess),
            None,
            _exact(truth[..., :1] * guess),
        ),
    }
    return {
        name: (_flat(own), None if ours is None else _flat(ours), _flat(exact))
        for name, (own, ours, exact) in found.items()
    }


def _flat(values: Any) -> Values:
    return np.asarray(values, np.float64).ravel()


def _dice(truth: Volume, guess: Volume, add: Sum) -> Any:
    return (2 * add(truth * guess) + SMOOTH) / (add(truth) + add(guess) + SMOOTH)


def _naive(values: Any) -> Values:
    return np.asarray(tf.reduce_sum(values, _VOXELS), np.float64)


def _exact(values: NDArray[Any]) -> Values:
    return np.asarray(values.sum(axis=_VOXELS, dtype=np.float64))


def _kernel_gradient(volume: Volume, gradient: Volume) -> tf.Tensor:
    return tf.raw_ops.Conv3DBackpropFilterV2(
        input=volume,
        filter_sizes=[1, 1, 1, 1, len(_HELD)],
        out_backprop=gradient,
        strides=[1] * 5,
        padding="SAME",
    )
