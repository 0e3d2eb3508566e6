"""Image networks of `keras.applications`, with random weights and small images."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import keras
from keras import optimizers

from experiments.models.data import (
    CROSS_ENTROPY,
    MODELS,
    Ready,
    classes,
    images,
    model,
)

# Its class, its optimizer, the edge of an image, and the batch.
_NETWORKS: Mapping[str, tuple[str, Callable[[], Any], int, int]] = {
    "resnet50": ("ResNet50", lambda: optimizers.SGD(0.01, momentum=0.9), 96, 8),
    "densenet121": ("DenseNet121", lambda: optimizers.Adam(1e-3), 64, 8),
    "xception": ("Xception", lambda: optimizers.AdamW(1e-3), 96, 8),
    "efficientnetb0": ("EfficientNetB0", lambda: optimizers.RMSprop(1e-3), 96, 8),
    "convnexttiny": ("ConvNeXtTiny", lambda: optimizers.AdamW(1e-3), 64, 8),
    "mobilenetv3small": (
        "MobileNetV3Small",
        lambda: optimizers.RMSprop(1e-3, momentum=0.9),
        128,
        16,
    ),
    "inceptionv3": ("InceptionV3", lambda: optimizers.Nadam(1e-3), 96, 8),
}


def _classifier(
    name: str, optimizer: Callable[[], Any], *, size: int, batch: int, count: int = 10
) -> Ready:
    network = getattr(keras.applications, name)
    made = network(weights=None, input_shape=(size, size, 3), classes=count)
    made.compile(optimizer(), CROSS_ENTROPY)
    return made, images(batch, size), classes(batch, count=count), batch


for _name, (_class, _optimizer, _size, _batch) in _NETWORKS.items():
    MODELS[_name] = partial(_classifier, _class, _optimizer, size=_size, batch=_batch)


@model
def _vgg16() -> Ready:
    """As one fine-tunes it: without its three wide layers."""
    network: Any = keras.applications.VGG16
    base = network(
        weights=None, pooling="avg", input_shape=(96, 96, 3), include_top=False
    )
    outputs = keras.layers.Dense(10, activation="softmax")(base.output)
    made = keras.Model(base.input, outputs)
    made.compile(optimizers.Adafactor(1e-3), CROSS_ENTROPY)
    return made, images(8, 96), classes(8), 8
