"""One training: losses, seconds, peak, and what shows that tensors left the device.

Ways to train in little memory: TensorFlow's own, ours, and the peers. `tf.function`
without XLA is what the others are compared with: Keras turns XLA on by itself where
there is a GPU, which is a peer here. What is known is noted at once, so that a process
that dies leaves what it had.

Known weakness: in a rehearsal the batch lies in the device's memory already, and counts
twice in what is predicted. On a GPU it comes from the host.
"""

import hashlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from experiments.gpu_validation.evidence import allocator_peaks, copied, swap_nodes
from lms import LMSCallback
from lms.pipeline import FittedFunction
from lms.planning.settings import read_settings
from lms.tf import compat
from lms.tf.measure.devices import Device
from profiling.sessions import record_steps
from unet3d.model import build_unet

__all__ = ["fit", "make_model", "train"]

# Steps that initialise: the optimizer's variables, autotuning, the host's memory.
_WARM = 2

_PLANNERS = {"lms": "budget", "threshold": "threshold"}
_REWRITERS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "recomputation heuristics": compat.recomputed_by_grappler,
    "swapping heuristics": compat.swapped_by_grappler,
}


def train(
    settings: Mapping[str, Any],
    device: Device,
    note: Callable[..., None],
    trace: Path,
) -> None:
    """Train and note what is seen.

    Args:
        settings: Of the trial.
        device: Where.
        note: Takes results by name.
        trace: Name of trace files, without an ending.
    """
    if settings.get("deterministic"):
        tf.config.experimental.enable_op_determinism()
    if not settings.get("layout", True):
        tf.config.optimizer.set_experimental_options({"layout_optimizer": False})
    model, batch = make_model(settings), _make_batch(settings["size"])
    note(limit_bytes=device.limit)
    started = time.perf_counter()
    run = _prepare(settings, model, batch)
    note(preparation_seconds=time.perf_counter() - started, report=_report_of(run))
    losses, graphs = [], []
    with compat.collected_graphs(graphs):
        losses.append(_loss(run, batch))
    note(first_seconds=time.perf_counter() - started, nodes=swap_nodes(graphs))
    graphs.clear()
    losses += [_loss(run, batch) for _ in range(_WARM - 1)]
    device.memory.reset_peak()
    seconds: list[float] = []
    for _ in range(settings["steps"]):
        begun = time.perf_counter()
        losses.append(_loss(run, batch))
        seconds.append(time.perf_counter() - begun)
        note(
            step_seconds=seconds,
            median_seconds=statistics.median(seconds),
            peak_bytes=device.memory.peak_bytes,
            losses=losses,
        )
    note(report=_report_of(run), weights_sha256=_digest(model))
    if settings.get("traced"):
        try:
            note(**_copies(run, batch, settings["traced"], trace))
        except Exception as error:  # without CUPTI, say: the rest stays good
            note(trace_error=f"{type(error).__name__}: {error}")


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
    steps = _WARM + settings["steps"]
    support = LMSCallback(budget=settings.get("budget"), verbose=0)
    ends: list[float] = []
    losses: list[float] = []

    def ended(batch: int, logs: Any = None) -> None:
        losses.append(float(logs["loss"]))
        ends.append(time.perf_counter())
        if batch == _WARM - 1:
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
        median_seconds=statistics.median(seconds[_WARM - 1 :]),
        peak_bytes=device.memory.peak_bytes,
        weights_sha256=_digest(model),
        report=_told(report),
    )


def make_model(settings: Mapping[str, Any]) -> keras.Model:
    """The case study's network, its optimizer's slots made."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(settings.get("precision", "float32"))
    remat = settings["way"] == "RematScope"
    where = settings.get("weights")
    with nullcontext() if where is None else tf.device(where):
        with keras.RematScope(mode="activations") if remat else nullcontext():
            model = build_unet(
                settings["size"],
                settings["filters"],
                settings["depth"],
                batch_size=1,
                seed=0,
            )
        optimizer: Any = model.optimizer
        optimizer.build(model.trainable_variables)
    return model


def _make_batch(size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """One made-up volume and its labels, on the host as Keras's `fit` has them."""
    random = np.random.default_rng(0)
    cube = (1, size, size, size)
    x = random.standard_normal((*cube, 4), dtype=np.float32)
    y = random.integers(0, 2, (*cube, 3), dtype=np.uint8)
    with tf.device("CPU:0"):
        return tf.constant(x), tf.constant(y)


def _prepare(
    settings: Mapping[str, Any], model: keras.Model, batch: Sequence[tf.Tensor]
) -> Callable[..., Any]:
    """A function of one batch that makes a step, planned already if it is to be."""
    way = settings["way"]

    def step(x: tf.Tensor, y: tf.Tensor) -> Any:
        return model.train_step((x, y))

    if way in _PLANNERS:
        knobs = read_settings(
            budget=settings.get("budget"),
            planner=_PLANNERS[way],
            recompute=settings.get("recompute"),
        )
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in batch]
        fitted = FittedFunction(step, knobs, kind="train", signature=specs)
        fitted.prepare()
        return fitted
    function = tf.function(step, autograph=False, jit_compile=way == "XLA")
    rewriter = _REWRITERS.get(way, nullcontext)

    def call(*arguments: tf.Tensor) -> Any:
        with rewriter():
            return function(*arguments)

    return call


def _report_of(run: Callable[..., Any]) -> dict[str, Any] | None:
    """The report of the plan and of its measured peak; None where nothing plans."""
    if not isinstance(run, FittedFunction):
        return None
    return _told(run.report[0])


def _told(report: Any) -> dict[str, Any]:
    return asdict(report) | {"plan": None, "fits_unplanned": report.fits_unplanned}


def _loss(run: Callable[..., Any], batch: Sequence[tf.Tensor]) -> float:
    """One step, until the device has ended it."""
    logs = run(*batch)
    tf.test.experimental.sync_devices()
    return float(logs["loss"])


def _copies(
    run: Callable[..., Any], batch: Sequence[tf.Tensor], steps: int, trace: Path
) -> dict[str, Any]:
    """What a few recorded steps copied."""

    def step() -> None:
        _loss(run, batch)

    session = record_steps(
        step,
        steps,
        advance=lambda: None,
        keep=trace.with_suffix(".xplane.pb.gz"),
    )
    return {
        "copied_bytes": copied(session.spans, session.copies, steps),
        "allocator_peaks": allocator_peaks(session.spans),
        "planes": sorted({span.plane for span in session.spans}),
    }


def _data(size: int, steps: int) -> tf.data.Dataset:
    """One batch again and again; what waits would take a rehearsal's memory."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    data = tf.data.Dataset.from_tensors(_make_batch(size)).repeat(steps)
    return data.with_options(options)


def _digest(model: keras.Model) -> str:
    """One number for all weights and optimizer slots: equal means bit for bit."""
    digest = hashlib.sha256()
    optimizer: Any = model.optimizer
    for variable in [*model.variables, *optimizer.variables]:
        digest.update(np.asarray(variable).tobytes())
    return digest.hexdigest()
