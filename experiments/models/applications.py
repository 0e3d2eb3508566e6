"""Image networks of `keras.applications`, with random weights and small images.

What they are called with is what a user of small images would write: an input shape,
ten classes, and an optimizer.
"""

from collections.abc import Callable

import keras

from experiments.models.data import Maker, Ready, classes, images

__all__ = ["MODELS"]

_CROSS_ENTROPY = "sparse_categorical_crossentropy"


def _classifier(
    network: Callable[..., keras.Model],
    optimizer: keras.optimizers.Optimizer,
    *,
    size: int,
    batch: int = 8,
    count: int = 10,
) -> Ready:
    model = network(weights=None, input_shape=(size, size, 3), classes=count)
    model.compile(optimizer, _CROSS_ENTROPY)
    return model, images(batch, size), classes(batch, count=count), batch


def _resnet50(size: int = 96, batch: int = 8, count: int = 10) -> Ready:
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    network = keras.applications.ResNet50
    return _classifier(network, optimizer, size=size, batch=batch, count=count)


def _densenet121() -> Ready:
    optimizer = keras.optimizers.Adam(1e-3)
    return _classifier(keras.applications.DenseNet121, optimizer, size=64)


def _xception() -> Ready:
    optimizer = keras.optimizers.AdamW(1e-3)
    return _classifier(keras.applications.Xception, optimizer, size=96)


def _efficientnetb0() -> Ready:
    optimizer = keras.optimizers.RMSprop(1e-3)
    return _classifier(keras.applications.EfficientNetB0, optimizer, size=96)


def _convnexttiny() -> Ready:
    optimizer = keras.optimizers.AdamW(1e-3)
    return _classifier(keras.applications.ConvNeXtTiny, optimizer, size=64)


def _mobilenetv3small() -> Ready:
    optimizer = keras.optimizers.RMSprop(1e-3, momentum=0.9)
    return _classifier(
        keras.applications.MobileNetV3Small, optimizer, size=128, batch=16
    )


def _inceptionv3() -> Ready:
    optimizer = keras.optimizers.Nadam(1e-3)
    return _classifier(keras.applications.InceptionV3, optimizer, size=96)


def _vgg16() -> Ready:
    """As one fine-tunes it: without its three wide layers."""
    network: Callable[..., keras.Model] = keras.applications.VGG16
    base = network(
        weights=None, include_top=False, pooling="avg", input_shape=(96, 96, 3)
    )
    outputs = keras.layers.Dense(10, activation="softmax")(base.output)
    model = keras.Model(base.input, outputs)
    model.compile(keras.optimizers.Adafactor(1e-3), _CROSS_ENTROPY)
    return model, images(8, 96), classes(8), 8


MODELS: dict[str, Maker] = {
    "resnet50": _resnet50,
    "densenet121": _densenet121,
    "xception": _xception,
    "efficientnetb0": _efficientnetb0,
    "convnexttiny": _convnexttiny,
    "mobilenetv3small": _mobilenetv3small,
    "inceptionv3": _inceptionv3,
    "vgg16": _vgg16,
}
