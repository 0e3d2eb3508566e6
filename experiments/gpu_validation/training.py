"""One training: losses, seconds, peak, and what shows that tensors left the device.

`tf.function` without XLA is what the others are compared with: Keras turns XLA on by
itself where there is a GPU, which is a way of its own here. What is known is noted at
once, so that a process that dies leaves what it had.
"""

import hashlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import keras
import numpy as np
import psutil
import tensorflow as tf

from experiments.gpu_validation.evidence import swap_nodes
from experiments.gpu_validation.probes import hold
from lms.errors import BudgetError
from lms.fit.fitted import FittedFunction
from lms.planning.settings import read_settings
from lms.tf import compat
from lms.tf.measure.devices import Device
from lms.tf.rewrite.transports import SendReceive
from lms.units import MIB
from profiling.measured import measured_steps
from profiling.sessions import MARK, record_steps
from profiling.timelines import figures_of, median_figures
from unet3d.model import build_unet

__all__ = ["train"]

# Steps that initialise: the optimizer's variables, autotuning, the host's memory.
_WARM = 2
_BATCH = 4 * MIB  # at least, so that a copy is more than its latency
_DEVICES = "lms.tf.measure.devices"
_Note = Callable[..., None]


def train(
    settings: Mapping[str, Any], device: Device, note: _Note, trace: Path
) -> None:
    """Train and note what is seen.

    Args:
        settings: Of the trial.
        device: Where.
        note: Takes results by name.
        trace: Name of trace files, without an ending.
    """
    if settings["way"] != "XLA":
        tf.config.experimental.enable_op_determinism()
    model, batch = _make_model(settings), _make_batch(settings["size"])
    process = psutil.Process()
    note(limit_bytes=device.limit, resident_before_bytes=process.memory_info().rss)
    started = time.perf_counter()
    with _transport(settings):
        run = _prepare(settings, model, batch, note)
        note(preparation_seconds=time.perf_counter() - started)
        graphs: list[Any] = []
        losses: list[float] = []
        with compat.collected_graphs(graphs):
            losses.append(_loss(run, batch))
    resident = process.memory_info().rss
    note(
        first_seconds=time.perf_counter() - started,
        resident_bytes=resident,
        nodes=swap_nodes(graphs),
    )
    losses += [_loss(run, batch) for _ in range(_WARM - 1)]
    held = _take_room(device) if settings.get("held") else None
    _steps(settings, run, batch, device, losses, note)
    del held
    note(report=_report_of(run), weights_sha256=_digest(model))
    if settings.get("batches"):
        note(batches=_batch_rates(device, max(_BATCH, 16 * settings["size"] ** 3)))
    if settings.get("traced"):
        try:
            note(**_lanes(run, batch, settings["traced"], trace))
        except Exception as error:  # without CUPTI, say: the rest stays good
            note(trace_error=f"{type(error).__name__}: {error}")


def _steps(
    settings: Mapping[str, Any],
    run: Callable[..., Any],
    batch: Sequence[tf.Tensor],
    device: Device,
    losses: list[float],
    note: _Note,
) -> None:
    """Steps until they are enough, or have taken their time."""
    seconds: list[float] = []
    peaks: list[int | None] = []
    ends = time.perf_counter() + settings["seconds"]
    while len(seconds) < settings["steps"]:
        device.memory.reset_peak()
        begun = time.perf_counter()
        losses.append(_loss(run, batch))
        seconds.append(time.perf_counter() - begun)
        peaks.append(device.memory.peak_bytes)
        note(
            steps=len(seconds),
            median_seconds=statistics.median(seconds),
            longest_seconds=max(seconds),
            peak_bytes=max((p for p in peaks if p is not None), default=None),
            peaks=sorted({p for p in peaks if p is not None}),
            losses=losses,
        )
        if time.perf_counter() > ends and len(seconds) > 1:
            return


def _transport(settings: Mapping[str, Any]) -> AbstractContextManager[Any]:
    """The carrier of tensors: the library's choice, or that for other TensorFlows."""
    if not settings.get("fallback"):
        return nullcontext()
    made = SendReceive(host=compat.device_name("CPU:0"))
    return patch(f"{_DEVICES}.transport_to", return_value=made)


def _take_room(device: Device) -> Any:
    """Hold all that the step leaves of the device, and a twentieth of what it takes."""
    peak, limit = device.memory.peak_bytes, device.limit
    if peak is None or limit is None:
        return None
    return hold(device, limit - peak + peak // 20)


def _make_model(settings: Mapping[str, Any]) -> keras.Model:
    """The case study's network, its optimizer's slots made."""
    keras.utils.set_random_seed(0)
    size, filters, depth = (settings[key] for key in ("size", "filters", "depth"))
    model = build_unet(size, filters, depth, batch_size=1, seed=0)
    optimizer: Any = model.optimizer
    optimizer.build(model.trainable_variables)
    return model


def _make_batch(size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """One made-up volume and its labels, on the host as a data set has them."""
    random = np.random.default_rng(0)
    cube = (1, size, size, size)
    x = random.standard_normal((*cube, 4), dtype=np.float32)
    y = random.integers(0, 2, (*cube, 3), dtype=np.uint8)
    with tf.device("CPU:0"):
        return tf.constant(x), tf.constant(y)


def _prepare(
    settings: Mapping[str, Any],
    model: keras.Model,
    batch: Sequence[tf.Tensor],
    note: _Note,
) -> Callable[..., Any]:
    """A function of one batch that makes a step, planned already if it is to be."""

    def step(x: tf.Tensor, y: tf.Tensor) -> Any:
        return model.train_step((x, y))

    if settings["way"] != "lms":
        is_xla = settings["way"] == "XLA"
        return tf.function(step, autograph=False, jit_compile=is_xla)
    budget = settings.get("budget")
    if budget == "least":
        budget = _least(step, batch)
        note(budget=budget)
    return _planned(step, batch, budget)


def _planned(
    step: Callable[..., Any], batch: Any, budget: int | None
) -> FittedFunction:
    knobs = read_settings(budget=budget)
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in batch]
    fitted = FittedFunction(step, knobs, kind="train", signature=specs)
    fitted.prepare()
    return fitted


def _least(step: Callable[..., Any], batch: Any) -> int:
    """The least budget that works, as the refusal of a smaller one says it."""
    try:
        _planned(step, batch, 1)
    except BudgetError as error:
        if error.least_bytes is None:
            raise
        return error.least_bytes
    raise AssertionError("a budget of one byte was accepted")


def _report_of(run: Callable[..., Any]) -> dict[str, Any] | None:
    """The report of the plan; None where nothing plans."""
    if not isinstance(run, FittedFunction):
        return None
    report = run.report[0]
    told = report.numbers()
    lanes = run.timelines[0].lanes
    if lanes is not None:
        told["predicted_lanes"] = figures_of(lanes)
    return told


def _loss(run: Callable[..., Any], batch: Sequence[tf.Tensor]) -> float:
    """One step, until the device has ended it."""
    logs = run(*batch)
    tf.test.experimental.sync_devices()
    return float(logs["loss"])


def _lanes(
    run: Callable[..., Any], batch: Sequence[tf.Tensor], steps: int, trace: Path
) -> dict[str, Any]:
    """Bytes that a few recorded steps copied, and those while a kernel ran."""

    def step() -> None:
        _loss(run, batch)

    session = record_steps(
        step,
        steps,
        advance=lambda: None,
        keep=trace.with_suffix(".xplane.pb.gz"),
    )
    seen = measured_steps(session.spans, steps, mark=MARK, waits={})
    return {"lanes": median_figures([figures_of(step) for step in seen])}


def _batch_rates(device: Device, size: int) -> dict[str, float]:
    """Bytes per second of a batch to the device, from pageable and pinned memory."""
    with tf.device("CPU:0"):
        pageable = tf.constant(np.zeros(size // 4, np.float32))
    with tf.device(device.name):
        there = tf.zeros([size // 4])

    @tf.function(autograph=False, jit_compile=False)
    def pinned() -> tf.Tensor:
        with tf.device("CPU:0"):  # what a GPU sends to the host is pinned there
            return tf.identity(there)

    def seconds(host: Any) -> float:
        taken: list[float] = []
        for _ in range(6):
            begun = time.perf_counter()
            host.gpu()  # an op's input would be copied once only
            tf.test.experimental.sync_devices()
            taken.append(time.perf_counter() - begun)
        return min(taken)

    return {"pageable": size / seconds(pageable), "pinned": size / seconds(pinned())}


def _digest(model: keras.Model) -> str:
    """One number for all weights and optimizer slots: equal means bit for bit."""
    digest = hashlib.sha256()
    optimizer: Any = model.optimizer
    for variable in [*model.variables, *optimizer.variables]:
        digest.update(np.asarray(variable).tobytes())
    return digest.hexdigest()
