"""Layers that Keras does not have: instance normalisation, and a lean leaky ReLU.

Source: Ulyanov, Vedaldi, Lempitsky, "Instance Normalization", arXiv 1607.08022,
with a scale and an offset learnt per channel as in batch normalisation.
"""

import math
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from unet3d.sums import moments, spread, total

__all__ = ["SLOPE", "InstanceNormalization", "LeanLeakyReLU"]

SLOPE = 0.01  # of leaky ReLU, as in nnU-Net


@keras.saving.register_keras_serializable(package="unet3d")
class InstanceNormalization(keras.layers.Layer):
    """Give each channel of each sample mean beta and deviation gamma over its voxels.

        mean, variance  over the spatial axes, in float32
        scale  = gamma / sqrt(variance + epsilon)
        offset = beta - mean * scale
        output = input * scale + offset

    Every sum, in the gradient too, is over one axis at a time (see `unet3d.sums`).
    Scale and offset are repeated along all spatial axes but the last, where they are
    still small: the forward pass makes three tensors of the input's size, and keeps the
    input for the backward pass, never the normalised input of the textbook form. With a
    16-bit policy the gradient is our own, so that the float32 copy is not kept.

    An `epsilon` of 1e-3, in squared units of the input, is that of keras-contrib's
    layer of the same name, which Ellis's network uses.

    Example:
        >>> layer = InstanceNormalization()
        >>> layer(ops.ones((1, 2, 2, 2, 3))).shape
        TensorShape([1, 2, 2, 2, 3])
    """

    def __init__(self, *, epsilon: float = 1e-3, **options: Any) -> None:
        super().__init__(**options)
        self.epsilon = epsilon

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Make gamma (ones) and beta (zeros), each of shape (channel,) in float32."""
        options: dict[str, Any] = {
            "shape": (input_shape[-1],),
            "dtype": "float32",
            "autocast": False,
        }
        self.gamma = self.add_weight(name="gamma", initializer="ones", **options)
        self.beta = self.add_weight(name="beta", initializer="zeros", **options)

    def call(self, inputs: Any) -> Any:
        """Normalise `inputs` of shape (batch, ..., channel); the type stays."""
        if inputs.dtype == "float32":
            mean, inverse = self._statistics(inputs)
            scale = self.gamma * inverse
            return _scaled(inputs, scale, self.beta - mean * scale)
        return self._in_16_bits(inputs, self.gamma.value, self.beta.value)

    def _statistics(self, inputs: Any) -> tuple[Any, Any]:
        spatial = tuple(range(1, len(inputs.shape) - 1))
        mean, variance = moments(ops.cast(inputs, "float32"), spatial)
        return mean, ops.rsqrt(variance + self.epsilon)

    def _in_16_bits(self, inputs: Any, gamma: Any, beta: Any) -> Any:
        spatial = tuple(range(1, len(inputs.shape) - 1))

        @tf.custom_gradient
        def normalise(inputs: Any, gamma: Any, beta: Any) -> Any:
            mean, inverse = self._statistics(inputs)
            scale = gamma * inverse

            def gradient(upstream: Any) -> Any:
                # Else TensorFlow casts all inputs before the backward pass begins.
                with tf.control_dependencies([upstream]):
                    middle: Any = tf.cast(mean, inputs.dtype)
                exact: Any = ops.cast(upstream, "float32")
                apart: Any = ops.cast(inputs - spread(middle, inputs), "float32")
                rest: Any = ops.cast(middle, "float32") - mean  # what rounding took
                whole = total(exact, spatial, keepdims=True)
                along = total(exact * apart, spatial, keepdims=True) + rest * whole
                along *= inverse
                voxels = math.prod(inputs.shape[axis] for axis in spatial)
                slope = -scale * inverse * along / voxels
                first = _scaled(upstream, scale, -scale * whole / voxels - slope * mean)
                return (
                    first + inputs * ops.cast(spread(slope, inputs), inputs.dtype),
                    total(along, (0, *spatial)),
                    total(whole, (0, *spatial)),
                )

            return _scaled(inputs, scale, beta - mean * scale), gradient

        return normalise(inputs, gamma, beta)

    def compute_output_shape(
        self, input_shape: tuple[int | None, ...]
    ) -> tuple[int | None, ...]:
        """Return the input's shape."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that rebuild the layer."""
        return {**super().get_config(), "epsilon": self.epsilon}


@keras.saving.register_keras_serializable(package="unet3d")
class LeanLeakyReLU(keras.layers.Layer):
    """Leaky ReLU of slope 0.01, whose gradient keeps the output instead of the input.

    Both have one sign, so numbers are those of Keras's layer. A convolution behind it
    keeps the output anyway.

    Example:
        >>> LeanLeakyReLU()(ops.array([-1.0, 2.0])).numpy().tolist()
        [-0.009999999776482582, 2.0]
    """

    def call(self, inputs: Any) -> Any:
        """Multiply values below 0 by the slope."""

        @tf.custom_gradient
        def leaky(values: Any) -> Any:
            found = tf.nn.leaky_relu(values, SLOPE)

            def gradient(upstream: Any) -> Any:
                rest = {"features": found, "alpha": SLOPE}
                return tf.raw_ops.LeakyReluGrad(gradients=upstream, **rest)

            return found, gradient

        return leaky(inputs)


def _scaled(volume: Any, scale: Any, offset: Any) -> Any:
    """Compute volume * scale + offset in the volume's type."""
    scale, offset = (
        ops.cast(spread(small, volume), volume.dtype) for small in (scale, offset)
    )
    return volume * scale + offset
