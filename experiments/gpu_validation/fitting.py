"""The user's own way: `fit` with `LMSCallback`, on data that comes from the host."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import pairwise
from statistics import median
from typing import Any

import keras
import tensorflow as tf

from experiments.gpu_validation.training import WARM, digest
from experiments.gpu_validation.ways import make_batch, make_model
from lms import LMSCallback
from lms.tf.measure.devices import Device

__all__ = ["fit"]


def fit(settings: Mapping[str, Any], device: Device, note: Callable[..., None]) -> None:
    """Train as many steps as `train` does, and note the same numbers.

    Args:
        settings: Of the trial, with "budget" in bytes.
        device: Where.
        note: Takes results by name.
    """
    if settings.get("deterministic"):
        tf.config.experimental.enable_op_determinism()
    model = make_model({**settings, "way": "lms"})
    steps = WARM + settings["steps"]
    support = LMSCallback(budget=settings.get("budget"), verbose=0)
    ends: list[float] = []
    losses: list[float] = []

    def ended(batch: int, logs: Any = None) -> None:
        losses.append(float(logs["loss"]))
        ends.append(time.perf_counter())
        if batch == WARM - 1:
            device.memory.reset_peak()

    model.fit(
        _data(settings["size"], steps),
        verbose="0",
        shuffle=False,
        callbacks=[support, keras.callbacks.LambdaCallback(on_train_batch_end=ended)],
    )
    report = support.report[0]
    seconds = [after - before for before, after in pairwise(ends)]
    note(
        limit_bytes=device.limit,
        losses=losses,
        median_seconds=median(seconds[WARM - 1 :]),
        peak_bytes=device.memory.peak_bytes,
        weights_sha256=digest(model),
        report=asdict(report) | {"plan": None, "fits_unplanned": report.fits_unplanned},
    )


def _data(size: int, steps: int) -> tf.data.Dataset:
    """One batch again and again; what waits would take a rehearsal's memory."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    data = tf.data.Dataset.from_tensors(make_batch(size)).repeat(steps)
    return data.with_options(options)
