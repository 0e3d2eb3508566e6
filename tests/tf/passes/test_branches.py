"""A branch that is always taken: the other one goes, and the answers stay."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lms.tf.capture.tracing import trace
from lms.tf.passes.branches import ONE_BRANCH
from lms.tf.rewriting import rebuild
from tests.tf.steps import changed, specialised

pytestmark = pytest.mark.tf


def test_ops_of_the_branch_that_is_taken_run_as_all_others() -> None:
    def step(x: Any) -> Any:
        padded = tf.cond(
            tf.reduce_max(x) >= tf.reduce_min(x),
            lambda: (x @ x + 1.0, x),
            lambda: (tf.pad(x[1:], [[1, 0], [0, 0]]), tf.nn.relu(x)),
        )
        return padded[0] * 2.0, padded[1]

    x = tf.random.stateless_normal([8, 8], (1, 2))
    traced = trace(tf.function(step, autograph=False, jit_compile=False), (x,))
    own = specialised(step, x)
    (comparison,) = (n.name for n in own.nodes if n.op == "GreaterEqual")
    nodes = changed(ONE_BRANCH, own, taken={comparison})
    assert {n.op for n in own.nodes} >= {"Switch", "Merge", "Pad"}
    assert not {n.op for n in nodes} & {"Switch", "Merge", "Pad"}
    pairs = zip(
        rebuild(traced, own, nodes)(traced.flat_inputs((x,))),
        step(x),
        strict=True,
    )
    for found, asked in pairs:
        np.testing.assert_array_equal(found.numpy(), asked.numpy())
    assert changed(ONE_BRANCH, own, taken=()) == list(own.nodes)
