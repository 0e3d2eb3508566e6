"""Private symbols of TensorFlow that nothing else tests."""

import gc
from typing import Any
from weakref import ReferenceType, ref

import numpy as np
import pytest
import tensorflow as tf

from experiments.ways import recomputed_by_grappler
from lms.tf import compat
from tests.tf.worker import Worker

pytestmark = pytest.mark.tf


def gpu_options() -> dict[str, Any]:
    from tensorflow.python.eager import context  # noqa: TID251 - what is asked here

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


def test_an_array_that_is_aligned_becomes_a_tensor_without_a_copy() -> None:
    array = compat.aligned(np.ones([2, 3], np.float32))
    assert compat.address_of(compat.host_tensor(array)) == array.ctypes.data


def test_an_attribute_that_is_asked_for_is_not_made() -> None:
    node = compat.NodeDef(name="call", op="PartitionedCall")
    assert not compat.attribute(node, "_XlaMustCompile").b
    assert dict(node.attr) == {}


def test_the_allocator_lists_no_chunks_of_a_failure_that_is_caught(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def run_out() -> str:
        with pytest.raises(tf.errors.ResourceExhaustedError), tf.device("GPU:0"):
            tf.zeros([1 << 40])
        return capfd.readouterr().err

    with compat.errors_alone():
        with compat.errors_alone():
            assert "memory" not in run_out()
        assert "memory" not in run_out()
    assert "ran out of memory" in run_out()


def test_a_built_function_has_its_nodes_devices() -> None:
    host = compat.device_name("CPU:0")
    places = {"there": host, "near": "/device:CPU:0", "anywhere": ""}
    nodes = [
        compat.made_node(name, "Neg", ["x"], device, T=tf.float32)
        for name, device in places.items()
    ]
    nodes[0].attr["_class"].list.s.append(b"loc:@near")
    inputs: list[compat.Input] = [("x", tf.TensorSpec([2]), None)]
    graph_def = compat.graph_def(nodes, None)
    with tf.device("GPU:0"):  # nodes have devices of their own
        function = compat.build_function(graph_def, inputs, ["there:0", "near:0"])
    placed = {op.name: op.device for op in function.graph.get_operations()}
    assert {name: placed[name] for name in places} == places
    assert [y.numpy().tolist() for y in function.call_flat(tf.ones([2]))] == [
        [-1] * 2
    ] * 2


def test_a_trace_is_with_memory_for_all_and_keeps_the_users_other_options() -> None:
    from tensorflow.core.protobuf.config_pb2 import (  # noqa: TID251 - what is asked
        ConfigProto,
    )

    def asked() -> Any:
        context: Any = compat._eager_context()
        serialised = context.function_call_options.config_proto_serialized
        return ConfigProto.FromString(serialised).graph_options.rewrite_options

    tf.config.optimizer.set_experimental_options({"layout_optimizer": False})
    try:
        before = asked()
        with compat._with_memory_for_all():
            assert asked().memory_optimization == before.NO_MEM_OPT
            assert asked().layout_optimizer == before.OFF
        assert asked() == before
        with recomputed_by_grappler(), compat._with_memory_for_all():
            assert asked().memory_optimization == before.RECOMPUTATION_HEURISTICS
    finally:
        tf.config.optimizer.set_experimental_options({"layout_optimizer": True})


def test_a_graph_with_a_custom_gradient_is_not_kept() -> None:
    @tf.custom_gradient
    def doubled(x: tf.Tensor) -> Any:
        return 2.0 * x, lambda upstream: 2.0 * upstream

    def graph() -> ReferenceType[Any]:
        traced = tf.function(doubled).get_concrete_function(tf.TensorSpec([2]))
        return ref(traced.graph)

    with compat.gradients_forgotten():
        forgotten = graph()
    kept = graph()
    gc.collect()
    assert forgotten() is None
    assert kept() is not None
