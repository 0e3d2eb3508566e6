"""What the workers run: a step with a grouped convolution, in little memory."""

from typing import Any

import tensorflow as tf

from lms.tf.measure.devices import find_device
from lms.tf.measure.scratch import measure_scratch
from tests.tf.steps import specialised

__all__ = ["grouped", "scratch_in_little_room"]


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


def _filters(channels: int) -> tf.Variable:
    return tf.Variable(tf.random.stateless_normal([7, 7, 1, channels], (1, 2)))


def scratch_in_little_room(channels: int) -> dict[str, Any]:
    """Scratch of the compiled calls, and the peak of finding it."""
    spec = tf.TensorSpec([2, 4, 4, channels])
    step, device = specialised(grouped(_filters(channels)), spec), find_device()
    device.memory.reset_peak()
    scratch = measure_scratch(step, device)
    calls = [op.name for op in step.graph.ops if "Call" in op.type]
    return {
        "scratch": sorted(scratch[name] for name in calls),
        "peak": device.memory.peak_bytes,
        "memory": device.limit,
    }
