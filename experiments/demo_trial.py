"""One trial of the demo: train the case study's U-Net in a process of its own.

The limit of a device and the statistics of its allocator belong to a process, so each
trial has one. It reads arrays, trains, and writes what it saw as JSON. If TensorFlow
runs out of memory the process dies of that, as a user's would.

Sizes are bytes, times are seconds. Peaks leave the first step out, because it makes
the optimizer's variables; times leave it out too, because it traces and plans.
"""

import argparse
import hashlib
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import lms
from lms.errors import BudgetError
from profiling.record import write_json
from unet3d.model import build_unet

__all__ = ["main"]

_DEVICE = "GPU:0"


def main(arguments: Sequence[str] | None = None) -> int:
    """Train once and write a result file.

    Args:
        arguments: The words after `python -m experiments.demo_trial`.

    Returns:
        0; a training that fails raises.
    """
    options = _parser().parse_args(arguments)
    tf.config.experimental.enable_op_determinism()
    write_json(options.output, _train(options))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.demo_trial", description=__doc__
    )
    parser.add_argument("--data", type=Path, required=True, help="npz file of x and y")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--filters", type=int, default=8)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lms", action="store_true", help="train with LMSCallback")
    parser.add_argument("--least", action="store_true", help="ask for the least budget")
    return parser


def _train(options: argparse.Namespace) -> dict[str, Any]:
    """The whole of a user's training script; the callback is the only difference."""
    volumes, regions = _arrays(options.data)
    keras.utils.set_random_seed(options.seed)
    model = build_unet(
        size=volumes.shape[1],
        filters=options.filters,
        depth=options.depth,
        seed=options.seed,
    )
    # Variables made while a step is traced make Keras trace it again.
    model.optimizer.build(model.trainable_variables)
    swapping = lms.LMSCallback(verbose=0) if options.lms else None
    clock = _Clock()
    history = model.fit(
        _batches(volumes, regions),
        epochs=options.epochs,
        verbose="0",
        shuffle=False,
        callbacks=[callback for callback in (swapping, clock.callback()) if callback],
    )
    result = {
        "peak_bytes": clock.peak_bytes,
        "step_seconds": clock.seconds[1:],
        "median_step_seconds": statistics.median(clock.seconds[1:]),
        "first_step_seconds": clock.seconds[0],
        "loss": history.history["loss"],
        "dice": history.history["dice_coefficient"],
        "weights_sha256": _digest(model),
        "batch_bytes": (volumes.nbytes + regions.nbytes) // len(volumes),
    }
    if swapping is not None:
        result |= _seen_by(swapping)
    if options.least:
        result["least_budget_bytes"] = _least_budget(model, volumes, regions)
    return result


def _arrays(path: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(path) as arrays:
        return arrays["x"], arrays["y"]


def _batches(volumes: np.ndarray, regions: np.ndarray) -> tf.data.Dataset:
    """One subject at a time: on a CPU, data that waits takes the device's memory."""

    def examples() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for i in range(len(volumes)):
            yield volumes[i : i + 1], regions[i : i + 1]

    signature = (
        tf.TensorSpec((1, *volumes.shape[1:]), tf.float32),
        tf.TensorSpec((1, *regions.shape[1:]), tf.uint8),
    )
    dataset = tf.data.Dataset.from_generator(examples, output_signature=signature)
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(volumes)))
    return dataset.with_options(options)


class _Clock:
    """Seconds of each step, and the allocator's peak after the first one."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.peak_bytes: int | None = None
        self._started = 0.0

    def callback(self) -> keras.callbacks.Callback:
        return keras.callbacks.LambdaCallback(
            on_train_batch_begin=self._start, on_train_batch_end=self._stop
        )

    def _start(self, *_: Any, **__: Any) -> None:
        self._started = time.perf_counter()

    def _stop(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.perf_counter() - self._started)
        if len(self.seconds) == 1:
            tf.config.experimental.reset_memory_stats(_DEVICE)
        else:
            info = tf.config.experimental.get_memory_info(_DEVICE)
            self.peak_bytes = info["peak"]


def _digest(model: keras.Model) -> str:
    """One number for all weights and optimizer slots: equal means bit for bit."""
    digest = hashlib.sha256()
    for variable in [*model.variables, *model.optimizer.variables]:
        digest.update(np.asarray(variable).tobytes())
    return digest.hexdigest()


def _seen_by(swapping: lms.LMSCallback) -> dict[str, Any]:
    """The training's report and curves."""
    report, timeline = swapping.report[0], swapping.timelines[0]
    return {"report": report.numbers(), "timeline": asdict(timeline)}


def _least_budget(model: keras.Model, volumes: np.ndarray, regions: np.ndarray) -> int:
    """What the refusal of a budget that is far too small names."""
    try:
        model.fit(
            _batches(volumes, regions),
            verbose="0",
            shuffle=False,
            callbacks=[lms.LMSCallback(budget="1MiB", verbose=0)],
        )
    except BudgetError as error:
        if error.least_bytes is not None:
            return error.least_bytes
    raise RuntimeError("a budget of 1 MiB must be refused, naming the least that works")


if __name__ == "__main__":
    raise SystemExit(main())
