"""What the workers run: steps with variables that are not on the device."""

from typing import Any

import tensorflow as tf

from lms.tf.capture.specialising import specialise
from lms.tf.capture.tracing import trace

__all__ = ["read_from_another_device"]

_LOCAL = "/job:localhost/replica:0/task:0"


def read_from_another_device() -> dict[str, Any]:
    """Bytes of the tensors of a step on one device whose weights lie on another."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
    with tf.device("CPU:1"):
        weights = tf.Variable(tf.ones([64, 32]))
    x = tf.ones([8, 64])

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.device("CPU:0"):
            return tf.matmul(x, weights)

    traced = trace(step, [x])
    found = specialise(traced, traced.flat_inputs([x]), device=f"{_LOCAL}/device:CPU:0")
    reads = [op for op in found.graph.ops if op.type == "ReadVariableOp"]
    return {
        "read": [tensor.size for op in reads for tensor in op.outputs],
        "moves": [not op.varies for op in reads],
        "captured": found.captured_bytes,
    }
