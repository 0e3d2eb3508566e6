"""What the workers run: trainings whose swapped tensors wait in a file."""

import hashlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from lms import LMSCallback
from lms.storage.swap_file import SwapFile
from tests.models import SILENT

__all__ = ["fail", "train"]


def train(
    budget: str | None = None,
    folder: str | None = None,
    host_memory: int | None = None,
) -> dict[str, Any]:
    """Train with op determinism.

    Args:
        budget: What a step may use; None trains plainly.
        folder: Where tensors may wait in a file.
        host_memory: What the host may hold of them.

    Returns:
        `numbers`, a hash of losses and weights; with a budget also `file_bytes` and
        `host_peak`.
    """
    model = _model()
    knobs: dict[str, Any] = {"swap_folder": folder, "host_memory": host_memory}
    callbacks = []
    if budget is not None:
        callbacks = [LMSCallback(budget, recompute=False, **knobs, verbose=0)]
    history = _fit(model, callbacks)
    found: dict[str, Any] = {
        "numbers": _hash([np.array(history.history["loss"]), *_values(model)])
    }
    for callback in callbacks:
        report = callback.report[0]
        found["file_bytes"] = report.plan.file_bytes
        found["host_peak"] = report.host_peak_bytes
    return found


def fail(budget: str, folder: str) -> dict[str, Any]:
    """Train; in the third step the disk cannot be read."""
    model, before = _model(), list[str]()
    own, steps = SwapFile.read, list[int]()

    def read(self: SwapFile, offset: int, into: memoryview) -> None:
        if len(steps) == 3:
            raise OSError(5, "Input/output error")
        own(self, offset, into)

    class _Steps(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            steps.append(batch)
            before.append(_hash(_values(model)))

    knobs: dict[str, Any] = {"swap_folder": folder, "host_memory": "1KiB"}
    callback = LMSCallback(budget, recompute=None, **knobs, verbose=0)
    SwapFile.read = read
    try:
        _fit(model, [_Steps(), callback])
    except Exception as error:
        as_before = _hash(_values(model)) == before[-1]
        name, message = type(error).__name__, str(error)
        return {"raised": name, "message": message, "as_before": as_before}
    finally:
        SwapFile.read = own
    return {"raised": None}


def _model() -> keras.Model:
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((32, 32, 3))])
    for _ in range(6):
        model.add(layers.Conv2D(32, 3, padding="same", activation="relu"))
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dense(10))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    return model


def _fit(model: keras.Model, callbacks: list[Any]) -> Any:
    draw = np.random.default_rng(0)
    x, y = draw.random((96, 32, 32, 3), "float32"), draw.integers(0, 10, 96)
    return model.fit(x, y, batch_size=32, epochs=2, verbose=SILENT, callbacks=callbacks)


def _values(model: keras.Model) -> list[np.ndarray]:
    return [v.numpy() for v in (*model.variables, *model.optimizer.variables)]


def _hash(values: list[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for value in values:
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()
