"""Layers that Keras does not have: instance normalisation.

Source: Ulyanov, Vedaldi, Lempitsky, "Instance Normalization", arXiv 1607.08022,
with a scale and an offset learnt per channel as in batch normalisation.
"""

from typing import Any

import keras
from keras import ops

from unet3d.sums import moments, spread

__all__ = ["InstanceNormalization"]


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
    input (with a 16-bit policy its float32 copy too) for the backward pass, never the
    normalised input of the textbook form.

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
        spatial = tuple(range(1, len(inputs.shape) - 1))
        exact = ops.cast(inputs, "float32")
        mean, variance = moments(exact, spatial)
        scale = self.gamma * ops.rsqrt(variance + self.epsilon)
        offset = self.beta - mean * scale
        scale, offset = (
            ops.cast(spread(small, inputs), inputs.dtype) for small in (scale, offset)
        )
        return inputs * scale + offset

    def compute_output_shape(
        self, input_shape: tuple[int | None, ...]
    ) -> tuple[int | None, ...]:
        """Return the input's shape."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that rebuild the layer."""
        return {**super().get_config(), "epsilon": self.epsilon}
