"""The registry of models, and noise as their data."""

from collections.abc import Callable
from typing import Any, TypeAlias

import keras
import numpy as np

__all__ = ["BATCHES", "CROSS_ENTROPY", "MODELS", "Ready", "classes", "images"]
__all__ += ["model", "noise", "tokens"]

BATCHES = 3
CROSS_ENTROPY = "sparse_categorical_crossentropy"

# A compiled model, its inputs, its targets or None, and its batch size.
Ready: TypeAlias = tuple[keras.Model, Any, Any, int]
_Maker: TypeAlias = Callable[..., Ready]

MODELS: dict[str, _Maker] = {}


def model(make: _Maker) -> _Maker:
    """Register a function `_NAME` as the maker of the model NAME."""
    MODELS[make.__name__.removeprefix("_")] = make
    return make


def noise(*shape: int) -> np.ndarray:
    """Draw normal noise, float32."""
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def images(batch: int, size: int, channels: int = 3) -> np.ndarray:
    """Draw three batches of square images in [0, 1)."""
    shape = (BATCHES * batch, size, size, channels)
    return np.random.default_rng(0).random(shape, dtype=np.float32)


def classes(batch: int, *shape: int, count: int = 10) -> np.ndarray:
    """Draw three batches of labels, one for each place of `shape`."""
    return np.random.default_rng(1).integers(0, count, (BATCHES * batch, *shape))


def tokens(batch: int, length: int, count: int = 500, *, seed: int = 2) -> np.ndarray:
    """Draw three batches of sentences, without the padding token 0."""
    rng = np.random.default_rng(seed)
    return rng.integers(1, count, (BATCHES * batch, length), dtype=np.int32)
