"""Models that compute in half precision, as `keras.mixed_precision` makes them."""

from collections.abc import Iterator
from contextlib import contextmanager

import keras
from keras import layers

from experiments.models.data import Maker, Ready, classes, images

__all__ = ["MODELS"]

_CROSS_ENTROPY = "sparse_categorical_crossentropy"


@contextmanager
def _computing_in(policy: str) -> Iterator[None]:
    """Within it, layers are made with this policy."""
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.mixed_precision.set_dtype_policy(before)


def _convolutions(size: int, filters: tuple[int, ...]) -> keras.Model:
    inputs = x = keras.Input((size, size, 3))
    for count in filters:
        x = layers.Conv2D(count, 3, padding="same", activation="relu")(x)
        x = layers.Conv2D(count, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.GlobalAveragePooling2D()(x)
    outputs = layers.Dense(10, activation="softmax", dtype="float32")(x)
    return keras.Model(inputs, outputs)


def _bfloat16() -> Ready:
    with _computing_in("mixed_bfloat16"):
        model = _convolutions(96, (32, 64, 128))
        model.compile(keras.optimizers.Adam(1e-3), _CROSS_ENTROPY)
    return model, images(16, 96), classes(16), 16


def _float16() -> Ready:
    with _computing_in("mixed_float16"):
        model = _transformer(96, 8, width=128, depth=3)
        model.compile(keras.optimizers.AdamW(1e-3), _CROSS_ENTROPY)
    return model, images(16, 96), classes(16), 16


def _transformer(size: int, patch: int, *, width: int, depth: int) -> keras.Model:
    inputs = keras.Input((size, size, 3))
    x = layers.Conv2D(width, patch, strides=patch)(inputs)
    x = layers.Reshape((-1, width))(x)
    for _ in range(depth):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, width // 4, dropout=0.1)(y, y)
        y = layers.LayerNormalization()(x)
        y = layers.Dense(4 * width, activation="gelu")(y)
        x = x + layers.Dense(width)(y)
    x = layers.GlobalAveragePooling1D()(x)
    outputs = layers.Dense(10, activation="softmax", dtype="float32")(x)
    return keras.Model(inputs, outputs)


def _float16_convolutions() -> Ready:
    with _computing_in("mixed_float16"):
        model = _convolutions(96, (32, 64, 128))
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), _CROSS_ENTROPY)
    return model, images(16, 96), classes(16), 16


MODELS: dict[str, Maker] = {
    "bfloat16_cnn": _bfloat16,
    "float16_vit": _float16,
    "float16_cnn": _float16_convolutions,
}
