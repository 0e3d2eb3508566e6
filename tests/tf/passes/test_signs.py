"""Keras's `argmax` with signs that are told in floats: the same answers."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lms.tf.capture.tracing import trace
from lms.tf.lowering import specialise
from lms.tf.passes.host_transfers import with_signs_on_device
from lms.tf.rewrite.rebuilding import rebuild

pytestmark = pytest.mark.tf


def test_signs_told_in_floats_are_those_told_in_integers() -> None:
    device = "/job:localhost/replica:0/task:0/device:GPU:0"
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45, -2.0, 3.0]
    x = tf.constant(
        np.array(np.meshgrid(special, special)).reshape(2, -1).T, tf.float32
    )

    def step(x: Any) -> Any:
        return keras.ops.argmax(x, axis=-1), keras.ops.signbit(x)

    function = tf.function(step, autograph=False, jit_compile=False)
    traced = trace(function, (x,))
    inputs = traced.flat_inputs((x,))
    given = specialise(traced, inputs, device=device)
    assert with_signs_on_device(given.nodes, (), device) == list(given.nodes)
    nodes = with_signs_on_device(given.nodes, (), "/device:GPU:0")
    types = {node.attr["T"].type for node in nodes if node.op == "Less"}
    assert types == {tf.float32}
    told, asked = (
        rebuild(traced, given, some)(inputs) for some in (nodes, given.nodes)
    )
    for one, other in zip(told, asked, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    less = [node.name for node in given.nodes if node.op == "Less"]
    assert with_signs_on_device(given.nodes, less, "/device:GPU:0") == list(given.nodes)
