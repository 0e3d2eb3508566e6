"""What the workers run: steps of a U-Net in little memory, plain and planned."""

import resource
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import lms
from lms.units import KIB
from unet3d.model import build_unet

__all__ = ["run"]

_STEPS = 4


def run(
    kind: str, size: int, depth: int, *, planned: bool, budget: str | None = None
) -> dict[str, Any]:
    """Run a few steps.

    Args:
        kind: "train", "test", "predict", or "step" for a loop with a `GradientTape`.
        size: Voxels along each axis of the U-Net.
        depth: Its levels.
        planned: Whether large model support is used.
        budget: Its budget, None for what the device has.

    Returns:
        `outcome`, which is "done" or the error's name; the allocator's `peak` after the
        first step; the `report`, if there is one; resident bytes before the first step
        and at their peak.
    """
    keras.utils.set_random_seed(1)
    model = build_unet(size, filters=8, depth=depth)
    watch = _Watch()
    report: Callable[[], Any] = tuple
    try:
        if kind == "step":
            report = _loop(model, size, watch, planned=planned, budget=budget)
        else:
            callback = lms.LMSCallback(budget=budget, verbose=0) if planned else None
            report = lambda: callback.report if callback else ()  # noqa: E731
            _by_keras(model, kind, size, [callback, watch] if callback else [watch])
    except tf.errors.ResourceExhaustedError as error:
        return {"outcome": type(error).__name__}
    reports = [asdict(one) for one in report()]
    for one in reports:
        one["planner"] = one.pop("plan")["planner"]
    return {
        "outcome": "done",
        "peak": tf.config.experimental.get_memory_info("CPU:0")["peak"],
        "reports": reports,
        "resident_before": watch.before,
        "resident_peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB,
    }


class _Watch(keras.callbacks.Callback):
    """Resident bytes before the first step; resets the allocator's peak after it."""

    def __init__(self) -> None:
        super().__init__()
        self.before = 0

    def begin(self) -> None:
        """Before each step."""
        if self.before == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.before = pages * resource.getpagesize()

    def end(self, step: int) -> None:
        """After each step."""
        if step == 0:
            tf.config.experimental.reset_memory_stats("CPU:0")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.begin()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.end(batch)

    on_test_batch_begin = on_predict_batch_begin = on_train_batch_begin
    on_test_batch_end = on_predict_batch_end = on_train_batch_end


def _by_keras(model: keras.Model, kind: str, size: int, callbacks: list[Any]) -> None:
    data = _data(size)
    if kind == "train":
        model.fit(data, verbose=0, callbacks=callbacks)
    elif kind == "test":
        model.evaluate(data, verbose=0, callbacks=callbacks)
    else:
        model.predict(data.map(lambda x, y: x), verbose=0, callbacks=callbacks)


def _loop(
    model: keras.Model, size: int, watch: _Watch, *, planned: bool, budget: str | None
) -> Callable[[], Any]:
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
        run_step = lms.fit_in_memory(step, _specs(size), budget=budget)
    losses = []
    for number, (x, y) in enumerate(_data(size)):
        watch.begin()
        losses.append(float(run_step(x, y)))
        watch.end(number)
    assert losses[-1] < losses[0]
    return lambda: run_step.report if planned else ()


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
