"""Small Keras models that together use what large model support must not harm.

Each `Case` builds a compiled model and says how to fit it. Activations outweigh the
weights, so that half of the memory still allows a step.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from unet3d.model import build_unet

__all__ = ["CASES", "SILENT", "Case", "conv_net", "pooled_net"]

# Keras types `verbose` and others as text.
SILENT: Any = 0
_NO_CUDNN: Any = {"use_cudnn": False}
_LABELS = "sparse_categorical_crossentropy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model and its training.

    Args:
        build: Makes the compiled model.
        fit: Arguments of `fit`, without epochs and callbacks, or what makes them.
        fits: How often `fit` is called.
        policy: Keras's dtype policy.
        epochs: Epochs of each `fit`.
        share: Part of a plain step's memory that a planned one gets.
        kinds: The steps that are planned.
        knobs: Of the callback, besides the budget.
        cards: How many the model lies on.
    """

    build: Callable[[], keras.Model]
    fit: Mapping[str, Any] | Callable[[], Mapping[str, Any]]
    fits: int = 1
    policy: str = "float32"
    epochs: int = 3
    share: float = 0.65
    kinds: tuple[str, ...] = field(default=("train",))
    knobs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    cards: int = 1

    def data(self) -> Mapping[str, Any]:
        """Arguments of `fit`."""
        return self.fit() if callable(self.fit) else self.fit


def _noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def _classes(count: int, classes: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, classes, size=(count,))


def _compiled(
    inputs: Any, outputs: Any, optimizer: Any = "adam", loss: Any = "mse", **more: Any
) -> keras.Model:
    model = keras.Model(inputs, outputs)
    model.compile(optimizer, loss, **{"jit_compile": False, **more})
    return model


def unet() -> keras.Model:
    """Return the case study's network with two levels."""
    return build_unet(16, filters=4, depth=2, seed=3)


def _unet_data(count: int = 4) -> dict[str, Any]:
    masks = (_noise(count, 16, 16, 16, 3, seed=2) > 0.5).astype("float32")
    return {"x": _noise(count, 16, 16, 16, 4), "y": masks, "batch_size": 2}


def mirrored(**compiled: Any) -> keras.Model:
    """A network under a strategy of one replica, as tutorials for one GPU write it."""
    with tf.distribute.MirroredStrategy(["GPU:0"]).scope():
        return conv_net(**compiled)


class _Half(layers.Layer):
    """Convolutions on one card."""

    def __init__(self, card: int) -> None:
        super().__init__()
        self._card = f"GPU:{card}"
        self._layers = [layers.Conv2D(16, 3, padding="same") for _ in range(4)]

    def build(self, input_shape: Any) -> None:
        shape = input_shape
        with tf.device(self._card):
            for layer in self._layers:
                layer.build(shape)
                shape = (*shape[:-1], 16)

    def call(self, x: Any) -> Any:
        with tf.device(self._card):
            for layer in self._layers:
                x = tf.nn.gelu(layer(x))
        return x

    def compute_output_shape(self, shape: Any) -> Any:
        return (*shape[:-1], 16)


def replicated() -> keras.Model:
    """A residual network with a replica on each of two cards."""
    with tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"]).scope():
        return resnet()


def on_two_cards() -> keras.Model:
    """A network whose halves lie on two cards, each with an optimizer of its own."""
    inputs = keras.Input((32, 32, 3))
    x = layers.GlobalAveragePooling2D()(_Half(1)(_Half(0)(inputs)))
    model = TwoOptimizers(inputs, layers.Dense(5, activation="softmax")(x))
    model.second = keras.optimizers.SGD(0.01, momentum=0.9)
    accumulating = keras.optimizers.Adam(gradient_accumulation_steps=2)
    model.compile(accumulating, _LABELS, jit_compile=False)  # pyright: ignore[reportArgumentType]
    return model


def _residual(x: Any, filters: int, stride: int) -> Any:
    short = layers.Conv2D(filters, 1, strides=stride, use_bias=False)(x)
    x = layers.Conv2D(filters, 3, strides=stride, padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    x = layers.Add()([short, layers.BatchNormalization()(x)])
    return layers.ReLU()(layers.Dropout(0.2)(x))


def resnet() -> keras.Model:
    """Residual blocks with batch normalisation and dropout."""
    inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(8, 3, padding="same")(inputs)
    for filters, stride in ((8, 1), (16, 2), (16, 1)):
        x = _residual(x, filters, stride)
    x = layers.GlobalAveragePooling2D()(x)
    outputs = layers.Dense(5, activation="softmax", dtype="float32")(x)
    sgd = keras.optimizers.SGD(0.05, momentum=0.9)
    metrics: Any = {"metrics": ["accuracy"], "weighted_metrics": ["accuracy"]}
    return _compiled(inputs, outputs, sgd, _LABELS, **metrics)


def _resnet_data(count: int = 24, batch_size: int = 8, **more: Any) -> dict[str, Any]:
    known = {"x": _noise(count, 32, 32, 3), "y": _classes(count, 5)}
    return {**known, "batch_size": batch_size, **more}


def _resnet_pair(count: int) -> tuple[np.ndarray, np.ndarray]:
    return _noise(count, 32, 32, 3), _classes(count, 5)


def _without_length(data: Mapping[str, Any]) -> dict[str, Any]:
    """Keras asks for one batch more than there are, and counts it."""
    pair = data["x"], data["y"]
    rows = tf.data.Dataset.from_generator(
        lambda: zip(*pair, strict=True),
        output_signature=tuple(tf.TensorSpec(a.shape[1:], a.dtype) for a in pair),
    )
    return {"x": rows.batch(data["batch_size"], drop_remainder=True)}


def conv_net(**compiled: Any) -> keras.Model:
    """Convolutions with bias, quickly traced, of which some must leave the device."""
    model: Any = keras.Sequential([keras.Input((32, 32, 3))])
    for name in ("first", "second", "third", "fourth", "fifth"):
        model.add(layers.Conv2D(16, 3, padding="same", activation="relu", name=name))
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dense(5, activation="softmax"))
    known: Any = {"optimizer": "adam", "loss": _LABELS, "metrics": ["accuracy"]}
    known["jit_compile"] = False
    model.compile(**{**known, **compiled})
    return model


def two_by_two() -> keras.Model:
    """Two inputs, two outputs, two losses with weights."""
    image = keras.Input((32, 32, 3), name="image")
    facts = keras.Input((6,), name="facts")
    x = layers.Conv2D(8, 3, padding="same", activation="relu")(image)
    side = layers.Dense(8, activation="tanh")(facts)
    x = layers.Multiply()([x, layers.Reshape((1, 1, 8))(side)])
    x = layers.Conv2D(8, 3, padding="same", activation="gelu")(x)
    x = layers.Conv2D(8, 3, padding="same", activation="relu")(x)
    again = layers.Conv2D(3, 3, padding="same", name="again")(x)
    kind = layers.Dense(4, name="kind")(layers.GlobalMaxPooling2D()(x))
    logits = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return _compiled(
        [image, facts],
        {"again": again, "kind": kind},
        "rmsprop",
        {"again": "mse", "kind": logits},
        loss_weights={"again": 0.7, "kind": 0.3},
        metrics={"again": "mae", "kind": "accuracy"},
    )


@keras.saving.register_keras_serializable("tests")
class Clipped(keras.Model):
    """A training step of its own, with clipped gradients."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """Clip the gradients by their global norm."""
        x, y = data
        with tf.GradientTape() as tape:
            loss: Any = self.compute_loss(y=y, y_pred=self(x, training=True))
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        gradients, norm = tf.clip_by_global_norm(gradients, 0.5)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"loss": loss, "norm": norm}


class TwoOptimizers(keras.Model):
    """A training step of its own, with an optimizer for each half of the variables."""

    second: Any

    def train_step(self, data: Any) -> dict[str, Any]:
        """Update each half."""
        x, y = data
        with tf.GradientTape() as tape:
            loss: Any = self.compute_loss(y=y, y_pred=self(x, training=True))
        variables = self.trainable_variables
        gradients: Any = tape.gradient(loss, variables)
        half = len(variables) // 2
        self.second.apply(gradients[:half], variables[:half])
        self.optimizer.apply(gradients[half:], variables[half:])
        return {"loss": loss}


def two_optimizers() -> keras.Model:
    """Convolutions that two optimizers train."""
    inputs = x = keras.Input((32, 32, 3))
    for _ in range(4):
        x = layers.Conv2D(16, 3, padding="same", activation="relu")(x)
    model = TwoOptimizers(inputs, layers.Dense(1)(layers.GlobalMaxPooling2D()(x)))
    model.second = keras.optimizers.SGD(0.01, momentum=0.9)
    model.compile(optimizer="adam", loss="mse", jit_compile=False)  # pyright: ignore[reportArgumentType]
    return model


def clipped() -> keras.Model:
    """An autoencoder that trains by its own step."""
    inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(16, 3, padding="same", activation="relu")(inputs)
    x = layers.Conv2D(32, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.Conv2DTranspose(16, 3, strides=2, padding="same", activation="elu")(x)
    x = layers.Conv2DTranspose(3, 3, padding="same")(x)
    model = Clipped(inputs, x)
    model.compile(optimizer="adam", loss="mse", jit_compile=False)  # pyright: ignore[reportArgumentType]
    return model


def lstm(*, unroll: bool) -> keras.Model:
    """A recurrent network between dense layers that are worth a swap."""
    inputs = keras.Input((6, 16))
    x = layers.Dense(16, activation="relu")(inputs)
    x = layers.LSTM(16, unroll=unroll, return_sequences=True, **_NO_CUDNN)(x)
    for _ in range(3):
        x = layers.Dense(64, activation="tanh")(x)
    return _compiled(inputs, layers.Dense(1)(x), metrics=["mae"])


def transformer() -> keras.Model:
    """A block of attention with a feed-forward part."""
    inputs = keras.Input((32, 16))
    attended = layers.MultiHeadAttention(2, 8, dropout=0.1)(inputs, inputs)
    x = layers.LayerNormalization()(layers.Add()([inputs, attended]))
    inner = layers.Dense(64, activation="gelu")(x)
    x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(16)(inner)]))
    x = layers.Dense(3)(layers.GlobalAveragePooling1D()(x))
    return _compiled(inputs, x, keras.optimizers.AdamW(1e-3), metrics=["mae"])


def scaled_too_far() -> keras.Model:
    """The block of attention, whose first gradients of float16 are not finite."""
    model = transformer()
    for layer in model.layers:
        if isinstance(layer, layers.Dense):
            kernel: Any = layer.kernel
            kernel.constraint = keras.constraints.MaxNorm(1)  # written twice a step
    own = keras.optimizers.AdamW(1e-3, clipnorm=1.0)
    scaled = keras.optimizers.LossScaleOptimizer
    model.compile(scaled(own, initial_scale=2.0**24, dynamic_growth_steps=2), "mse")
    return model


def embedding(optimizer: Any = "adagrad") -> keras.Model:
    """Words, whose gradients are sparse."""
    inputs = keras.Input((64,), dtype="int32")
    x = layers.Embedding(50, 16)(inputs)
    for _ in range(4):
        x = layers.Conv1D(32, 3, padding="same", activation="relu")(x)
    x = layers.Dense(1, activation="sigmoid")(layers.GlobalAveragePooling1D()(x))
    return _compiled(inputs, x, optimizer, "binary_crossentropy", metrics=["auc"])


def _loss_of_labelled(labels: Any, predicted: Any) -> Any:
    """Return the mean loss of labelled words; each label has equal weight."""
    chosen = tf.boolean_mask(predicted, labels > 0)
    right = tf.boolean_mask(tf.one_hot(tf.cast(labels, tf.int32), 6), labels > 0)
    losses = tf.nn.softmax_cross_entropy_with_logits(right, chosen)
    kinds, kind = tf.unique(tf.boolean_mask(labels, labels > 0))
    return tf.reduce_mean(
        tf.math.unsorted_segment_mean(losses, kind, tf.shape(kinds)[0])
    )


def tagger(optimizer: Any = "adam") -> keras.Model:
    """Words of which some have labels: how many the loss is of depends on values."""
    inputs = keras.Input((64,), dtype="int32")
    x = layers.Embedding(50, 16)(inputs)
    for _ in range(4):
        x = layers.Conv1D(32, 3, padding="same", activation="gelu")(x)
    return _compiled(inputs, layers.Dense(6)(x), optimizer, _loss_of_labelled)


def speech() -> keras.Model:
    """Frames that a loss aligns with letters, by loops that are one op."""
    parts = [layers.Conv1D(32, 3, padding="same", activation="gelu") for _ in range(4)]
    model = keras.Sequential([keras.Input((64, 8)), *parts, layers.Dense(12)])
    model.compile(optimizer="adam", loss=keras.losses.CTC(), jit_compile=False)  # pyright: ignore[reportArgumentType]
    return model


def shared() -> keras.Model:
    """One convolution that is applied three times, and to two inputs."""
    left, right = keras.Input((32, 32, 8)), keras.Input((32, 32, 8))
    conv = layers.Conv2D(8, 3, padding="same", activation="relu")
    x = layers.Subtract()([conv(conv(left)), conv(right)])
    x = layers.GlobalAveragePooling2D()(conv(x))
    return _compiled([left, right], layers.Dense(1)(x), "sgd", "mae")


def pooled_net() -> keras.Model:
    """A classifier whose bits depend on whether the batch's size was traced."""
    inputs = keras.Input((96, 96, 3))
    x = inputs
    for filters in (8, 16, 16):
        x = layers.Conv2D(filters, 3, padding="same")(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.Dropout(0.2)(x)
        x = layers.MaxPooling2D()(x) if filters > 8 else x
    x = layers.Dense(5)(layers.GlobalAveragePooling2D()(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return _compiled(inputs, x, loss=loss)


def ties() -> keras.Model:
    """Pooling after rectification: several voxels are the largest, zero."""
    inputs = keras.Input((32, 32, 32, 4))
    x = layers.Conv3D(8, 3, padding="same", activation="relu")(inputs)
    y = layers.MaxPooling3D()(x)
    y = layers.Conv3D(16, 3, padding="same", activation="relu")(y)
    y = layers.Conv3DTranspose(8, 2, strides=2)(y)
    x = layers.GroupNormalization(4)(layers.Concatenate()([x, y]))
    x = layers.Add()([x, layers.UpSampling3D()(layers.AveragePooling3D(2)(x))])
    return _compiled(inputs, layers.Conv3D(3, 1)(x))


def grouped() -> keras.Model:
    """Convolutions of each channel alone, which Keras lets XLA compile on a CPU."""
    inputs = keras.Input((16, 16, 32))
    x = inputs
    for _ in range(3):
        y = layers.Conv2D(32, 5, padding="same", groups=32)(x)
        y = layers.Dense(64, activation="gelu")(layers.LayerNormalization()(y))
        x = layers.Add()([x, layers.Dense(32)(y)])
    return _compiled(inputs, layers.Dense(1)(layers.GlobalAveragePooling2D()(x)))


_SIDES = (4, 32, 32, 32)
_VOXELS = {"x": _noise(*_SIDES, 4), "y": _noise(*_SIDES, 3), "batch_size": 2}
_WEIGHTS = np.linspace(0.1, 2.0, 12)
_SEQUENCES = {"x": _noise(24, 32, 16), "y": _noise(24, 3), "batch_size": 8}
_SERIES = {"x": _noise(512, 6, 16), "y": _noise(512, 6, 1), "batch_size": 256}
_SENTENCES = {"x": _classes(128 * 64, 50).reshape(128, 64), "batch_size": 64}
_LABELLED = _SENTENCES | {"y": _classes(128 * 64, 6, seed=2).reshape(128, 64)}
_VALIDATED = {
    "class_weight": {i: 1.0 + i for i in range(5)},
    "validation_data": (_noise(12, 32, 32, 3), _classes(12, 5)),
}

CASES: dict[str, Case] = {
    "a 3D U-Net": Case(build=unet, fit=_unet_data()),
    "a residual network with recomputed ops": Case(
        build=resnet, fit=_resnet_data(), share=0.6, knobs={"recompute": True}
    ),
    "mixed_float16 with recomputed ops": Case(
        build=transformer,
        fit=_SEQUENCES,
        policy="mixed_float16",
        share=0.6,
        knobs={"recompute": True},
    ),
    "halves on two cards": Case(build=on_two_cards, fit=_resnet_data(16), cards=2),
    "a residual network": Case(build=resnet, fit=_resnet_data()),
    "two inputs and two outputs": Case(
        build=two_by_two,
        fit={
            "x": {"image": _noise(12, 32, 32, 3), "facts": _noise(12, 6)},
            "y": {"again": _noise(12, 32, 32, 3, seed=4), "kind": _classes(12, 4)},
            "sample_weight": {"again": _WEIGHTS[:, None, None], "kind": _WEIGHTS},
            "batch_size": 5,
        },
    ),
    "a train_step of its own": Case(
        build=clipped,
        fit={"x": _noise(16, 32, 32, 3), "y": _noise(16, 32, 32, 3), "batch_size": 8},
    ),
    "two optimizers": Case(build=two_optimizers, fit=_resnet_data(16)),
    "an unrolled LSTM": Case(build=lambda: lstm(unroll=True), fit=_SERIES),
    "an LSTM in a loop": Case(
        build=lambda: lstm(unroll=False),
        fit=_SERIES,
        share=0.5,  # a loop's lists are not counted
    ),
    "mixed_float16": Case(  # convolutions of it are made in float32, in scratch
        build=transformer,
        fit=_SEQUENCES,
        policy="mixed_float16",
        knobs={"recompute": False},
    ),
    "a scale too large for the first gradients": Case(
        build=scaled_too_far,
        fit=_SEQUENCES,
        policy="mixed_float16",
        knobs={"recompute": False},
    ),
    "mixed_bfloat16": Case(build=resnet, fit=_resnet_data(), policy="mixed_bfloat16"),
    "a mirrored strategy of one replica": Case(build=mirrored, fit=_resnet_data()),
    "two replicas, validation, a smaller last batch": Case(
        build=replicated,
        fit=lambda: _resnet_data(20) | {"validation_data": _resnet_pair(12)},
        kinds=("train", "test"),
        cards=2,
    ),
    "two steps per execution, averaged weights": Case(
        build=lambda: conv_net(
            steps_per_execution=2,
            optimizer=keras.optimizers.Adam(use_ema=True, ema_overwrite_frequency=2),
        ),
        fit=_resnet_data(40),
    ),
    "sample weights and a partial last batch": Case(
        build=conv_net, fit=_resnet_data(22, sample_weight=np.linspace(0.1, 2.0, 22))
    ),
    "data whose length nobody knows": Case(
        build=conv_net, fit=lambda: _without_length(_resnet_data())
    ),
    "class weights and validation inside fit": Case(
        build=conv_net,
        fit=_resnet_data(**_VALIDATED),
        kinds=("train", "test"),
    ),
    "weights and steps of all kinds, and a second fit": Case(
        build=lambda: mirrored(steps_per_execution=2),
        fit=_resnet_data(40, **_VALIDATED),
        fits=2,
        kinds=("train", "test"),
    ),
    "accumulated gradients and a second fit": Case(
        build=lambda: conv_net(
            optimizer=keras.optimizers.Adam(gradient_accumulation_steps=2)
        ),
        fit=_resnet_data(),
        fits=2,
    ),
    "the largest of equal voxels": Case(build=ties, fit=_VOXELS, share=0.8),
    "grouped convolutions": Case(
        build=grouped,
        fit={"x": _noise(24, 16, 16, 32), "y": _noise(24, 1), "batch_size": 8},
        share=0.8,
    ),
    "an embedding whose equal words' gradients are added up": Case(
        build=lambda: embedding("adafactor"),
        fit=_SENTENCES | {"y": _classes(128, 2)},
        share=0.5,
    ),
    "words whose first gradients are not finite": Case(
        build=lambda: embedding(
            keras.optimizers.LossScaleOptimizer(
                keras.optimizers.AdamW(1e-3), initial_scale=2.0**30
            )
        ),
        fit=_SENTENCES | {"y": _classes(128, 2)},
        policy="mixed_float16",
        share=0.5,
    ),
    "a loss of as many words as have labels": Case(
        build=tagger, fit=_LABELLED, share=0.5
    ),
    "bfloat16 words, of nobody knows how many sentences": Case(
        build=lambda: tagger(
            keras.optimizers.Adafactor(use_ema=True, ema_overwrite_frequency=2)
        ),
        fit=lambda: _without_length(_LABELLED),
        policy="mixed_bfloat16",
        share=0.5,
    ),
    "letters of speech": Case(
        build=speech,
        fit={"x": _noise(32, 64, 8), "y": 1 + _classes(192, 11).reshape(32, 6)},
    ),
    "shared layers": Case(
        build=shared,
        fit={
            "x": (_noise(16, 32, 32, 8), _noise(16, 32, 32, 8, seed=5)),
            "y": _noise(16, 1),
            "batch_size": 8,
        },
    ),
}
