"""Two small models for tests: their trainings take seconds, and need no keras-hub."""

import keras
from keras import layers

from experiments.zoo_data import Maker, Ready, classes, images

__all__ = ["MODELS"]

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


MODELS: dict[str, Maker] = {
    "small_cnn": _small_cnn,
    "small_transformer": _small_transformer,
}
