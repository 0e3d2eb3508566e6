"""What the workers run: what users do with a model whose state is on the host."""

from contextlib import nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import lms
from tests.models import SILENT
from tests.tf.state_trials import _hash, _values

__all__ = ["initial_values", "large_variable"]

_ITEMS, _WIDTH, _LENGTH, _BATCH = 60_000, 32, 8, 32


def initial_values(*, on_host: bool) -> list[str]:
    """Hashes of initial values of which each is larger than the device."""
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(1)
    with lms.on_host() if on_host else nullcontext():
        return [
            _hash([keras.Variable(initializer, (1500, 900), dtype).numpy()])
            for initializer in ("he_normal", "orthogonal", "random_normal", "identity")
            for dtype in ("float32", "bfloat16")
            if initializer != "orthogonal" or dtype == "float32"  # it takes no other
        ]


def large_variable(folder: str, *, on_host: bool) -> list[str]:
    """Hashes of the state as a variable larger than the device is used."""
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(1)
    callbacks = [lms.LMSCallback(verbose=0)] if on_host else []
    with lms.on_host() if on_host else nullcontext():
        model: Any = keras.Sequential(
            [
                keras.Input((_LENGTH,), dtype="int32"),
                keras.layers.Embedding(_ITEMS, _WIDTH),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(10),
            ]
        )
    model.compile("adam", "mse")
    if on_host:
        lms.keep_on_host(model)
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, _ITEMS, (_BATCH, _LENGTH)), draw.random((_BATCH, 10))
    found: list[str] = []

    def note() -> None:
        found.append(_hash(_values(model)))

    def fit() -> None:
        model.fit(x, y, epochs=2, verbose=SILENT, callbacks=callbacks)
        note()

    fit()
    model.save(f"{folder}/whole.keras")
    model.save_weights(f"{folder}/state.weights.h5")
    tf.train.Checkpoint(model=model).write(f"{folder}/checkpoint")
    model.set_weights([weight + 1 for weight in model.get_weights()])
    note()
    fit()
    model.layers[0].embeddings.assign(np.ones((_ITEMS, _WIDTH)))
    note()
    model.load_weights(f"{folder}/state.weights.h5")
    note()
    with lms.on_host() if on_host else nullcontext():
        model = keras.models.load_model(f"{folder}/whole.keras")
    if on_host:
        lms.keep_on_host(model)
    note()
    fit()
    return found
