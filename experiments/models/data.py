"""Data for the zoo's models: noise of the shapes that they take, always the same."""

from collections.abc import Callable
from typing import Any, TypeAlias

import keras
import numpy as np

__all__ = ["BATCHES", "Maker", "Ready", "classes", "images", "noise", "tokens"]

BATCHES = 3

# A compiled model, its inputs, its targets (None where it makes its own), and how many
# examples are a batch.
Ready: TypeAlias = tuple[keras.Model, Any, Any, int]
Maker: TypeAlias = Callable[..., Ready]


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal noise, float32.

    Example:
        >>> noise(2, 3).shape
        (2, 3)
    """
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def images(batch: int, size: int, channels: int = 3) -> np.ndarray:
    """Three batches of square images in [0, 1).

    Example:
        >>> images(2, 8).shape
        (6, 8, 8, 3)
    """
    shape = (BATCHES * batch, size, size, channels)
    return np.random.default_rng(0).random(shape, dtype=np.float32)


def classes(batch: int, *shape: int, count: int = 10) -> np.ndarray:
    """Three batches of labels, one for each place of `shape`.

    Example:
        >>> classes(2, count=4).shape
        (6,)
    """
    return np.random.default_rng(1).integers(0, count, (BATCHES * batch, *shape))


def tokens(batch: int, length: int, count: int = 500, *, seed: int = 2) -> np.ndarray:
    """Three batches of sentences, without the padding token 0.

    Example:
        >>> tokens(2, 5).shape
        (6, 5)
    """
    rng = np.random.default_rng(seed)
    return rng.integers(1, count, (BATCHES * batch, length), dtype=np.int32)
