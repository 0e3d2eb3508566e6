"""Work of the test processes: steps in little memory, plain and planned.

Training uses the case study's U-Net. Without gradients that network needs its peak for
one op at its top level; inference uses a network whose skip connections all wait at
full size, as in RED-Net (Mao et al., 2016, arXiv 1603.09056).
"""

import gc
import resource
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import lms
from lms.errors import OutOfMemoryError
from lms.machine.hardware import roofline
from lms.simulation.allocator import SmallPool
from lms.tf import building, compat
from lms.tf.lowering import TracedStep
from lms.tf.measure import speeds
from lms.tf.measure.bench import Bench
from lms.tf.measure.compact_variables import settle_variables, shared_bytes
from lms.tf.measure.devices import Device, find_device
from lms.tf.measure.scratch import measure_scratch
from lms.tf.measure.speeds import measure_costs
from lms.tf.undo import KeptVariables
from lms.units import KIB, MIB
from tests.models import SILENT
from tests.tf.steps import specialised
from unet3d.model import build_unet

__all__ = ["fit_in_a_full_device", "free_holes", "measure_in_a_full_device"]
__all__ += ["measure_in_little_room", "run"]
__all__ += ["settle_all_kinds", "settle_in_a_full_device", "settle_scattered"]
__all__ += ["settle_shared", "small_chunks"]

_STEPS = 4


def run(kind: str, size: int, depth: int, *, planned: bool) -> dict[str, Any]:
    """Run a few steps.

    Args:
        kind: "train", "test", "predict", or "step" for a loop with a `GradientTape`.
        size: Voxels along each axis.
        depth: Levels of the U-Net, or skip connections.
        planned: Whether large model support is used.

    Returns:
        `outcome`, which is "done" or the error's name; the allocator's `peak` after the
        first step; the `reports`; resident bytes before the first step and at their
        peak afterwards, if it was planned.
    """
    keras.utils.set_random_seed(1)
    if kind in ("train", "step"):
        model = build_unet(size, filters=8, depth=depth)
    else:
        model = _mirrored(size, depth)
    watch = _Watch()
    try:
        with _begins_after_planning(watch):
            if kind == "step":
                reports = _loop(model, size, watch, planned=planned)
            else:
                callbacks = [lms.LMSCallback(verbose=0)] if planned else []
                _by_keras(model, kind, size, [*callbacks, watch])
                reports = callbacks[0].report if planned else ()
    except tf.errors.ResourceExhaustedError as error:
        return {"outcome": type(error).__name__}
    return {
        "outcome": "done",
        "peak": tf.config.experimental.get_memory_info("GPU:0")["peak"],
        "reports": [{**asdict(report), "plan": None} for report in reports],
        "resident_before": watch.before,
        "resident_peak": watch.peak,
    }


def _mirrored(size: int, skips: int) -> keras.Model:
    """Convolutions whose outputs are added again, the last one first."""
    inputs = keras.Input((size, size, size, 4))
    x, kept = inputs, []
    for _ in range(skips):
        x = keras.layers.Conv3D(4, 3, padding="same", activation="relu")(x)
        kept.append(x)
    for skip in reversed(kept):
        x = keras.layers.Conv3D(4, 3, padding="same", activation="relu")(x)
        x = keras.layers.Add()([x, skip])
    model = keras.Model(inputs, keras.layers.Conv3D(3, 1)(x))
    model.compile(optimizer="sgd", loss="mse", jit_compile=False)  # pyright: ignore[reportArgumentType]
    return model


class _Watch(keras.callbacks.Callback):
    """Resident bytes before the first step and at most after it.

    Resets the allocator's peak after the first step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before = 0
        self.peak = 0

    def begin(self) -> None:
        """Before the first step: note what is resident, and go on noting."""
        if self.before == 0:
            self.before = self.peak = _resident()
            threading.Thread(target=self._sample, daemon=True).start()

    def end(self, step: int) -> None:
        """After each step."""
        if step == 0:
            tf.config.experimental.reset_memory_stats("GPU:0")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.end(batch)

    on_test_batch_end = on_predict_batch_end = on_train_batch_end

    def _sample(self) -> None:
        while True:
            self.peak = max(self.peak, _resident())
            time.sleep(0.002)


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@contextmanager
def _begins_after_planning(watch: _Watch) -> Iterator[None]:
    """Let a watch begin between a plan and its first step.

    Planning is not what is watched: tracing needs memory too, but not for tensors.
    """
    rebuild = building.rebuild

    def then_begin(*args: Any, **how: Any) -> Any:
        rebuilt = rebuild(*args, **how)
        watch.begin()
        return rebuilt

    building.rebuild = then_begin
    try:
        yield
    finally:
        building.rebuild = rebuild


def _by_keras(model: keras.Model, kind: str, size: int, callbacks: list[Any]) -> None:
    data = _data(size)
    if kind == "train":
        model.fit(data, verbose=SILENT, callbacks=callbacks)
    elif kind == "test":
        model.evaluate(data, verbose=SILENT, callbacks=callbacks)
    else:
        model.predict(data.map(lambda x, y: x), verbose=SILENT, callbacks=callbacks)


def _loop(model: keras.Model, size: int, watch: _Watch, *, planned: bool) -> Any:
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        return loss

    run_step: Any = step
    if planned:
        run_step = lms.fit_in_memory(step, _specs(size))
    losses = []
    for number, (x, y) in enumerate(_data(size)):
        losses.append(float(run_step(x, y)))
        watch.end(number)
    assert losses[-1] < losses[0]
    return run_step.report if planned else ()


def _specs(size: int, batch: int | None = 1) -> list[tf.TensorSpec]:
    return [
        tf.TensorSpec([batch, size, size, size, 4]),
        tf.TensorSpec([batch, size, size, size, 3]),
    ]


def _data(size: int) -> tf.data.Dataset:
    """Batches that are made one by one, so that the data set itself needs no room."""

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        draw = np.random.default_rng(0)
        x = draw.standard_normal((1, size, size, size, 4)).astype("float32")
        y = (x[..., :3] > 0.5).astype("float32")
        for _ in range(_STEPS):
            yield x, y

    return tf.data.Dataset.from_generator(
        batches, output_signature=tuple(_specs(size))
    ).apply(tf.data.experimental.assert_cardinality(_STEPS))


def free_holes(sizes: Sequence[int]) -> dict[str, Any]:
    """Return free fragments found among `sizes`, and the memory that looking took."""
    device = find_device()
    most = max(sizes) + 2 * MIB
    freed, kept = [], []
    for size in sizes:
        freed.append(tf.raw_ops.Empty(shape=[size // MIB, MIB], dtype=tf.uint8))
        kept.append(tf.raw_ops.Empty(shape=[7 * MIB], dtype=tf.uint8))
    none = device.free_holes(most, 64 * KIB)
    del freed
    rest = []
    with suppress(tf.errors.ResourceExhaustedError):  # no hole has room for 7 MiB
        while True:
            rest.append(tf.raw_ops.Empty(shape=[7 * MIB], dtype=tf.uint8))
    pieces = device.free_holes(most, 64 * KIB)
    del rest
    before = device.current_bytes or 0
    device.reset_peak()
    return {
        "none": none,
        "pieces": pieces,
        "found": device.free_holes(most, 64 * KIB),
        "few": device.free_holes(1, 64 * KIB),
        "taken": (device.peak_bytes or 0) - before,
        "left": (device.current_bytes or 0) - before,
        "kept": len(kept),
    }


def small_chunks(sizes: Sequence[int]) -> dict[str, Any]:
    """Where tensors lie in a nook that is made where many small holes are."""
    holes, kept = [], []
    for size in (256, 512, 1024, 64 * 1024) * 8:
        holes.append(tf.raw_ops.Empty(shape=[size], dtype=tf.uint8))
        kept.append(tf.raw_ops.Empty(shape=[256], dtype=tf.uint8))
    del holes
    device = find_device()
    walls = device.keep_pool(SmallPool(sizes=tuple(sizes)))
    before = device.current_bytes or 0
    tensors = [tf.raw_ops.Empty(shape=[size], dtype=tf.uint8) for size in sizes]
    return {
        "places": [compat.address_of(tensor) for tensor in tensors],
        "taken": (device.current_bytes or 0) - before,
        "kept": len(kept) + (walls is not None),
    }


def measure_in_little_room() -> dict[str, Any]:
    """Cost a step of two ops: only one has room to be run alone.

    Returns:
        Which were run, for their time and for their scratch; their `scratch` and
        `seconds`, and those of a `roofline`.
    """

    def step(few: tf.Tensor, many: tf.Tensor) -> Any:
        one: dict[str, Any] = {"ksize": [1] * 4, "strides": [1] * 4, "padding": "SAME"}
        return [
            tf.raw_ops.AvgPoolGrad(orig_input_shape=each.shape, grad=each, **one)
            for each in (few, many)
        ]

    specs = [tf.TensorSpec([count, 256, 256, 1]) for count in (4, 160)]
    traced = specialised(step, *specs)
    names = {
        op.name: "large" if op.outputs[0].size > 32 * MIB else "small"
        for op in traced.graph.ops
        if op.type == "AvgPoolGrad"
    }
    run: dict[str, list[str]] = {"time": [], "measure_scratch": []}
    with pytest.MonkeyPatch.context() as patch:
        for kind, names_run in run.items():
            patch.setattr(Bench, kind, _noting(getattr(Bench, kind), names_run))
        scratch, *_ = measure_scratch(traced, find_device())
        costs = measure_costs(traced, find_device())
    by_roofline = roofline(traced.graph, speeds.measure_hardware(find_device()))
    return {
        "timed": sorted(set(run["time"])),
        "scratch_run": sorted(set(run["measure_scratch"])),
        "scratch": {names[name]: scratch[name] for name in names},
        "seconds": {names[name]: costs.of(name) for name in names},
        "roofline": {names[name]: by_roofline.of(name) for name in names},
    }


def _noting(method: Any, sizes: list[str]) -> Any:
    """The method of a bench, which notes what it runs."""

    def noting(bench: Bench, op: Any) -> Any:
        most = max(spec.shape.num_elements() for _, spec, _ in op.arguments)
        sizes.append("large" if most > 8 * MIB else "small")
        return method(bench, op)

    return noting


def settle_scattered() -> dict[str, Any]:
    """Settle variables that lie in pieces of memory with free ones between."""
    variables, fillers = [], []
    for i in range(4):
        variables.append(tf.Variable(tf.random.stateless_normal([3 << 18], (i, 0))))
        fillers.append(tf.zeros([6 << 18]))
    del fillers
    before = [variable.numpy() for variable in variables]
    span = _span(variables)
    settle_variables(_step_of(variables), find_device())
    return {
        "bytes": sum(value.nbytes for value in before),
        "span_before": span,
        "span_after": _span(variables),
        "kept": _kept(before, variables),
    }


def settle_shared() -> dict[str, Any]:
    """Settle variables and slots that share zeros, where free chunks are larger."""
    size = 3 << 18  # floats: 3 MiB
    zeros = tf.zeros([size])
    slots = [tf.Variable(zeros) for _ in range(3)]
    del zeros
    weights = [
        tf.Variable(tf.random.stateless_normal([size], (i, 0))) for i in range(3)
    ]
    holes, walls = [], []
    for _ in range(4):
        holes.append(tf.raw_ops.Empty(shape=[7, size], dtype=tf.uint8))  # 5.25 MiB
        walls.append(tf.raw_ops.Empty(shape=[MIB], dtype=tf.uint8))
    del holes
    device = find_device()
    variables = [*weights, *slots]
    step = _step_of(variables)
    before = [variable.numpy() for variable in variables]
    there = device.current_bytes or 0
    missing = shared_bytes(step, device)
    settle_variables(step, device)
    for weight in weights:  # from now on what is read is a copy
        weight.scatter_nd_add([[0]], [0.0])
    return {
        "missing": missing,
        "missing_after": shared_bytes(step, device),
        "grown": (device.current_bytes or 0) - there,
        "bytes": sum(value.nbytes for value in before),
        "kept": _kept(before, variables),
        "walls": len(walls),
    }


def settle_all_kinds() -> dict[str, Any]:
    """Settle variables of each type, and then some that find no room."""
    return {"changed": _settle_each_type(), "kept": _settle_without_room()}


def _settle_without_room() -> bool:
    """Settle variables that share a buffer and cannot all have their own."""
    shared = tf.random.stateless_normal([6 << 18], (1, 2))
    expected = shared.numpy()
    variables = [tf.Variable(shared) for _ in range(4)]
    del shared
    settle_variables(_step_of(variables), find_device())
    return _kept([expected] * 4, variables)


def fit_in_a_full_device() -> str:
    """The error of a step that is made where there is room for nothing."""
    weights = tf.Variable(tf.ones([64, 64]))

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(x @ weights))
        gradient: Any = tape.gradient(loss, weights)
        weights.assign_sub(0.1 * gradient)
        return loss

    hogs = _all_that_is_free(find_device())
    hogs += [tf.raw_ops.Empty(shape=[8], dtype=tf.uint8) for _ in range(_crumbs())]
    try:
        lms.fit_in_memory(step, [tf.TensorSpec([64, 64])], budget="16MiB")
    except OutOfMemoryError as error:
        return str(error)
    return f"no error beside {len(hogs)}"


def _crumbs() -> int:
    """Chunks of the least size that are free."""
    free = (find_device().limit or 0) - (find_device().current_bytes or 0)
    return max(0, free // 256 - 2)


def measure_in_a_full_device() -> dict[str, Any]:
    """Rates where there is room for nothing, then for a little, then for all."""
    device = find_device()
    hogs = [tf.raw_ops.Empty(shape=[MIB], dtype=tf.uint8) for _ in range(6)]
    hogs += _all_that_is_free(device)
    try:
        speeds._rate(device, "flops")
        refused = ""
    except OutOfMemoryError as error:
        refused = str(error)
    del hogs[0]
    little = speeds._rate(device, "flops")
    hogs.clear()
    roomy = speeds._rate(device, "flops")
    hogs = _all_that_is_free(device)
    return {
        "refused": refused,
        "rates": [little, roomy, speeds._rate(device, "flops")],
        "hogs": len(hogs),
    }


def settle_in_a_full_device() -> dict[str, Any]:
    """Settle variables for which there is room, but not for a copy besides."""
    before = [np.arange(size << 18, dtype=np.float32) for size in (6, 3, 2)]
    variables = [tf.Variable(tf.constant(value)) for value in before]
    gc.collect()
    step, device = _step_of(variables), find_device()
    hogs = _all_that_is_free(device)
    there = device.current_bytes
    settle_variables(step, find_device())
    held = KeptVariables(tuple(step.variables.values()))
    held.put_back(held.values())  # in their own room: there is no other
    return {
        "kept": _kept(before, variables),
        "grown": (device.current_bytes or 0) - (there or 0),
        "hogs": len(hogs),
    }


def _kept(before: Sequence[np.ndarray], variables: Sequence[tf.Variable]) -> bool:
    pairs = zip(before, variables, strict=True)
    return all((value == variable.numpy()).all() for value, variable in pairs)


def _all_that_is_free(device: Device) -> list[Any]:
    """Tensors of all sizes that an emulated device has room for."""
    hogs: list[Any] = []
    size = 8 * MIB
    while size >= 256:
        fits = size <= (find_device().limit or 0) - (device.current_bytes or 0)
        try:  # TensorFlow would wait for what does not fit
            found = tf.raw_ops.Empty(shape=[size], dtype=tf.uint8) if fits else None
        except tf.errors.ResourceExhaustedError:
            found = None
        if found is None:
            size //= 2
        else:
            hogs.append(found)
    return hogs


def _settle_each_type() -> list[str]:
    """Settle variables of several types; returns those whose value has changed."""
    values = [
        tf.constant([1.5, -2.0], tf.bfloat16),
        tf.constant([[1, 2], [3, 4]], tf.int64),
        tf.constant([True, False]),
        tf.constant(["a\0", "b"]),
        tf.constant(2.5, tf.float64),
        tf.zeros([0, 3]),
    ]
    variables = [tf.Variable(value) for value in values]
    step = specialised(lambda: [tf.identity(v) for v in variables])
    for _ in range(2):
        settle_variables(step, find_device())
    pairs = zip(values, variables, strict=True)
    return [
        value.dtype.name
        for value, variable in pairs
        if np.array(value).tolist() != np.array(variable).tolist()
        or variable.read_value().shape != value.shape
    ]


def _step_of(variables: list[tf.Variable]) -> TracedStep:
    return specialised(lambda: tf.add_n([tf.reduce_sum(v) for v in variables]))


def _span(variables: list[tf.Variable]) -> int:
    """Bytes from the first variable's memory to the end of the last one's."""
    tensors = [variable.read_value() for variable in variables]
    starts = [compat.address_of(tensor) for tensor in tensors]
    sizes = [tensor.shape.num_elements() * tensor.dtype.size for tensor in tensors]
    ends = [start + size for start, size in zip(starts, sizes, strict=True)]
    return max(ends) - min(starts)
