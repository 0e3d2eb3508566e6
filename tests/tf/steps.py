"""Steps for tests: as TensorFlow's own graph, and one of gradient descent."""

from typing import Any

import numpy as np
import tensorflow as tf

from lms.tf.capture.loops import control_flow
from lms.tf.capture.tracing import input_specs, trace
from lms.tf.lowering import PASSES, TracedStep, specialise
from lms.tf.nodes import Nodes
from lms.tf.passes import Pass, Step

__all__ = ["DEVICE", "changed", "descent", "grouped", "specialised"]

DEVICE = "/job:localhost/replica:0/task:0/device:GPU:0"


def specialised(function: Any, *args: Any) -> TracedStep:
    """A function's step for arguments or their specs, whose passes are checked."""
    traced = trace(function, args)
    are_specs = any(isinstance(given, tf.TensorSpec) for given in args)
    inputs = input_specs(traced) if are_specs else traced.flat_inputs(args)
    found = specialise(traced, inputs, device=DEVICE)
    _check_passes(found, found.own or found)
    return found


def _check_passes(found: TracedStep, own: TracedStep) -> None:
    """Each pass leaves nothing to find, and undoes nothing that earlier ones ensure."""
    variables = {a.name: a.variable for a in found.arguments if a.variable is not None}
    known = {"variables": variables, "fixed": control_flow(own.nodes)}
    known |= {"outputs": own.outputs, "on_host": variables.keys()}
    graph, step = Nodes(own.nodes, own.library), Step(device=DEVICE, **known)
    for i, one in enumerate(PASSES):
        assert set(map(id, one.requires)) <= set(map(id, PASSES[:i]))
        one.run(graph, step)
        assert not any([*each.find(graph, step)] for each in PASSES[: i + 1])


def changed(by: Pass, step: TracedStep, **known: Any) -> list[Any]:
    """The step's nodes after a pass."""
    graph = Nodes(step.nodes, step.library)
    by.run(graph, Step(device=DEVICE, **known))
    return [*graph]


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
