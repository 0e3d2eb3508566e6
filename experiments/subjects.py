"""Models of three kinds, each with a batch: small for a GPU, large for two cores.

Each function returns a compiled Keras model and one batch, as `python -m lms plan` and
the scripts of `profiling` want it: `experiments/subjects.py:unet`.
"""

from typing import Any

import keras
import numpy as np
from keras import layers

from unet3d.model import build_unet

__all__ = ["SUBJECTS", "resnet", "transformer", "unet"]

Batch = tuple[np.ndarray, np.ndarray]


def unet(size: int = 48, filters: int = 8, depth: int = 4) -> tuple[keras.Model, Batch]:
    """The case study's network, with half of its filters and a level less."""
    random = np.random.default_rng(0)
    x = random.standard_normal((1, size, size, size, 4)).astype("float32")
    y = random.integers(0, 2, (1, size, size, size, 3)).astype("uint8")
    return build_unet(size, filters, depth, seed=0), (x, y)


def resnet(size: int = 64, batch: int = 32) -> tuple[keras.Model, Batch]:
    """Twelve residual blocks with batch normalisation (He et al., 2016)."""
    inputs = keras.Input((size, size, 3))
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(inputs)
    for filters, stride in ((16, 1), (32, 2), (64, 2)):
        for block in range(4):
            x = _residual(x, filters, stride if block == 0 else 1)
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, layers.Dense(10, activation="softmax")(x))
    model.compile(
        optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
        loss="sparse_categorical_crossentropy",
    )
    random = np.random.default_rng(0)
    images = random.standard_normal((batch, size, size, 3)).astype("float32")
    return model, (images, random.integers(0, 10, (batch,)).astype("int32"))


def _residual(x: Any, filters: int, stride: int) -> Any:
    short = x
    if stride > 1 or x.shape[-1] != filters:
        short = layers.Conv2D(filters, 1, strides=stride, use_bias=False)(x)
    x = layers.Conv2D(filters, 3, strides=stride, padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    return layers.ReLU()(layers.Add()([short, x]))


def transformer(length: int = 256, batch: int = 8) -> tuple[keras.Model, Batch]:
    """Four layers of attention and feed-forward parts (Vaswani et al., 2017)."""
    width, heads = 128, 4
    inputs = keras.Input((length, width))
    x = inputs
    for _ in range(4):
        attended = layers.MultiHeadAttention(heads, width // heads)(x, x)
        x = layers.LayerNormalization()(layers.Add()([x, attended]))
        inner = layers.Dense(4 * width, activation="gelu")(x)
        x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(width)(inner)]))
    model = keras.Model(inputs, layers.Dense(width)(x))
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="mse")
    random = np.random.default_rng(0)
    tokens = random.standard_normal((batch, length, width)).astype("float32")
    return model, (tokens, np.roll(tokens, 1, axis=1))


SUBJECTS = {"unet": unet, "resnet": resnet, "transformer": transformer}
