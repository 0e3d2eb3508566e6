"""Small questions to a card: what it is, its link, launches, and how it refuses.

machine    versions, memory, rates; a convolution is computed there
link       copies by the driver itself, and as the library measures them
launches   seconds of a small op; a barrier of many edges, and of one
refused    no room for what a convolution wants: class and text of the error
batches    seconds of a batch to the device, from pageable and pinned memory
cards      two cards: a copy from the one to the other
"""

import ctypes
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from lms.errors import UnsupportedError
from lms.machine.inventory import read_driver
from lms.tf import compat
from lms.tf.measure.device_rates import measure_hardware
from lms.tf.measure.devices import Device
from lms.tf.measure.free_memory import available_host_bytes
from lms.tf.measure.microbenchmark import seconds_of
from lms.tf.out_of_memory import ran_out
from lms.units import KIB, MIB
from profiling import link_bandwidth
from profiling.record import read_json

__all__ = ["batches", "cards", "hold", "launches", "link", "machine", "refused"]

_Note = Callable[..., None]
_BARRIER = 297  # early ops of the case study's step


def machine(settings: Mapping[str, Any], device: Device, note: _Note) -> None:
    """Note the machine, and where a convolution was computed."""
    del settings
    built = tf.sysconfig.get_build_info()
    driver = read_driver()
    details = tf.config.list_physical_devices("GPU")
    about = tf.config.experimental.get_device_details(details[0])
    note(
        card=about.get("device_name"),
        capability=about.get("compute_capability"),
        cards=len(details),
        driver=driver.version,
        driver_cuda=driver.cuda,
        tensorflow=tf.__version__,
        cuda=str(built.get("cuda_version")),
        cudnn=str(built.get("cudnn_version")),
        limit_bytes=device.limit,
        host_free_bytes=available_host_bytes(),
    )
    with tf.device(device.name):
        volume = tf.random.stateless_normal([1, 16, 16, 16, 4], (0, 1))
        kernel = tf.random.stateless_normal([3, 3, 3, 4, 8], (0, 2))
        made = tf.nn.conv3d(volume, kernel, [1] * 5, "SAME")
    note(computed_on=made.device, sum=float(tf.reduce_sum(made)))
    with suppress(OSError):  # loaded by now, wherever it lies
        note(cudnn=str(ctypes.CDLL("libcudnn.so.9").cudnnGetVersion()))
    note(hardware=asdict(measure_hardware(device)))


def link(settings: Mapping[str, Any], device: Device, note: _Note, trace: Path) -> None:
    """Copies as the library measures them, then by the driver.

    Args:
        settings: The "largest" copy in bytes.
        device: Where.
        note: Takes results by name.
        trace: Beside it lies the profiler's file.
    """
    note(hardware=asdict(measure_hardware(device)))
    output = trace.parent / "link.json"
    words = [f"--output={output}", f"--largest={settings['largest']}B"]
    if code := link_bandwidth.main([*words, "--smallest=64KiB", "--seconds=0.02"]):
        raise RuntimeError(f"profiling.link_bandwidth ended with {code}: see the log")
    found = read_json(output)
    note(fits=found["fits"], stated=found["stated"])


def launches(settings: Mapping[str, Any], device: Device, note: _Note) -> None:
    """Seconds of each op of a chain of small ones; and of edges to the host and back.

    Args:
        settings: How many "ops".
        device: Where.
        note: Takes results by name.
    """
    with tf.device(device.full_name):
        start = tf.Variable(tf.constant(0.5))

    def chain() -> Any:
        value: Any = start.read_value()
        for _ in range(settings["ops"]):
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

    taken = _seconds(chain)
    note(seconds_each=taken / settings["ops"])
    note(edges_seconds=_seconds(early(list)), one_edge_seconds=_seconds(early(one)))


def _seconds(step: Callable[[], Any]) -> float:
    function = tf.function(step, autograph=False, jit_compile=False)

    def call() -> Any:
        with compat.planned_as_is():  # Grappler would make one op of them
            return function()

    return seconds_of(call)


def refused(settings: Mapping[str, Any], device: Device, note: _Note) -> None:
    """Leave a convolution less and less room; note class and text of each error.

    Args:
        settings: None.
        device: A small one.
        note: Takes results by name.
    """
    del settings
    limit = device.limit
    if limit is None:
        raise UnsupportedError("the device must have a limit, got none")
    rng = np.random.default_rng(0)
    with tf.device(device.name):
        x = tf.constant(rng.random((1, 48, 48, 48, 16), np.float32))
        kernel = tf.constant(rng.random((3, 3, 3, 16, 16), np.float32))
    found: list[dict[str, Any]] = []
    size = x.numpy().nbytes
    for room in (size + 32 * MIB, size + 2 * MIB, size // 2):
        held = hold(device, limit - (device.memory.current_bytes or 0) - room)
        begun = time.perf_counter()
        row: dict[str, Any] = {"room_bytes": room - size}
        try:
            with tf.device(device.name):
                row["sum"] = float(
                    tf.reduce_sum(tf.nn.conv3d(x, kernel, [1] * 5, "SAME"))
                )
        except tf.errors.OpError as error:
            text = " ".join(error.message.split())[:300]
            row |= {"class": type(error).__name__, "text": text}
            row["recognised"] = ran_out(error)
        row["seconds"] = time.perf_counter() - begun
        del held
        found.append(row)
        note(tries=found)


def hold(device: Device, size: int) -> list[tf.Tensor]:
    """Take so many bytes, in pieces: else what is left of a chunk may go with it.

    TensorFlow splits a chunk where 128 MiB or half of it are left (bfc_allocator.cc).
    """
    held: list[tf.Tensor] = []
    with tf.device(device.name):
        for piece in (256 * MIB, MIB, 16 * KIB):
            while size >= 2 * piece:
                held.append(tf.zeros([piece // 4]))
                size -= piece
    return held


def cards(settings: Mapping[str, Any], device: Device, note: _Note) -> None:
    """Two cards: a copy from the one to the other."""
    del settings, device
    names = [d.name for d in tf.config.list_logical_devices("GPU")]
    if len(names) < 2:
        raise UnsupportedError("skipped: there is one card")
    with tf.device(names[0]):
        here = tf.random.stateless_normal([1 << 20], (0, 1))
    with tf.device(names[1]):
        there = tf.identity(here)
    note(same=bool(np.array_equal(here.numpy(), there.numpy())), on=there.device)


def batches(settings: Mapping[str, Any], device: Device, note: _Note) -> None:
    """Bytes per second of a batch to the device, from pageable and pinned memory.

    Args:
        settings: The "bytes" of a batch.
        device: Where.
        note: Takes results by name.
    """
    size = settings["bytes"]
    with tf.device("CPU:0"):
        pageable = tf.constant(np.zeros(size // 4, np.float32))
    with tf.device(device.name):
        there = tf.zeros([size // 4])

    @tf.function(autograph=False, jit_compile=False)
    def pinned() -> tf.Tensor:
        with tf.device("CPU:0"):  # what a GPU sends to the host is pinned there
            return tf.identity(there)

    def rate(host: Any) -> float:
        taken: list[float] = []
        for _ in range(6):
            begun = time.perf_counter()
            host.gpu()  # an op's input would be copied once only
            tf.test.experimental.sync_devices()
            taken.append(time.perf_counter() - begun)
        return size / min(taken)

    note(pageable=rate(pageable), pinned=rate(pinned()))
