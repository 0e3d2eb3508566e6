"""A small model whose activations do not fit beside each other in a small budget."""

from typing import Any

import keras
import tensorflow as tf

__all__ = ["BUDGET", "ROWS", "WIDTH", "layers"]

BUDGET = "5MiB"
ROWS, WIDTH = 2048, 64


def layers() -> tuple[Any, tuple[tf.TensorSpec, tf.TensorSpec]]:
    """Eight dense layers; each makes half a MiB."""
    dense = [keras.layers.Dense(WIDTH, activation="tanh") for _ in range(8)]
    model = keras.Sequential([keras.Input((WIDTH,)), *dense])
    model.compile("sgd", "mse")
    spec = tf.TensorSpec([ROWS, WIDTH])
    return model, (spec, spec)
