"""Functions that the worker runs on emulated cards of its own."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lms.emulation.counters import begin_trace, counter, end_trace
from lms.tf.passes.host_variables import move_to_host
from tests.models import SILENT

__all__ = ["added_on_host", "compiled", "copies", "devices", "run_out", "shuffled"]
__all__ += ["split_over_two", "traced", "updated_slices"]


def devices() -> dict[str, Any]:
    """Return names, capabilities and descriptions of cards, as TensorFlow has them."""
    cards = tf.config.list_physical_devices("GPU")
    details = [tf.config.experimental.get_device_details(card) for card in cards]
    names = [device.name for device in tf.config.list_logical_devices("GPU")]
    return {
        "names": names,
        "details": [d["compute_capability"] for d in details],
        "said": [d["device_name"] for d in details],
    }


def run_out() -> dict[str, Any]:
    """An error of TensorFlow's own where there is no room, and room after it."""
    held, said = [], ""
    try:
        while True:
            held.append(tf.ones([1 << 20]))
    except tf.errors.ResourceExhaustedError as error:
        said = str(error).splitlines()[0]
    count = len(held)
    held.clear()
    again = [tf.ones([1 << 20]) for _ in range(count)]
    return {"said": said, "MiB": 4 * count, "again": 4 * len(again)}


def copies(size: int) -> dict[str, Any]:
    """Return bytes and seconds of a copy to the card and back."""
    array = np.random.default_rng(0).integers(0, 255, size, np.uint8)
    tf.identity(tf.constant(array[:1])).numpy()
    before = {way: counter(way) for way in ("h2d", "d2h")}
    start = time.perf_counter()
    with tf.device("GPU:0"):
        back = tf.identity(tf.constant(array)).numpy()
    seconds = time.perf_counter() - start
    moved = {way: counter(way) - count for way, count in before.items()}
    return {"moved": moved, "seconds": seconds, "same": bool((back == array).all())}


def added_on_host(size: int) -> dict[str, Any]:
    """Seconds of an addition to a variable in pinned memory, and its value."""
    with tf.device("GPU:0"):
        variable, one = tf.Variable(tf.zeros([size // 4])), tf.ones([size // 4])
    move_to_host(variable.handle)
    tf.test.experimental.sync_devices()
    start = time.perf_counter()
    tf.raw_ops.AssignAddVariableOp(resource=variable.handle, value=one)
    tf.test.experimental.sync_devices()
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "same": bool((variable.numpy() == 1).all())}


def traced(path: str) -> list[str]:
    """The lanes of what ran while a trace was on."""
    one = tf.ones([256, 256])
    begin_trace()
    tf.linalg.matmul(one, one).numpy()
    with suppress(FileNotFoundError):
        end_trace(f"{path}/none")
    end_trace(path)
    return sorted({line.split()[0] for line in Path(path).read_text().splitlines()})


def shuffled() -> list[bool]:
    """Tell whether pixels become channels, and channels pixels, as on the CPU."""
    x = np.random.default_rng(0).random((2, 8, 8, 4), "float32")

    def same(shuffle: Any) -> bool:
        def made(x: Any) -> Any:
            return shuffle(tf.nn.conv2d(x, tf.ones([3, 3, 4, 4]), 1, "SAME"), 2)

        with tf.device("CPU:0"):
            on_cpu = made(x)
        return np.allclose(tf.function(made)(tf.constant(x)), on_cpu)

    return [same(tf.nn.depth_to_space), same(tf.nn.space_to_depth)]


def compiled() -> dict[str, Any]:
    """Losses with what Keras chooses, `jit_compile="auto"`, and without XLA."""

    def losses(jit: Any) -> list[float]:
        keras.utils.set_random_seed(1)
        hidden = keras.layers.Dense(4, "gelu")
        model = keras.Sequential([keras.Input((8,)), hidden, keras.layers.Dense(1)])
        model.compile("adam", "mse", jit_compile=jit)
        x = np.linspace(0, 1, 64, dtype="float32").reshape(8, 8)
        found = model.fit(x, x[:, :1], epochs=3, verbose=SILENT)
        return [bool(model.jit_compile), *found.history["loss"]]

    own = tf.function(lambda x: 2 * x + 1, jit_compile=True)
    return {
        "auto": losses(jit="auto"),
        "never": losses(jit=False),
        "function": float(own(tf.constant(3.0))),
    }


def updated_slices() -> list[bool]:
    """Tell whether slices are put where they belong, or nearest to it."""
    given = np.arange(180, dtype="float32").reshape(2, 5, 6, 3)
    part = -np.ones((1, 2, 3, 3), "float32")
    found = []
    for start in ((1, 2, 1, 0), (5, 4, 4, 0)):
        made = tf.function(keras.ops.slice_update)(given, tf.constant(start), part)
        at = zip(np.minimum(start, (1, 3, 3, 0)), part.shape, strict=True)
        wanted = given.copy()
        wanted[tuple(slice(i, i + size) for i, size in at)] = part
        found.append(bool((made.numpy() == wanted).all()))
    return found


def split_over_two() -> dict[str, Any]:
    """A step whose halves are on two cards, and what went between them."""
    with tf.device("GPU:0"):
        first = tf.Variable(tf.ones([64, 64]))
    with tf.device("GPU:1"):
        second = tf.Variable(tf.ones([64, 64]))

    @tf.function
    def step(x: Any) -> Any:
        with tf.device("GPU:0"):
            y = tf.linalg.matmul(x, first)
        with tf.device("GPU:1"):
            return tf.reduce_sum(tf.linalg.matmul(y, second))

    before = counter("d2d")
    total = float(step(tf.ones([8, 64])))
    return {"total": total, "between": counter("d2d") - before}
