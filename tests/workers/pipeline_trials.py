"""Trials of pipelines, each in a process with cards of its own."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import lms
from tests.tf.training import digest

__all__ = ["trained"]

# Where a model is cut; into two, at the middle one.
_CUTS = {
    "dense": ["layer5"],
    "unet": ["down2"],
    "transformer": ["block0", "block1", "block2"],
}


def unet() -> Any:
    """Three levels with skips that pass the cut, dropout and statistics."""
    inputs = x = keras.Input((64, 64, 3))
    skips = []
    for i, filters in enumerate((8, 16, 32)):
        x = _level(x, filters, 2 if i else 1)
        skips.append(keras.layers.Identity(name=f"down{i}")(x))
    x = keras.layers.Dropout(0.2)(skips.pop())
    for i, filters in ((1, 16), (0, 8)):
        x = keras.layers.UpSampling2D()(x)
        x = keras.layers.Concatenate()([x, skips.pop()])
        x = _level(x, filters, 1)
        x = keras.layers.Identity(name=f"up{i}")(x)
    return keras.Model(inputs, keras.layers.Conv2D(3, 1)(x)), "mse"


def _level(x: Any, filters: int, strides: int) -> Any:
    for i in range(4):
        own = {"padding": "same", "strides": 1 if i else strides}
        x = keras.layers.Conv2D(filters, 3, activation="gelu", **own)(x)
    return keras.layers.BatchNormalization()(x)


def dense() -> Any:
    """Twelve layers, with dropout between them."""
    model = keras.Sequential([keras.Input((128,))])
    for i in range(12):
        layer = keras.layers.Dense(128, activation="gelu", name=f"layer{i}")
        model.add(layer)
        if i in (2, 8):
            model.add(keras.layers.Dropout(0.1))
    return model, "mse"


def transformer() -> Any:
    """Four blocks of attention; statistics, dropout, tokens and a penalty."""
    inputs = keras.Input((64,), dtype="int32")
    x = keras.layers.Embedding(50, 32)(inputs)
    for i in range(4):
        attended = keras.layers.MultiHeadAttention(4, 8, dropout=0.1)(x, x)
        x = keras.layers.LayerNormalization()(keras.layers.Add()([x, attended]))
        inner = keras.layers.Dense(
            128, activation="gelu", kernel_regularizer=keras.regularizers.L2(1e-3)
        )(x)
        x = keras.layers.Add()([x, keras.layers.Dense(32)(inner)])
        x = keras.layers.BatchNormalization(name=f"block{i}")(x)
    return keras.Model(inputs, keras.layers.Dense(50)(x)), _labels_loss


def _labels_loss(targets: Any, made: Any) -> Any:
    return keras.losses.sparse_categorical_crossentropy(targets, made, from_logits=True)


def batches(name: str, count: int) -> Any:
    values = np.random.default_rng(1)
    for _ in range(count):
        if name == "unet":
            x = values.normal(size=(16, 64, 64, 3)).astype(np.float32)
            yield x, np.square(x)
        elif name == "dense":
            x = values.normal(size=(8192, 128)).astype(np.float32)
            yield x, np.square(x)
        else:
            x = values.integers(0, 50, (128, 65))
            yield x[:, :-1].astype(np.int32), x[:, 1:].astype(np.int32)


def trained(  # noqa: PLR0913 - ways to train
    name: str,
    *,
    cards: int = 1,
    stages: int = 2,
    schedule: Any = "1f1b",
    micro_batches: int = 4,
    steps: int = 2,
    plain: bool = False,
    budget: list[int] | None = None,
) -> dict[str, Any]:
    """Train some steps in stages; the digest of all variables, and peaks."""
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(7)
    model, loss = globals()[name]()
    optimizer = keras.optimizers.Adam(1e-3)
    if plain:
        step = _plain_step(model, loss, optimizer, micro_batches)
    else:
        cuts = _CUTS[name] if stages > 2 else [_CUTS[name][len(_CUTS[name]) // 2]]
        devices = [f"GPU:{i % cards}" for i in range(stages)]
        parts = lms.cut(model, after=cuts, devices=devices)
        step = lms.pipeline_step(
            parts,
            loss,
            optimizer,
            micro_batches=micro_batches,
            schedule=schedule,
            budget=budget,
        )
    losses = [float(step(x, y)) for x, y in batches(name, steps)]
    variables = [*model.variables, *sorted(optimizer.variables, key=lambda v: v.path)]
    peaks = [
        tf.config.experimental.get_memory_info(f"GPU:{i}")["peak"] for i in range(cards)
    ]
    return {
        "digest": digest(variables),
        "losses": losses,
        "peaks": peaks,
        "devices": sorted({v.value.device[-5:] for v in model.variables}),
        "reports": [] if plain else [_told(report) for report in step.report],
    }


def _told(report: Any) -> list[Any]:
    return [
        report.kind,
        report.swap_count + report.recomputed_ops,
        report.predicted_peak_bytes,
        report.measured_peak_bytes,
        report.replans,
    ]


def _plain_step(model: Any, loss: Any, optimizer: Any, micro_batches: int) -> Any:
    """Return a step over micro-batches by a tape of the whole model on one device."""
    optimizer.build(model.trainable_variables)
    own: Any = keras.losses.get(loss)
    sums = [tf.Variable(tf.zeros(v.shape)) for v in model.trainable_variables]

    @tf.function(autograph=False, jit_compile=False)
    def add(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            made = model(x, training=True)
            value = tf.reduce_mean(own(y, made)) + sum(model.losses)
        gradients = tape.gradient(value, model.trainable_variables)
        for total, one in zip(sums, gradients, strict=True):
            total.assign_add(tf.convert_to_tensor(one))
        return value

    @tf.function(autograph=False, jit_compile=False)
    def update() -> None:
        optimizer.apply([one / micro_batches for one in sums])
        for one in sums:
            one.assign(tf.zeros_like(one))

    def step(x: Any, y: Any) -> Any:
        pairs = zip(np.split(x, micro_batches), np.split(y, micro_batches), strict=True)
        losses = [add(tf.constant(part), tf.constant(of)) for part, of in pairs]
        update()
        return tf.reduce_mean(tf.stack(losses))

    return step
