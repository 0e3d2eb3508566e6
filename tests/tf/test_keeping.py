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
    import tensorflow as tf

    import lms

    weights = _weights()

    def step(x: Any) -> Any:
        weights.assign_sub(tf.fill([256, 128], tf.reduce_sum(x @ weights)))

    asked: Any = {"budget": "1GiB", "planner": "threshold"}
    with pytest.raises(UnsupportedError, match="`planner` must be 'budget' for a"):
        lms.fit_in_memory(step, [tf.TensorSpec([4, 256])], **asked)
    assert weights.numpy().min() == 1


def test_a_step_of_many_workers_is_refused() -> None:
    import tensorflow as tf

    import lms

    weights = _weights()

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


def _weights() -> Any:
    """A variable on the host."""
    import tensorflow as tf

    import lms

    with lms.on_host():
        return tf.Variable(tf.ones([256, 128]))
