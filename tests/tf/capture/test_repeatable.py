"""Which ops may run a second time, as their graph says it."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from lms.tf.capture.keras_step import step_of_data
from lms.tf.capture.tracing import trace
from lms.tf.lowering import specialise
from lms.tf.measure.devices import find_device

pytestmark = pytest.mark.tf


def _ops(model: Any, x: Any, y: Any) -> dict[str, list[Any]]:
    """The ops of a Keras model's training step by type."""
    specs = tuple(tf.TensorSpec(part.shape, part.dtype) for part in (x, y))
    traced = trace(step_of_data(model, "train"), [specs])
    graph = specialise(traced, specs, device=find_device().full_name).graph
    found: dict[str, list[Any]] = {}
    for op in graph.ops:
        found.setdefault(op.type, []).append(op)
    return found


def test_products_and_seeded_noise_may_run_twice_and_what_writes_may_not() -> None:
    inputs = keras.Input((6, 8))
    x = layers.MultiHeadAttention(2, 4, dropout=0.1)(inputs, inputs)
    x = layers.Dropout(0.2)(layers.LayerNormalization()(x))
    model = keras.Model(inputs, layers.Dense(3)(x))
    model.compile("adam", "mse", jit_compile=False)  # pyright: ignore[reportArgumentType]
    x, y = np.zeros((4, 6, 8), np.float32), np.zeros((4, 6, 3), np.float32)
    ops = _ops(model, x, y)
    again = {kind for kind, some in ops.items() if all(op.repeatable for op in some)}
    assert {"Softmax", "StatelessRandomUniformV2", "Mean"} <= again
    assert again & {"MatMul", "BatchMatMulV2", "BatchMatMulV3"}
    writes = [op for some in ops.values() for op in some if op.writes]
    assert writes
    assert not any(op.repeatable for op in writes)
    cheap = {kind for kind, some in ops.items() if any(op.cheap for op in some)}
    assert "Mul" in cheap
    assert not cheap & {"Softmax", "MatMul", "StatelessRandomUniformV2"}


def test_a_pooling_runs_once_since_its_gradient_takes_more_than_its_output() -> None:
    inputs = keras.Input((8, 8, 3))
    x = layers.MaxPooling2D()(layers.Conv2D(4, 3, use_bias=False)(inputs))
    model = keras.Model(inputs, layers.Dense(2)(layers.Flatten()(x)))
    model.compile("sgd", "mse", jit_compile=False)  # pyright: ignore[reportArgumentType]
    ops = _ops(model, np.zeros((2, 8, 8, 3), np.float32), np.zeros((2, 2), np.float32))
    assert all(op.repeatable for op in ops["Conv2D"])
    assert not any(op.repeatable for op in ops["MaxPool"])
