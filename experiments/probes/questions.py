"""Probes of a card: its hardware, its launches, its copies and its errors.

Each probe takes its knobs and the device, and yields findings by name.
"""

import ctypes
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np
import tensorflow as tf

from lms.machine.inventory import read_driver
from lms.tf import compat
from lms.tf.failures import ran_out
from lms.tf.measure.bench import seconds_of
from lms.tf.measure.devices import Device
from lms.tf.measure.free_memory import available_host_bytes
from lms.tf.measure.speeds import measure_hardware
from lms.units import KIB, MIB

__all__ = ["batches", "cards", "hold", "launches", "machine", "refused"]

_Found = Iterator[dict[str, Any]]
_BARRIER = 297  # early ops of the case study's step


def machine(_: Mapping[str, Any], device: Device) -> _Found:
    """Yield facts of the machine, and where a convolution was computed."""
    built, driver = tf.sysconfig.get_build_info(), read_driver()
    found = tf.config.list_physical_devices("GPU")
    about = tf.config.experimental.get_device_details(found[0])
    yield {
        "card": about.get("device_name"),
        "capability": about.get("compute_capability"),
        "cards": len(found),
        "driver": driver.version,
        "driver_cuda": driver.cuda,
        "tensorflow": tf.__version__,
        "cuda": str(built.get("cuda_version")),
        "cudnn": str(built.get("cudnn_version")),
        "limit_bytes": device.limit,
        "host_free_bytes": available_host_bytes(),
    }
    with tf.device(device.name):
        volume = tf.random.stateless_normal([1, 16, 16, 16, 4], (0, 1))
        kernel = tf.random.stateless_normal([3, 3, 3, 4, 8], (0, 2))
        made = tf.nn.conv3d(volume, kernel, [1] * 5, "SAME")
    yield {"computed_on": made.device, "sum": float(tf.reduce_sum(made))}
    with suppress(OSError):  # cuDNN is loaded by now
        yield {"cudnn": str(ctypes.CDLL("libcudnn.so.9").cudnnGetVersion())}
    yield {"hardware": asdict(measure_hardware(device))}


def launches(knobs: Mapping[str, Any], device: Device) -> _Found:
    """Yield seconds of each of `knobs["ops"]` small ops; and of edges to the host."""
    with tf.device(device.full_name):
        start = tf.Variable(tf.constant(0.5))

    def chain() -> Any:
        value: Any = start.read_value()
        for _ in range(knobs["ops"]):
            value = tf.raw_ops.Sin(x=value)
        return value

    def early(joined: Callable[[list[Any]], list[Any]]) -> Callable[[], Any]:
        def step() -> Any:
            with tf.device(device.full_name):
                ops = [tf.raw_ops.Sin(x=start.read_value()) for _ in range(_BARRIER)]
            with tf.control_dependencies(joined(ops)), tf.device("CPU:0"):
                flag = tf.constant(1) + 1
            with tf.control_dependencies([flag]), tf.device(device.full_name):
                return tf.raw_ops.Sin(x=start.read_value())

        return step

    def one(ops: list[Any]) -> list[Any]:
        with tf.control_dependencies(ops), tf.device(device.full_name):
            return [tf.no_op()]

    yield {"seconds_each": _seconds(chain) / knobs["ops"]}
    yield {"edges_seconds": _seconds(early(list))}
    yield {"one_edge_seconds": _seconds(early(one))}


def _seconds(step: Callable[[], Any]) -> float:
    function = tf.function(step, autograph=False, jit_compile=False)

    def call() -> Any:
        with compat.planned_as_is():  # or Grappler makes one op of all
            return function()

    return seconds_of(call)


def refused(_: Mapping[str, Any], device: Device) -> _Found:
    """Yield class and text of each error of a convolution in less and less memory."""
    rng = np.random.default_rng(0)
    with tf.device(device.name):
        x = tf.constant(rng.random((1, 48, 48, 48, 16), np.float32))
        kernel = tf.constant(rng.random((3, 3, 3, 16, 16), np.float32))
    tries: list[dict[str, Any]] = []
    size = x.numpy().nbytes
    for room in (size + 32 * MIB, size + 2 * MIB, size // 2):
        held = hold(device, (device.limit or 0) - (device.current_bytes or 0) - room)
        begun = time.perf_counter()
        row: dict[str, Any] = {"room_bytes": room - size}
        try:
            with tf.device(device.name):
                made = tf.nn.conv3d(x, kernel, [1] * 5, "SAME")
                row["sum"] = float(tf.reduce_sum(made))
        except tf.errors.OpError as error:
            text = " ".join(error.message.split())[:300]
            row |= {"class": type(error).__name__, "text": text}
            row["recognised"] = ran_out(error)
        row["seconds"] = time.perf_counter() - begun
        del held
        tries.append(row)
        yield {"tries": tries}


def hold(device: Device, size: int) -> list[tf.Tensor]:
    """Take `size` bytes in pieces: TensorFlow may give more than it is asked for.

    A chunk is split only where 128 MiB or half of it are left (bfc_allocator.cc).
    """
    held: list[tf.Tensor] = []
    with tf.device(device.name):
        for piece in (256 * MIB, MIB, 16 * KIB):
            while size >= 2 * piece:
                held.append(tf.zeros([piece // 4]))
                size -= piece
    return held


def cards(_: Mapping[str, Any], device: Device) -> _Found:
    """Copy from one card to another; yield nothing with a single card."""
    names = [d.name for d in tf.config.list_logical_devices("GPU")]
    if len(names) < 2:
        return
    with tf.device(device.name):
        here = tf.random.stateless_normal([1 << 20], (0, 1))
    with tf.device(names[1]):
        there = tf.identity(here)
    yield {"same": bool(np.array_equal(here.numpy(), there.numpy()))}


def batches(knobs: Mapping[str, Any], device: Device) -> _Found:
    """Yield bytes per second of a batch of `knobs["bytes"]`, by its host memory."""
    size = knobs["bytes"]
    with tf.device("CPU:0"):
        pageable = tf.constant(np.zeros(size // 4, np.float32))
    with tf.device(device.name):
        there = tf.zeros([size // 4])

    @tf.function(autograph=False, jit_compile=False)
    def pinned() -> tf.Tensor:
        with tf.device("CPU:0"):  # what a GPU sends to the host is pinned there
            return tf.identity(there)

    for name, host in (("pageable", pageable), ("pinned", pinned())):
        taken: list[float] = []
        for _ in range(6):
            begun = time.perf_counter()
            host.gpu()  # an op's input would be copied once only
            tf.test.experimental.sync_devices()
            taken.append(time.perf_counter() - begun)
        yield {name: size / min(taken)}
