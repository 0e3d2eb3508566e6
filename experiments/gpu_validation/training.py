"""One training: losses, seconds, peak, and what shows that tensors left the device.

What is known is noted at once, so that a process that dies leaves what it had.
"""

import hashlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from experiments.gpu_validation.evidence import allocator_peaks, copied, swap_nodes
from experiments.gpu_validation.ways import (
    make_batch,
    make_model,
    prepare,
    report_of,
)
from lms.tf import compat
from lms.tf.measure.devices import Device
from profiling.sessions import record_steps

__all__ = ["WARM", "digest", "train"]

# Steps that initialise: the optimizer's variables, autotuning, the host's memory.
WARM = 2


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
    model, batch = make_model(settings), make_batch(settings["size"])
    note(limit_bytes=device.limit)
    started = time.perf_counter()
    run = prepare(settings, model, batch)
    note(preparation_seconds=time.perf_counter() - started, report=report_of(run))
    losses, graphs = [], []
    with compat.collected_graphs(graphs):
        losses.append(_loss(run, batch))
    note(first_seconds=time.perf_counter() - started, nodes=swap_nodes(graphs))
    graphs.clear()
    losses += [_loss(run, batch) for _ in range(WARM - 1)]
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
    note(report=report_of(run), weights_sha256=digest(model))
    if settings.get("traced"):
        try:
            note(**_copies(run, batch, settings["traced"], trace))
        except Exception as error:  # without CUPTI, say: the rest stays good
            note(trace_error=f"{type(error).__name__}: {error}")


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


def digest(model: keras.Model) -> str:
    """One number for all weights and optimizer slots: equal means bit for bit."""
    digest = hashlib.sha256()
    optimizer: Any = model.optimizer
    for variable in [*model.variables, *optimizer.variables]:
        digest.update(np.asarray(variable).tobytes())
    return digest.hexdigest()
