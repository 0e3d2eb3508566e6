"""Steps for tests: as TensorFlow's own graph, and one of gradient descent."""

from typing import Any

import numpy as np
import tensorflow as tf

from lms.tf.capture.tracing import input_specs, trace
from lms.tf.lowering import TracedStep, specialise

__all__ = ["DEVICE", "descent", "grouped", "specialised"]

DEVICE = "/job:localhost/replica:0/task:0/device:GPU:0"


def specialised(function: Any, *args: Any) -> TracedStep:
    """A function's step for arguments or their specs."""
    traced = trace(function, args)
    if any(isinstance(given, tf.TensorSpec) for given in args):
        return specialise(traced, input_specs(traced), device=DEVICE)
    return specialise(traced, traced.flat_inputs(args), device=DEVICE)


def descent(layers: int, width: int) -> tuple[Any, tf.Variable]:
    """A step of gradient descent through layers, and its weights."""
    draw = np.random.default_rng(0)
    weights = tf.Variable(
        tf.constant(0.3 * draw.standard_normal((layers, width, width)), "float32")
    )

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = x
            for layer in tf.unstack(weights):
                y = tf.nn.tanh(tf.linalg.matmul(y, layer))
            loss = tf.reduce_mean(tf.square(y - x))
        gradient: Any = tape.gradient(loss, weights)
        weights.assign_sub(0.5 * gradient)
        return loss

    return step, weights


def grouped(filters: tf.Variable) -> Any:
    """A step with a convolution for each channel, which XLA compiles as Keras's is."""

    @tf.function(jit_compile=True)
    def convolved(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.convolution(x, filters, padding="SAME")

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(convolved(tf.tanh(x))))
        gradient: Any = tape.gradient(loss, filters)
        filters.assign_sub(0.1 * gradient)
        return loss

    return step
