"""Keras as people use it, with the callback and nothing else: nothing is refused."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import layers

from lms import LMSCallback
from lms.tf.measure.devices import Device

__all__ = ["fit_with_defaults"]

_ROWS = 32


def fit_with_defaults(
    settings: Mapping[str, Any], device: Device, note: Callable[..., None]
) -> None:
    """Fit, evaluate and predict some models; note how each ended.

    Args:
        settings: None.
        device: Where.
        note: Takes results by name.
    """
    del settings
    found: dict[str, str] = {}
    for name, (make, data) in _MODELS.items():
        keras.config.set_dtype_policy(
            "mixed_float16" if name == "mixed_float16" else "float32"
        )
        try:
            _use(make(), data())
            found[name] = "done"
        except Exception as error:  # each alone is a finding
            found[name] = f"{type(error).__name__}: {error}"[:300]
        note(models=found, peak_bytes=device.memory.peak_bytes)


def _use(model: keras.Model, x: np.ndarray) -> None:
    y = np.ones((_ROWS, 1), "float32")
    model.compile("adam", "mse")
    told: dict[str, Any] = {"verbose": 0, "callbacks": [LMSCallback(verbose=0)]}
    model.fit(x, y, batch_size=16, **told)
    model.fit(x, y, batch_size=8, **told)  # another batch size
    model.evaluate(x, y, batch_size=16, **told)
    assert np.isfinite(model.predict(x, batch_size=16, **told)).all()


def _sequence(*made: Any) -> keras.Model:
    return keras.Sequential([*made, layers.Dense(1, dtype="float32")])


def _numbers(*shape: int) -> Callable[[], np.ndarray]:
    return lambda: np.random.default_rng(0).random((_ROWS, *shape), np.float32)


def _words() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 1000, (_ROWS, 6))


_MODELS: dict[str, tuple[Callable[[], keras.Model], Callable[[], np.ndarray]]] = {
    "Dense": (lambda: _sequence(layers.Dense(64, "relu")), _numbers(32)),
    "LSTM": (lambda: _sequence(layers.LSTM(16)), _numbers(6, 8)),
    "Bidirectional GRU": (
        lambda: _sequence(layers.Bidirectional(layers.GRU(16))),
        _numbers(6, 8),
    ),
    "Embedding": (
        lambda: _sequence(layers.Embedding(1000, 32), layers.GlobalAveragePooling1D()),
        _words,
    ),
    "mixed_float16": (
        lambda: _sequence(
            layers.Conv2D(16, 3), layers.BatchNormalization(), layers.Flatten()
        ),
        _numbers(16, 16, 4),
    ),
}
