"""The case study's network at any size, and two small models."""

from pathlib import Path

import keras
import numpy as np
from keras import layers

from experiments.models.data import Maker, Ready, classes, images
from unet3d.model import build_unet

__all__ = ["MODELS", "scans"]

_COMPUTED = 112  # voxels along an axis, up to which data is noise

_CROSS_ENTROPY = "sparse_categorical_crossentropy"


def _small_cnn() -> Ready:
    model = keras.Sequential([keras.Input((64, 64, 3))])
    for filters in (16, 16, 16):
        model.add(layers.Conv2D(filters, 3, padding="same", use_bias=False))
        model.add(layers.BatchNormalization())
        model.add(layers.ReLU())
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dense(10, activation="softmax"))
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), _CROSS_ENTROPY)
    return model, images(8, 64), classes(8), 8


def _small_transformer() -> Ready:
    inputs = keras.Input((512, 32))
    y = layers.LayerNormalization()(inputs)
    x = inputs + layers.MultiHeadAttention(2, 16)(y, y)
    x = x + layers.Dense(32)(layers.Dense(128, activation="gelu")(x))
    x = layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, layers.Dense(10, activation="softmax")(x))
    model.compile(keras.optimizers.AdamW(1e-3), _CROSS_ENTROPY)
    sentences = images(8, 64, 4).reshape(-1, 512, 32)
    return model, sentences, classes(8), 8


def _unet(size: int = 48, filters: int = 8, depth: int = 4) -> Ready:
    """One volume and its labels: zeros at true size, with which nothing is computed."""
    cube = (1, size, size, size)
    if size > _COMPUTED:
        x, y = np.zeros((*cube, 4), np.float32), np.zeros((*cube, 3), np.uint8)
    else:
        random = np.random.default_rng(0)
        x = random.standard_normal((*cube, 4), dtype=np.float32)
        y = random.integers(0, 2, (*cube, 3), dtype=np.uint8)
    return build_unet(size, filters, depth, batch_size=1, seed=0), x, y, 1


def scans(path: Path, *, filters: int, depth: int) -> Ready:
    """The same network on volumes and labels of a file, one at a time."""
    with np.load(path) as arrays:
        x, y = arrays["x"], arrays["y"]
    return build_unet(x.shape[1], filters, depth, seed=0), x, y, 1


MODELS: dict[str, Maker] = {
    "unet": _unet,
    "small_cnn": _small_cnn,
    "small_transformer": _small_transformer,
}
