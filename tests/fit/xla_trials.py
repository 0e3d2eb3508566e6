"""Trainings that Keras compiles with XLA, with the callback and without.

An emulated card interprets what XLA would compile for it, op by op; its compiler's own
numbers are those of a real card. XLA's code for CPUs runs.
"""

import itertools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from lms import LMSCallback
from lms.fit.callback import FunctionHook
from lms.fit.fitted import FittedFunction
from lms.planning.settings import Settings
from lms.tf.capture import keras_step
from lms.tf.measure.devices import find_device
from tests.commands.subjects import small
from tests.models import SILENT

_ROWS = 24


def _model(width: int, **compiled: Any) -> keras.Model:
    keras.utils.set_random_seed(0)
    inputs = x = keras.Input((32, 32, 3))
    for _ in range(4):
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
    x = layers.GlobalAveragePooling2D()(layers.Dropout(0.3)(x))
    model = keras.Model(inputs, layers.Dense(5)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, **compiled)
    return model


def _results(callbacks: list[Any], batch: int, width: int, **compiled: Any) -> Any:
    """Return all numbers of a training, an evaluation and a prediction."""
    draw = np.random.default_rng(0)
    x = draw.random((_ROWS, 32, 32, 3), "float32")
    y = draw.integers(0, 5, _ROWS)
    model: Any = _model(width, **compiled)
    given: Any = {"batch_size": batch, "verbose": SILENT, "callbacks": callbacks}
    history = model.fit(x, y, epochs=2, **given).history["loss"]
    variables = [*model.variables, *model.optimizer.variables]
    weights = [variable.numpy().tobytes().hex() for variable in variables]
    losses = [*history, model.evaluate(x, y, **given)]
    return losses, weights, model.predict(x, **given).tolist()


def on_card(
    width: int, batch: int = 8, room: int | None = None, **compiled: Any
) -> dict[str, Any]:
    """Compare trainings with XLA turned on.

    Args:
        width: Channels of the model.
        batch: Examples of a batch.
        room: Bytes of a budget above what is in use; None for no budget.
        **compiled: Arguments of `compile`.
    """
    budget = None
    if room is not None:
        tf.zeros([1])
        budget = tf.config.experimental.get_memory_info("GPU:0")["current"] + room
    callback = LMSCallback(budget, verbose=0)
    given: Any = {"batch": batch, "width": width, **compiled}
    ours = _results([callback], jit_compile=True, **given)
    reports = [report.kind for report in callback.report]
    return {"ours": ours, "planned": reports, "summary": callback.summary()}


def plain(width: int, batch: int = 8, **compiled: Any) -> Any:
    """Return the numbers of plain Keras."""
    return _results([], batch, width, **compiled)


def holes_behind(batch: int) -> list[int]:
    """Return free fragments of at least 64 KiB that a step leaves that XLA tried."""
    found, device, own = list[int](), find_device(), FunctionHook._tried
    model, specs = small(batch)

    def tried(hook: FunctionHook, *given: Any) -> Any:
        ran = own(hook, *given)
        found.extend(device.free_holes(device.limit or 0, 64 << 10))
        return ran

    def batches() -> Iterator[Any]:  # one by one: the data need no room
        for _ in range(2):
            yield tuple(np.ones(spec.shape, "float32") for spec in specs)

    data = tf.data.Dataset.from_generator(batches, output_signature=specs)
    with patch.object(FunctionHook, "_tried", tried):
        model.fit(data, callbacks=[LMSCallback(verbose=0)], verbose=SILENT)
    assert model.jit_compile
    return found


class _Hooked(keras.callbacks.Callback):
    """Runs training steps as `LMSCallback` does where there is a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def on_train_begin(self, logs: Any = None) -> None:
        model: Any = self.model
        fitted = FittedFunction(
            keras_step.step_of(model, "train"),
            Settings(),
            kind="train",
            of_batch=keras_step.step_of_data(model, "train"),
            own=keras_step.own_functions(model, "train"),
        )
        self._hook = FunctionHook(model, "train", fitted, self.said.append)
        self._hook.install()

    def on_train_end(self, logs: Any = None) -> None:
        self._hook.remove()


def _on_cpu(folder: str, *, open_shapes: bool, at_once: int) -> dict[str, Any]:
    """Train by XLA's code for CPUs, without and with the hook.

    Returns:
        Losses and weights; how many programs XLA has compiled.
    """
    found: dict[str, Any] = {}
    for name, callbacks in {"plain": [], "ours": [_Hooked()]}.items():
        keras.utils.set_random_seed(0)
        inputs = keras.Input((8,))
        x = layers.Dropout(0.5)(layers.Dense(4, "gelu")(inputs))
        model: Any = keras.Model(inputs, layers.Dense(1)(x))
        model.compile("adam", "mse", jit_compile=True, steps_per_execution=at_once)
        x = np.linspace(0, 1, 8 * _ROWS, dtype="float32").reshape(_ROWS, 8)
        data = tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
        data = data.batch(4, drop_remainder=not open_shapes)
        before = _programs(folder)
        history = model.fit(data, epochs=2, verbose=SILENT, callbacks=callbacks)
        variables = [*model.variables, *model.optimizer.variables]
        found[name] = {
            "losses": history.history["loss"],
            "weights": [variable.numpy().tobytes().hex() for variable in variables],
            "programs": _programs(folder) - before,
        }
    return found


def _programs(folder: str) -> int:
    found = Path(folder).glob("*one_step_on_data*.before_optimizations.txt")
    return len(list(found))


def _on_gpu() -> dict[str, Any]:
    """Return losses, and bytes that XLA tells and that a step takes, on a real card."""
    asked: list[Any] = []
    own = FittedFunction.compiled_bytes

    def noted(fitted: FittedFunction, batch: Any) -> Any:
        asked.append(own(fitted, batch))
        return asked[-1]

    FittedFunction.compiled_bytes = noted  # pyright: ignore[reportAttributeAccessIssue]
    given: Any = {"batch": 8, "width": 256, "jit_compile": True}
    plain_losses, *_ = _results([], **given)
    callback = LMSCallback("4GiB", verbose=0)
    losses, *_ = _results([callback], **given)
    (took, unit) = re.findall(r"took ([0-9.]+) (MiB|GiB)", callback.summary())[0]
    return {
        "plain": plain_losses,
        "ours": losses,
        "planned": [report.kind for report in callback.report],
        "asked": asked[0],
        "took": float(took) * {"MiB": 2**20, "GiB": 2**30}[unit],
    }


def _main(*folder: str) -> Any:
    if not folder:
        return _on_gpu()
    both = itertools.product([False, True], [1, 2])
    return [_on_cpu(*folder, open_shapes=a, at_once=b) for a, b in both]


if __name__ == "__main__":
    made = _main(*sys.argv[1:])
    sys.stdout.write(json.dumps(made) + "\n")
