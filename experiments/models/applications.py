"""Image networks of `keras.applications`, and small networks in half precision.

Weights are random and images small.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import keras
from keras import layers, optimizers

from experiments.models.data import CROSS_ENTROPY, MODELS, Ready, classes, images, model

_CLASSES = {each.lower(): each for each in dir(keras.applications) if each[0].isupper()}


def _sgd() -> Any:
    return optimizers.SGD(0.01, momentum=0.9)


# An optimizer, the edge of an image, and the batch.
_NETWORKS: Mapping[str, tuple[Callable[[], Any], int, int]] = {
    "resnet50": (_sgd, 96, 8),
    "densenet121": (lambda: optimizers.Adam(1e-3), 64, 8),
    "xception": (lambda: optimizers.AdamW(1e-3), 96, 8),
    "efficientnetb0": (lambda: optimizers.RMSprop(1e-3), 96, 8),
    "convnexttiny": (lambda: optimizers.AdamW(1e-3), 64, 8),
    "mobilenetv3small": (lambda: optimizers.RMSprop(1e-3, momentum=0.9), 128, 16),
    "inceptionv3": (lambda: optimizers.Nadam(1e-3), 96, 8),
}


def _classifier(name: str, size: int, batch: int, count: int = 10) -> Ready:
    network = getattr(keras.applications, _CLASSES[name])
    made = network(weights=None, input_shape=(size, size, 3), classes=count)
    made.compile(_NETWORKS[name][0](), CROSS_ENTROPY)
    return made, images(batch, size), classes(batch, count=count), batch


for _name, (_, _size, _batch) in _NETWORKS.items():
    MODELS[_name] = partial(_classifier, _name, size=_size, batch=_batch)


@model
def _vgg16() -> Ready:
    """Make VGG16 as for fine-tuning: without its three wide layers."""
    network: Any = keras.applications.VGG16
    base = network(
        weights=None, pooling="avg", input_shape=(96, 96, 3), include_top=False
    )
    outputs = layers.Dense(10, activation="softmax")(base.output)
    made = keras.Model(base.input, outputs)
    made.compile(optimizers.Adafactor(1e-3), CROSS_ENTROPY)
    return made, images(8, 96), classes(8), 8


def _made(
    policy: str, network: Callable[[], keras.Model], optimizer: Callable[[], Any]
) -> Ready:
    """Make a network whose layers have a dtype policy."""
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy(policy)
    try:
        made = network()
        made.compile(optimizer(), CROSS_ENTROPY)
    finally:
        keras.mixed_precision.set_dtype_policy(before)
    return made, images(16, 96), classes(16), 16


def _convolutions() -> keras.Model:
    inputs = x = keras.Input((96, 96, 3))
    for count in (32, 64, 128):
        x = layers.Conv2D(count, 3, padding="same", activation="relu")(x)
        x = layers.Conv2D(count, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.GlobalAveragePooling2D()(x)
    outputs = layers.Dense(10, activation="softmax", dtype="float32")(x)
    return keras.Model(inputs, outputs)


def _transformer(patch: int = 8, width: int = 128) -> keras.Model:
    inputs = keras.Input((96, 96, 3))
    x = layers.Conv2D(width, patch, strides=patch)(inputs)
    x = layers.Reshape((-1, width))(x)
    for _ in range(3):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, width // 4, dropout=0.1)(y, y)
        y = layers.LayerNormalization()(x)
        y = layers.Dense(4 * width, activation="gelu")(y)
        x = x + layers.Dense(width)(y)
    x = layers.GlobalAveragePooling1D()(x)
    outputs = layers.Dense(10, activation="softmax", dtype="float32")(x)
    return keras.Model(inputs, outputs)


for _name, _policy, _network, _optimizer in (
    ("bfloat16_cnn", "mixed_bfloat16", _convolutions, lambda: optimizers.Adam(1e-3)),
    ("float16_vit", "mixed_float16", _transformer, lambda: optimizers.AdamW(1e-3)),
    ("float16_cnn", "mixed_float16", _convolutions, _sgd),
):
    MODELS[_name] = partial(_made, _policy, _network, _optimizer)
