"""One trial of `state_on_host`: `fit` with the state somewhere, and what it took.

    plain    Keras alone
    host     weights and slots on the host, updated by the device
    updated  weights and slots on the host, updated there
    slots    slots on the host, weights on the device

Unless `--bare`, `fit` also validates, saves its weights after each epoch and changes
the learning rate. Bytes are what the store of planned steps has copied in a training
step, validation left out. With `--in-turns`, each step waits for a line on standard
input, as `experiments.turns` wants it. A budget that is refused is a result.
"""

import argparse
import hashlib
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf

import lms
from experiments.state_on_host_models import MODELS
from lms.errors import BudgetError
from lms.machine.host_cpu import stolen_seconds
from lms.storage.cache import OFF, VARIABLE
from lms.tf.capture.host_state import slice_bytes
from lms.tf.measure.devices import find_device
from lms.tf.rewrite.host_store import observed_copies
from profiling.record import write_json

__all__ = ["main"]

# What the callback is told besides its budget; no callback for None.
_MODES: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "host": {"state": "host", "update": "device"},
    "updated": {"state": "host", "update": "host"},
    "slots": {"state": "slots"},
}
_BUILT_THERE = ("host", "updated")  # modes whose model never was on the device
_TOLD = (
    "predicted_peak_bytes",
    "measured_peak_bytes",
    "persistent_bytes",
    "predicted_seconds",
    "state_bytes",
    "state_in_bytes",
    "state_out_bytes",
    "swapped_in_bytes",
    "swapped_out_bytes",
    "replans",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train once, and write what it took to `--output`.

    Args:
        arguments: The words after `python -m experiments.state_on_host_trial`.

    Returns:
        0; a training that fails for another reason than its budget raises.
    """
    options = _parser().parse_args(sys.argv[1:] if arguments is None else arguments)
    os.environ[VARIABLE] = OFF
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(options.seed)
    try:
        result = _trained(options)
    except BudgetError as error:
        result = {"error": str(error), "least_bytes": error.least_bytes}
    write_json(options.output, result)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.state_on_host_trial",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", choices=MODELS, required=True)
    text = "arguments of the model's function"
    parser.add_argument("--shape", nargs="*", default=(), metavar="NAME=N", help=text)
    parser.add_argument("--mode", choices=_MODES, required=True)
    parser.add_argument("--budget", help="instead of all that the device has")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="of each epoch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bare", action="store_true", help="nothing but steps")
    parser.add_argument("--in-turns", action="store_true", help="see above")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    return parser


class _Watch(keras.callbacks.Callback):
    """What each step took and copied; it comes last in the list."""

    def __init__(self, *, in_turns: bool) -> None:
        super().__init__()
        self.steps: list[dict[str, Any]] = []
        self._in_turns = in_turns
        self._memory = find_device().memory
        self._copied: dict[bool, int] | None = None
        self._begun = 0.0, 0.0, 0.0

    def copied(self, to_device: bool, *copy: Any) -> None:  # noqa: FBT001 - an Observer
        """Take note of a copy, if a step is running."""
        if self._copied is not None:
            self._copied[to_device] += copy[-1]

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        if self._in_turns:
            print("waiting", flush=True)
            sys.stdin.readline()
        self._memory.reset_peak()
        self._copied = {True: 0, False: 0}
        self._begun = time.perf_counter(), time.process_time(), stolen_seconds()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        float((logs or {})["loss"])  # its results are awaited
        clock, processor, stolen = self._begun
        copied = self._copied or {True: 0, False: 0}
        self._copied = None
        self.steps.append(
            {
                "seconds": time.perf_counter() - clock,
                "processor_seconds": time.process_time() - processor,
                "stolen_seconds": stolen_seconds() - stolen,
                "in_bytes": copied[True],
                "out_bytes": copied[False],
                "peak_bytes": self._memory.peak_bytes,
            }
        )


def _trained(options: argparse.Namespace) -> dict[str, Any]:
    shape = {name: int(n) for name, _, n in (w.partition("=") for w in options.shape)}
    told, there = _MODES[options.mode], options.mode in _BUILT_THERE
    with lms.on_host() if there else nullcontext():
        model, *data = MODELS[options.model](options.steps, **shape)
    if there:
        lms.keep_on_host(model)
    planning: list[Any] = []
    if told is not None:
        planning.append(lms.LMSCallback(options.budget, verbose=0, **told))
    watch = _Watch(in_turns=options.in_turns)
    with observed_copies(watch.copied):
        numbers = _fit(model, data, [*planning, watch], options)
    return {
        "parameters": model.count_params(),
        "variable_bytes": sum(value.nbytes for value in _values(model)),
        "sha256": _hash(numbers),
        "steps": watch.steps,
        **_largest_layer(model, data[-1]),
        **_planned(planning),
    }


def _fit(
    model: keras.Model,
    data: Sequence[Any],
    callbacks: Sequence[Any],
    options: argparse.Namespace,
) -> list[np.ndarray]:
    """Train; all that two equal trainings agree in."""
    x, y, batch = data
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "saved.weights.h5"
        usual = [] if options.bare else _usual(path)
        history = model.fit(
            x,
            y,
            batch_size=batch,
            epochs=options.epochs,
            shuffle=False,
            verbose="0",
            callbacks=[*usual, *callbacks],
            validation_data=None if options.bare else (x, y),
        )
        losses = [np.array(values) for values in history.history.values()]
        return [*losses, *_values(model), *_saved(path)]


def _usual(path: Path) -> list[Any]:
    """Callbacks that many trainings have."""
    return [
        keras.callbacks.ModelCheckpoint(str(path), save_weights_only=True, verbose=0),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / (1 + epoch)),
    ]


def _values(model: keras.Model) -> list[np.ndarray]:
    """Of weights and slots."""
    return [each.numpy() for each in [*model.variables, *model.optimizer.variables]]


def _hash(values: Iterable[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for value in values:
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def _saved(path: Path) -> list[np.ndarray]:
    """What a file of weights has, if it is there, in the order of its names."""
    found: dict[str, np.ndarray] = {}

    def note(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset):
            found[name] = node[()]

    if path.exists():
        with h5py.File(path) as file:
            file.visititems(note)
    return [found[name] for name in sorted(found)]


def _largest_layer(model: keras.Model, batch: Any) -> dict[str, int]:
    """Bytes of the layer with the most weights, and of what goes in and comes out.

    An embedding is read by rows: its table does not count. A model within this one
    does not either.
    """
    others = keras.Model, keras.layers.Embedding
    known = [la for la in model.layers if la.weights and not isinstance(la, others)]
    if not known:
        return {}
    layer: Any = max(known, key=_bytes_of)
    ends = tf.nest.flatten([layer.input, layer.output])
    values = sum(batch * math.prod(end.shape[1:]) for end in ends)
    return {
        "largest_weights_bytes": _bytes_of(layer),
        "largest_values_bytes": 4 * values,
    }


def _bytes_of(layer: keras.layers.Layer) -> int:
    return sum(4 * math.prod(weight.shape) for weight in layer.weights)


def _planned(planning: Sequence[Any]) -> dict[str, Any]:
    """What was planned for a training step, and measured."""
    limit = find_device().limit
    if not planning or limit is None:
        return {}
    report = next(each for each in planning[0].report if each.kind == "train")
    told = {name: getattr(report, name) for name in _TOLD}
    return {"report": told | {"slice_bytes": slice_bytes(limit)}}


if __name__ == "__main__":
    raise SystemExit(main())
