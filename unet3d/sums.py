"""Sums over volumes that are right at any size: one axis after the other.

TensorFlow merges neighbouring axes, and Eigen then adds all voxels to one running sum,
which stops growing at 2^24 ones: `docs/sums.md` has measurements and sources. Here no
running sum is longer than one axis. The width comes first: its voxels lie together, and
its sums take a width-th of the input's bytes.

Gradients are sums too wherever a small tensor meets a volume: the gradient of `scale`
in `volume * scale` sums over all voxels. `spread` repeats a small tensor along all
spatial axes but the last, so that the product broadcasts along one axis only.

Known weaknesses: the gradient of a convolution's bias is TensorFlow's own sum, 0.4 %
off at 256^3 where all its terms are alike. In front of an instance normalisation it is
zero, so only linear heads have this error. Half precision is summed in half precision.
On GPUs, whose kernels sum otherwise, sums by axis cost a few small ops.
"""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from keras import ops

__all__ = ["mean", "moments", "spread", "total"]


def total(values: Any, axes: Sequence[int], *, keepdims: bool = False) -> Any:
    """Sum over `axes`, which are not negative, from the last to the first."""
    for axis in sorted(axes, reverse=True):
        values = tf.reduce_sum(values, axis, keepdims=keepdims)
    return values


def mean(values: Any, axes: Sequence[int], *, keepdims: bool = False) -> Any:
    """Average over `axes`; arguments and result as in `total`."""
    sizes = _sizes(values)
    count = math.prod(sizes[axis] for axis in axes)
    # The sum is small: dividing it, and not the input, makes no tensor of the input's
    # size, neither here nor in the gradient.
    return total(values, axes, keepdims=keepdims) / tf.cast(count, values.dtype)


def moments(values: Any, axes: Sequence[int]) -> tuple[Any, Any]:
    """Compute mean and variance over `axes`, which stay with size 1.

    The variance's gradient takes the mean as a constant, since the mean's part is zero.
    """
    middle = mean(values, axes, keepdims=True)
    # As one op: a difference and its square would be two tensors of the input's size.
    squares = tf.math.squared_difference(values, tf.stop_gradient(middle))
    return middle, mean(squares, axes, keepdims=True)


def spread(values: Any, volume: Any) -> Any:
    """Repeat (1 or batch, 1, ..., 1, channel) along all but the last axis of `volume`.

    The last spatial axis stays, so the result has a width-th of the volume's size.
    Values do not change; the gradient of a product or a sum with the result is exact.
    """
    sizes, shape = _sizes(volume), _sizes(values)
    for axis in range(len(sizes) - 2):
        if values.shape[axis] != volume.shape[axis]:
            shape[axis] = sizes[axis]
            values = tf.broadcast_to(values, shape)
    return values


def _sizes(values: Any) -> list[Any]:
    """Return the size of each axis: a number, or a tensor if not known yet."""
    shape: Any = ops.shape(values)
    return list(shape)
