"""Keras's `argmax` with signs that are told in floats: the same answers."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lms.tf.capture.tracing import trace
from lms.tf.lowering import specialise
from lms.tf.passes.host_transfers import SIGNS_ON_DEVICE
from lms.tf.rewriting import rebuild
from tests.tf.steps import DEVICE, changed

pytestmark = pytest.mark.tf


def test_signs_told_in_floats_are_those_told_in_integers() -> None:
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45, -2.0, 3.0]
    x = tf.constant(
        np.array(np.meshgrid(special, special)).reshape(2, -1).T, tf.float32
    )

    def step(x: Any) -> Any:
        return keras.ops.argmax(x, axis=-1), keras.ops.signbit(x)

    traced = trace(tf.function(step, autograph=False, jit_compile=False), (x,))
    found = specialise(traced, traced.flat_inputs((x,)), device=DEVICE)
    assert found.own is not None
    own = list(found.own.nodes)
    types = {node.attr["T"].type for node in found.nodes if node.op == "Less"}
    assert types == {tf.float32}
    told, asked = (
        rebuild(traced, found, some)(traced.flat_inputs((x,)))
        for some in (found.nodes, own)
    )
    for one, other in zip(told, asked, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    less = frozenset(node.name for node in own if node.op == "Less")
    assert changed(SIGNS_ON_DEVICE, found.own, fixed=less) == own
