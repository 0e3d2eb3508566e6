"""Private symbols of TensorFlow that nothing else tests."""

from typing import Any

import pytest

from tests.tf.worker import Worker

pytestmark = pytest.mark.tf


def gpu_options() -> dict[str, Any]:
    from tensorflow.python.eager import context  # noqa: TID251 - what is asked here

    from lms.tf import compat

    compat.set_gpu_options(timestamped_allocator=True, force_gpu_compatible=True)
    compat.set_gpu_options(kernel_tracker_max_pending=3)
    made: Any = context.context()
    options, refused = made.config.gpu_options, ""
    try:
        compat.set_gpu_options(no_such_option=1)
    except AttributeError as error:
        refused = str(error)
    return {
        "compatible": options.force_gpu_compatible,
        "timestamped": options.experimental.timestamped_allocator,
        "pending": options.experimental.kernel_tracker_max_pending,
        "refused": refused,
    }


def test_gpu_options_reach_the_runtime(worker: Worker) -> None:
    found = worker.ask("tests.tf.test_compat:gpu_options", memory=None)
    assert "no_such_option" in found.pop("refused")
    assert found == {"compatible": True, "timestamped": True, "pending": 3}


def test_a_function_s_graphs_are_collected_when_it_is_first_called() -> None:
    import tensorflow as tf

    from lms.tf import compat

    @tf.function(autograph=False)
    def doubled(x: tf.Tensor) -> tf.Tensor:
        return tf.multiply(x, 2.0, name="doubled")

    found: list[Any] = []
    with compat.collected_graphs(found), compat.swapped_by_grappler():
        doubled(tf.ones([4]))
    assert "doubled" in [node.name for graph in found for node in graph.node]


def test_a_device_s_limit_is_known_by_its_full_name() -> None:
    from lms.tf import compat

    local = "/job:localhost/replica:0/task:0/device:"
    assert (compat.allocator_limit(f"{local}CPU:0") or 0) > 0
    assert compat.allocator_limit(f"{local}GPU:9") is None
