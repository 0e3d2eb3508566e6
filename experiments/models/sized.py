"""The case study's network at any size, and two small models."""

import os

import keras
import numpy as np
from keras import layers

from experiments.models.data import CROSS_ENTROPY, Ready, classes, images, model
from unet3d.model import build_unet


@model
def _small_cnn() -> Ready:
    made = keras.Sequential([keras.Input((64, 64, 3))])
    for filters in (16, 16, 16):
        made.add(layers.Conv2D(filters, 3, padding="same", use_bias=False))
        made.add(layers.BatchNormalization())
        made.add(layers.ReLU())
    made.add(layers.GlobalAveragePooling2D())
    made.add(layers.Dense(10, activation="softmax"))
    made.compile(keras.optimizers.SGD(0.01, momentum=0.9), CROSS_ENTROPY)
    return made, images(8, 64), classes(8), 8


@model
def _small_transformer() -> Ready:
    inputs = keras.Input((512, 32))
    y = layers.LayerNormalization()(inputs)
    x = inputs + layers.MultiHeadAttention(2, 16)(y, y)
    x = x + layers.Dense(32)(layers.Dense(128, activation="gelu")(x))
    x = layers.GlobalAveragePooling1D()(x)
    made = keras.Model(inputs, layers.Dense(10, activation="softmax")(x))
    made.compile(keras.optimizers.AdamW(1e-3), CROSS_ENTROPY)
    return made, images(8, 64, 4).reshape(-1, 512, 32), classes(8), 8


@model
def _unet(size: int = 48, filters: int = 8, depth: int = 4) -> Ready:
    """Make the network with a volume of noise and labels; zeros on a dry card."""
    cube = (1, size, size, size)
    if os.environ.get("LMS_CARD_DRY") == "1":
        x, y = np.zeros((*cube, 4), np.float32), np.zeros((*cube, 3), np.uint8)
    else:
        random = np.random.default_rng(0)
        x = random.standard_normal((*cube, 4), dtype=np.float32)
        y = random.integers(0, 2, (*cube, 3), dtype=np.uint8)
    return build_unet(size, filters, depth, batch_size=1, seed=0), x, y, 1


@model
def _scans(path: str, filters: int, depth: int) -> Ready:
    """Make the network with the volumes and labels of a file, one per batch."""
    with np.load(path) as arrays:
        x, y = arrays["x"], arrays["y"]
    network = build_unet(x.shape[1], filters, depth, seed=0)
    network.optimizer.build(network.trainable_variables)  # else it is traced twice
    return network, x, y, 1
