"""Probes of the simulator's assumptions: copies beside computing, costs, launches.

    beside     seconds of convolutions, of copies, and of both in one function
    costs      each op of the case study's step alone, over what data sheets promise
    launches   seconds of an op in a long chain of small ones

Copies are made as swaps make them: by send and receive within a function, from pinned
memory. What a GPU does with its own launches is in none of the sums.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from experiments.gpu_validation.training import make_model
from lms.ir.graph import GraphView
from lms.machine.costs import Costs, roofline
from lms.machine.hardware import Hardware
from lms.tf import compat
from lms.tf.capture.keras_step import iterator_of, step_of
from lms.tf.capture.specialising import TracedStep, specialise
from lms.tf.capture.tracing import input_specs, trace
from lms.tf.measure.device_rates import measure_hardware
from lms.tf.measure.devices import Device
from lms.tf.measure.microbenchmark import idle_seconds, seconds_of
from lms.tf.measure.op_costs import measure_costs
from lms.tf.measure.scratch import measure_scratch

__all__ = ["beside", "costs", "launches"]

_CHANNELS = 16
_CONVOLUTIONS = 8
_MOST = 12  # ops that are named: those with most scratch

_Note = Callable[..., None]


def beside(settings: Mapping[str, Any], device: Device, note: _Note) -> None:
    """Copies each way, convolutions, and both: how much of the shorter is hidden.

    Args:
        settings: "size" of the convolved volume, "bytes" of what is copied.
        device: Where.
        note: Takes results by name.
    """
    host = compat.device_name("CPU:0")
    size = settings["size"]
    with tf.device(device.full_name):
        volume = tf.zeros([1, size, size, size, _CHANNELS])
        kernel = tf.zeros([3, 3, 3, _CHANNELS, _CHANNELS])
        there = tf.zeros([settings["bytes"] // 4])
    with tf.device(host):
        here = tf.zeros([settings["bytes"] // 4])

    def compute() -> Any:
        value: Any = volume
        for _ in range(_CONVOLUTIONS):
            value = tf.nn.conv3d(value, kernel, [1] * 5, "SAME")
        return tf.reduce_sum(value)

    def out() -> Any:
        with tf.device(host):  # the shape alone: a result would come back
            return tf.raw_ops.Shape(input=tf.identity(there))

    def back() -> Any:
        with tf.device(device.full_name):
            return tf.identity(here)

    alone = _seconds_together(compute)
    for name, copy in (("d2h", out), ("h2d", back)):
        copied, both = _seconds_together(copy), _seconds_together(compute, copy)
        hidden = (alone + copied - both) / min(alone, copied)
        note(
            **{
                f"{name}_seconds": copied,
                f"{name}_beside_seconds": both,
                f"{name}_hidden": hidden,
            }
        )
    note(compute_seconds=alone, bytes=settings["bytes"])


def _seconds_together(*parts: Callable[[], Any]) -> float:
    """Seconds of one function that does all parts, less those of an empty call."""

    @tf.function(autograph=False)
    def run() -> Any:
        return [part() for part in parts]

    def call() -> Any:
        with compat.planned_as_is():  # Grappler would leave identities out
            return run()

    taken = seconds_of(call)
    return max(taken - idle_seconds(1), taken / 10)


def costs(settings: Mapping[str, Any], device: Device, note: _Note) -> None:
    """Measured costs of a step's ops over a roofline of rates measured here.

    Args:
        settings: Of the network, and whether "tf32" may be used.
        device: Where.
        note: Takes results by name.
    """
    tf.config.experimental.enable_tensor_float_32_execution(settings["tf32"])
    step = _step(settings, device)
    hardware = measure_hardware(device)
    note(ops=len(step.graph.ops), layout_transposes=_transposes(step.graph))
    measured = measure_costs(step, device)
    note(kinds=_by_kind(step.graph, measured, hardware), total_seconds=measured.total)
    scratch = measure_scratch(step, device)
    most = sorted(scratch.items(), key=lambda item: -item[1])[:_MOST]
    note(scratch=dict(most), flops=hardware.flops, bandwidth=hardware.memory_bandwidth)


def _step(settings: Mapping[str, Any], device: Device) -> TracedStep:
    size = settings["size"]
    cube = (1, size, size, size)
    specs = (tf.TensorSpec((*cube, 4)), tf.TensorSpec((*cube, 3), tf.uint8))
    model = make_model({**settings, "way": "lms"})
    traced = trace(step_of(model, "train"), (), iterator=iterator_of(specs))
    return specialise(traced, input_specs(traced), device=device.full_name)


def _transposes(graph: GraphView) -> int:
    """Transposes that Grappler put in for another layout, as it names them."""
    return sum("LayoutOptimizer" in op.name for op in graph.ops)


def _by_kind(
    graph: GraphView, measured: Costs, hardware: Hardware
) -> dict[str, dict[str, float]]:
    """By type of op: how many, and their seconds, measured and promised."""
    promised = roofline(graph, hardware)
    counts, seconds = Counter[str](), defaultdict[str, float](float)
    least = defaultdict[str, float](float)
    for op in graph.ops:
        if op.persistent:
            continue
        counts[op.type] += 1
        seconds[op.type] += measured.of(op.name)
        least[op.type] += promised.of(op.name)
    return {
        kind: {
            "ops": counts[kind],
            "seconds": seconds[kind],
            "roofline_seconds": least[kind],
        }
        for kind in sorted(seconds, key=lambda kind: -seconds[kind])
    }


def launches(settings: Mapping[str, Any], device: Device, note: _Note) -> None:
    """Seconds of each op of a chain of small ones, which take nothing themselves.

    Args:
        settings: How many "ops".
        device: Where.
        note: Takes results by name.
    """
    count = settings["ops"]
    with tf.device(device.full_name):
        start = tf.Variable(tf.constant(0.5))

    @tf.function(autograph=False)
    def chain() -> Any:
        value: Any = start.read_value()
        for _ in range(count):
            value = tf.raw_ops.Sin(x=value)
        return value

    def call() -> Any:
        with compat.planned_as_is():  # Grappler would make one op of them
            return chain()

    taken = seconds_of(call)
    note(ops=count, seconds_of_chain=taken, seconds_each=taken / count)
