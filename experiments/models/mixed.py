"""Models that compute in half precision, as `keras.mixed_precision` makes them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
from keras import layers, optimizers

from experiments.models.data import CROSS_ENTROPY, MODELS, Ready, classes, images


def _made(
    policy: str, network: Callable[[], keras.Model], optimizer: Callable[[], Any]
) -> Ready:
    """A network whose layers are made under a policy."""
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy(policy)
    try:
        model = network()
        model.compile(optimizer(), CROSS_ENTROPY)
    finally:
        keras.mixed_precision.set_dtype_policy(before)
    return model, images(16, 96), classes(16), 16


def _convolutions() -> keras.Model:
    inputs = x = keras.Input((96, 96, 3))
    for count in (32, 64, 128):
        x = layers.Conv2D(count, 3, padding="same", activation="relu")(x)
        x = layers.Conv2D(count, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.GlobalAveragePooling2D()(x)
    outputs = layers.Dense(10, activation="softmax", dtype="float32")(x)
    return keras.Model(inputs, outputs)


def _transformer(patch: int = 8, width: int = 128) -> keras.Model:
    inputs = keras.Input((96, 96, 3))
    x = layers.Conv2D(width, patch, strides=patch)(inputs)
    x = layers.Reshape((-1, width))(x)
    for _ in range(3):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, width // 4, dropout=0.1)(y, y)
        y = layers.LayerNormalization()(x)
        y = layers.Dense(4 * width, activation="gelu")(y)
        x = x + layers.Dense(width)(y)
    x = layers.GlobalAveragePooling1D()(x)
    outputs = layers.Dense(10, activation="softmax", dtype="float32")(x)
    return keras.Model(inputs, outputs)


for _name, _policy, _network, _optimizer in (
    ("bfloat16_cnn", "mixed_bfloat16", _convolutions, lambda: optimizers.Adam(1e-3)),
    ("float16_vit", "mixed_float16", _transformer, lambda: optimizers.AdamW(1e-3)),
    (
        "float16_cnn",
        "mixed_float16",
        _convolutions,
        lambda: optimizers.SGD(0.01, momentum=0.9),
    ),
):
    MODELS[_name] = partial(_made, _policy, _network, _optimizer)
