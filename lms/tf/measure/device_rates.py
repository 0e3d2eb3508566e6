"""Measured rates of the present device, and of its link to the host."""

import logging
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lms.errors import OutOfMemoryError
from lms.machine.hardware import Hardware, LinkRates
from lms.tf import compat
from lms.tf.measure.devices import Device
from lms.tf.measure.free_memory import available_host_bytes
from lms.tf.measure.measurements import Measurements, measurements_of
from lms.tf.measure.microbenchmark import idle_seconds, seconds_of
from lms.tf.measure.scratch import free_bytes
from lms.tf.out_of_memory import ran_out
from lms.units import KIB, MIB, Seconds, format_bytes

__all__ = ["call_seconds", "measure_hardware", "small_kernel_seconds"]

_LOG = logging.getLogger("lms")

# Length of the chain that times a small op; key of the result.
_CHAINED, _SMALL = 1024, "small"

# Length of the chain behind matmuls; time of the matmuls over launches of the chain;
# most matmuls; key of the result.
_BEHIND, _AHEAD, _MOST_PRODUCTS, _KERNEL = 256, 1.5, 64, "kernel"

# Rates are measured on tensors of 128 MiB, at most 1/32 of the device's memory: a GPU
# copies a few MiB in less time than the request takes.
_COPIED, _PART = 128 * MIB, 32

# A copy of 1 KiB takes no longer than the latency of any copy.
_FEW = KIB

# Where 4 tensors of 128 MiB do not fit, smaller ones are measured, of 64 KiB or more.
_LEAST_COPIED, _HELD = 64 * KIB, 4

# Most rows of the square matrices whose product measures the compute rate.
_SQUARE = 4096

# An op of less than 0.005 seconds is timed in a call of 33: on a fast card a call of
# one takes longer to start and to wait for than to run. The other 32 take their own
# time. The fastest of 3 timings counts, since a busy host makes a card no slower.
_ALONE, _MORE, _TIMINGS = 0.005, 32, 3


def measure_hardware(device: Device) -> Hardware:
    """The present device and its link, measured.

    Args:
        device: The device that steps run on.
    """
    rates = _link_rates(device)
    small = small_op_seconds(measurements_of(device))
    return Hardware(
        name=device.name,
        memory=device.limit or available_host_bytes() or 1,
        flops=_flops(device),
        memory_bandwidth=_memory_bandwidth(device),
        h2d=rates.h2d,
        d2h=rates.d2h,
        latency=rates.latency,
        launch=small,
        source="measured",
    )


def _flops(device: Device) -> float:
    """Float operations per second of a product of two square matrices."""

    def rate(size: int) -> float:
        rows = _rows(size)
        with tf.device(device.full_name):
            square = tf.ones([rows, rows])
        return 2 * rows**3 / _seconds_each(_squared, square)

    return _where_room_is(device, "flops", rate)


def _rows(size: int) -> int:
    """Rows of the largest square matrix within `size` bytes, at most 4,096."""
    return min(_SQUARE, int((size / 4) ** 0.5) // 64 * 64 or 64)


def _memory_bandwidth(device: Device) -> float:
    """Bytes per second that the device reads and writes when it copies a tensor."""

    def rate(size: int) -> float:
        with tf.device(device.full_name):
            source = tf.ones([size // 4])
        return 2 * size / _seconds_each(lambda x: tf.raw_ops.DeepCopy(x=x), source)

    return _where_room_is(device, "bandwidth", rate)


def _seconds_each(run: Callable[[Any], Any], tensor: Any) -> Seconds:
    """Seconds of an op on a tensor, without the overhead of a call."""
    one = _fastest(_repeated(run, tensor, 1))
    if one >= _ALONE:
        return one
    many = _fastest(_repeated(run, tensor, 1 + _MORE))
    # Something else may have held the short call up: at least half of the long call
    # counts.
    return max((many - one) / _MORE, many / (1 + _MORE) / 2)


def _fastest(call: Callable[[], Any]) -> Seconds:
    return min(seconds_of(call) for _ in range(_TIMINGS))


def _repeated(run: Callable[[Any], Any], tensor: Any, count: int) -> Callable[[], Any]:
    """A call that runs an op on a tensor `count` times, and returns the last result."""

    @tf.function(autograph=False)
    def repeated(tensor: Any) -> Any:
        return _in_turn(run, tensor, count)

    def call() -> Any:
        with compat.planned_as_is():  # Grappler would run equal ops once
            return repeated(tensor)

    return call


def _in_turn(run: Callable[[Any], Any], tensor: Any, count: int) -> Any:
    """The last result of `count` runs of an op on a tensor, one after the other."""
    made = tensor
    for _ in range(count):
        with tf.control_dependencies([made]):
            made = run(tensor)
    return made


def _squared(square: Any) -> Any:
    return tf.raw_ops.MatMul(a=square, b=square)


def _where_room_is(device: Device, kind: str, rate: Callable[[int], float]) -> float:
    """A rate of the device, measured on tensors that fit its free memory.

    An earlier rate, measured on tensors at least as large, counts instead.

    Args:
        device: The device.
        kind: The rate's key.
        rate: Measures the rate on two tensors of the given bytes.

    Raises:
        OutOfMemoryError: If not even small tensors fit.
    """
    usual = size = _copied(device)
    free = free_bytes(device)
    measured = measurements_of(device)
    while size > _LEAST_COPIED and size * _HELD > free:
        size //= 2
    known = measured.rates.get(kind)
    if known is not None and known[0] >= size:
        return known[1]
    while True:
        try:
            found = rate(size)
        except tf.errors.OpError as error:
            if not ran_out(error):
                raise
            if known is not None:
                return known[1]
            if size <= _LEAST_COPIED:
                raise OutOfMemoryError(
                    f"Could not measure {device.name}: tensors of {format_bytes(size)} "
                    "do not fit. Delete other models and tensors on the device, or use "
                    "a smaller model."
                ) from error
            size = max(_LEAST_COPIED, size // _HELD)
            continue
        if size < usual:
            sizes = format_bytes(size), format_bytes(usual)
            _LOG.warning("Measured on %s, as %s do not fit (%s).", *sizes, kind)
        measured.rates[kind] = size, found
        return found


def _link_rates(device: Device) -> LinkRates:
    """Rates of copies between the device and the host's memory; measured once."""
    measured = measurements_of(device)
    if measured.link is None:
        measured.link = _carried_rates(device, _copied(device))
    return measured.link


def _carried_rates(device: Device, size: int) -> LinkRates:
    """Rates of copies as swaps make them: by send and receive within a function.

    Copies of eager tensors differ: they take pageable memory, first wait for the whole
    device, and the copy of an op's input is kept (`CopyToDevice` in tensor_handle.cc,
    `mirror` in execute.cc, both in TensorFlow's common_runtime/eager). Only the shape
    of a copied tensor is returned: its bytes would be copied again.
    """
    there, here = device.full_name, compat.device_name("CPU:0")
    with tf.device(there):
        large, small = tf.zeros([size], tf.uint8), tf.zeros([_FEW], tf.uint8)
    held = _called(_carrier(here, "copied:0"), large)()[0]  # pinned, as a swap's

    def seconds(place: str, tensor: Any) -> Seconds:
        return seconds_of(_called(_carrier(place, "shape:0"), tensor))

    few, away, back = seconds(here, small), seconds(here, large), seconds(there, held)
    idle = call_seconds(measurements_of(device), 1)
    # A copy that the noise of a call hides counts as a tenth of the call.
    return LinkRates(
        h2d=size / max(back - few, back / 10),
        d2h=size / max(away - few, away / 10),
        latency=max(few - idle, 0.0),
    )


def _carrier(place: str, output: str) -> Any:
    """A function that copies its argument to `place`, and returns `output`."""
    nodes = [
        compat.made_node("copied", "Identity", ["argument"], place, T=tf.uint8),
        compat.made_node("shape", "Shape", ["copied"], place, T=tf.uint8),
    ]
    argument = ("argument", tf.TensorSpec([None], tf.uint8), None)
    return compat.build_function(compat.graph_def(nodes, None), [argument], [output])


def _called(function: Any, tensor: Any) -> Callable[[], Any]:
    def call() -> Any:
        with compat.planned_as_is():  # Grappler would remove identities
            return function.call_flat(tensor)

    return call


def _copied(device: Device) -> int:
    return _COPIED if device.limit is None else min(_COPIED, device.limit // _PART)


def call_seconds(measured: Measurements, arguments: int) -> Seconds:
    """Seconds of a call that does nothing, with this number of arguments."""
    count = max(1, arguments)
    key = f"idle {count}"
    if key not in measured.seconds:
        measured.seconds[key] = idle_seconds(count)
    return measured.seconds[key]


def small_op_seconds(measured: Measurements) -> Seconds:
    """Seconds of a small op in a chain of them."""
    if _SMALL not in measured.seconds:
        one, many = (seconds_of(_chain(count)) for count in (1, _CHAINED))
        # Something else may have held the short call up; no op takes no time at all.
        alone = many - one if many > one else many
        measured.seconds[_SMALL] = alone / (_CHAINED - 1)
    return measured.seconds[_SMALL]


def small_kernel_seconds(device: Device) -> Seconds:
    """Seconds that a small op keeps the device busy, without its launch.

    Measured in a chain of small ops, all launched while matmuls keep the device busy.
    Where the matmuls do not fit, or are too short, the time of a launch counts.
    """
    measured = measurements_of(device)
    launch = small_op_seconds(measured)
    if _KERNEL not in measured.seconds and device.is_gpu:
        rate = _flops(device)
        rows = _rows(measured.rates["flops"][0])
        products = math.ceil(_AHEAD * _BEHIND * launch * rate / (2 * rows**3))
        if products > _MOST_PRODUCTS or 4 * _HELD * rows**2 > free_bytes(device):
            return launch
        with tf.device(device.full_name):
            square = tf.ones([rows, rows])
        none, many = (
            seconds_of(_chain(count, square, products)) for count in (1, _BEHIND)
        )
        alone = (many - none) / (_BEHIND - 1)  # not above 0 where noise hides it
        measured.seconds[_KERNEL] = alone if alone > 0 else launch
    return min(launch, measured.seconds.get(_KERNEL, launch))


def _chain(count: int, square: Any = 0.0, products: int = 0) -> Callable[[], Any]:
    """A call of `count` small ops, one after the other, behind matmuls of a matrix."""

    @tf.function(autograph=False)
    def chain(square: Any) -> Any:  # a captured one would be kept with the function
        with tf.control_dependencies([_in_turn(_squared, square, products)]):
            value: Any = start.read_value()
        for _ in range(count):
            value = tf.raw_ops.Sin(x=value)
        return value

    def call() -> Any:
        with compat.planned_as_is():  # Grappler would compose them into one
            return chain(square)

    start = tf.Variable(tf.ones([]))
    return call
