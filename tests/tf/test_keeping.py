"""What cannot have its state on the host is refused, with what to do."""

from typing import Any

import pytest

from lms.errors import UnsupportedError

pytestmark = pytest.mark.tf


def test_what_is_no_model_or_has_no_weights_is_refused() -> None:
    import keras

    import lms

    no_model: Any = [keras.Variable([1.0])]
    with pytest.raises(TypeError, match=r"`model` must be a keras.Model, got list\."):
        lms.keep_on_host(no_model)
    unbuilt = keras.Sequential([keras.layers.Dense(2)], name="unbuilt")
    with pytest.raises(ValueError, match="`model` must be built, got 'unbuilt'"):
        lms.keep_on_host(unbuilt)


def test_ibm_s_rule_is_refused() -> None:
    import keras
    import numpy as np

    import lms

    model = keras.Sequential([keras.Input((256,)), keras.layers.Dense(128)])
    model.compile("sgd", "mse")
    lms.keep_on_host(model)
    rule: Any = [lms.LMSCallback("1GiB", planner="threshold", verbose=0)]
    x, y = np.ones((4, 256)), np.ones((4, 128))
    before = model.get_weights()
    with pytest.raises(
        UnsupportedError, match="`planner` must be 'budget' for a model"
    ):
        model.fit(x, y, verbose=0, callbacks=[rule])  # pyright: ignore[reportArgumentType]
    assert all(map(np.array_equal, before, model.get_weights()))


def test_a_step_of_many_workers_is_refused() -> None:
    import tensorflow as tf

    import lms

    with lms.on_host():
        weights = tf.Variable(tf.ones([256, 128]))

    def step(x: Any) -> Any:
        total = tf.raw_ops.CollectiveReduceV2(
            input=tf.reduce_sum(x @ weights),
            group_size=2,
            group_key=1,
            instance_key=1,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
        )
        weights.assign_sub(tf.fill([256, 128], total))
        return total

    with pytest.raises(UnsupportedError, match="must belong to one process"):
        lms.fit_in_memory(step, [tf.TensorSpec([4, 256])], budget="1GiB")
