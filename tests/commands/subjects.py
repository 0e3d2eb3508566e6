"""Models and batches that `python -m lms plan` is asked about."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers


def resnet() -> tuple[Any, Any]:
    """Residual blocks on images, never built before; inputs as arrays of doubles.

    Four gradients meet between the blocks: their sum's bits depend on its order.
    """
    x = np.random.default_rng(0).standard_normal((8, 64, 64, 3))
    return _residual(), (x, np.arange(8))


def small(batch: int = 8) -> tuple[Any, Any]:
    x = inputs = keras.Input((64, 64, 3))
    for _ in range(3):
        x = layers.Conv2D(16, 3, padding="same", activation="relu")(x)
    model = keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling2D()(x)))
    model.compile("adam", "mse")
    return model, (tf.TensorSpec([batch, 64, 64, 3]), tf.TensorSpec([batch, 1]))


def tiny() -> tuple[Any, Any]:
    """One layer."""
    model = keras.Sequential([layers.Dense(4)])
    model.compile("adam", "mse")
    return model, (tf.TensorSpec([8, 16]), tf.TensorSpec([8, 4]))


def dense() -> tuple[Any, Any]:
    """Layers whose weights are most of what they take, never built before."""
    hidden = [layers.Dense(256, activation="relu", use_bias=False) for _ in range(4)]
    model = keras.Sequential([*hidden, layers.Dense(4)])
    model.compile("adam", "mse")
    return model, (tf.TensorSpec([8, 256]), tf.TensorSpec([8, 4]))


def _residual() -> keras.Model:
    inputs = keras.Input((64, 64, 3))
    x = layers.Conv2D(16, 3, padding="same")(inputs)
    for _ in range(2):
        y = layers.BatchNormalization()(x)
        y = layers.Conv2D(16, 3, padding="same", activation="relu")(y)
        x = layers.Add()([x, layers.Conv2D(16, 3, padding="same")(y)])
    x = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, x)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


def nothing() -> None:
    """No model."""


def of_batch(batch: int) -> Any:
    return small(batch)


def uncompiled() -> tuple[Any, Any]:
    return keras.Sequential([layers.Dense(4)]), tiny()[1]


def failing() -> tuple[Any, Any]:
    raise RuntimeError("no data here\nand more")


def eager() -> tuple[Any, Any]:
    model, batch = tiny()
    model.compile("sgd", "mse", run_eagerly=True)
    return model, batch


def open_batch() -> tuple[Any, Any]:
    return tiny()[0], (tf.TensorSpec([None, 16]), tf.TensorSpec([None, 4]))


def wrong_batch() -> tuple[Any, Any]:
    return _residual(), (tf.TensorSpec([8, 7]), tf.TensorSpec([8]))


def words() -> tuple[Any, Any]:
    return tiny()[0], (["a", "b"], ["c", "d"])


def interrupted(batch: int) -> tuple[Any, Any]:
    """The small model, and Ctrl-C at the second size of a search."""
    if batch > 8:
        raise KeyboardInterrupt
    return small(batch)
