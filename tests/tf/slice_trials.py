"""Trainings of attention, whose scores exceed the card, and of a U-Net."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from lms import LMSCallback
from lms.errors import BudgetError
from tests.models import Case
from tests.tf.training import hashes, train

__all__ = ["attention", "block", "unet"]

_WIDTH, _WORDS = 32, 64


def _model(length: int, heads: int) -> keras.Model:
    tokens = keras.Input((length,), dtype="int32")
    x = layers.Embedding(_WORDS, _WIDTH)(tokens)
    y = layers.LayerNormalization()(x)
    attended = layers.MultiHeadAttention(heads, _WIDTH // heads, dropout=0.2)
    x = x + attended(y, y, use_causal_mask=True)
    model = keras.Model(tokens, layers.Dense(_WORDS)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=False)  # pyright: ignore[reportArgumentType]
    return model


def block(length: int = 512, heads: int = 2) -> Case:
    """A transformer's block and its training."""
    x = np.random.default_rng(0).integers(0, _WORDS, (4, length), dtype=np.int32)
    data = {"x": x, "y": np.roll(x, 1), "batch_size": 2, "shuffle": False}
    return Case(build=lambda: _model(length, heads), fit=data, epochs=2)


def attention(
    *,
    planned: bool,
    length: int = 512,
    heads: int = 2,
    exact: bool = False,
    held: int = 0,
    **knobs: Any,
) -> dict[str, Any]:
    """Train a transformer's block.

    Args:
        planned: Whether large model support is used.
        length: Tokens of a sequence.
        heads: Of the attention.
        exact: Whether ops are deterministic.
        held: Bytes that others hold from the second batch on.
        knobs: The callback's.

    Returns:
        Its losses, hashes of all numbers and the measured peak; the least
        budget where there is no plan.
    """
    hog: list[Any] = []

    def hold(batch: int, logs: Any = None) -> None:
        if held and batch == 1 and not (hog or logs):
            hog.append(tf.raw_ops.Empty(shape=[held], dtype=tf.uint8, init=False))

    holding = keras.callbacks.LambdaCallback(on_train_batch_begin=hold)
    if exact:
        tf.config.experimental.enable_op_determinism()
    return _trained(block(length, heads), [holding], planned=planned, **knobs)


def unet(*, planned: bool, **knobs: Any) -> dict[str, Any]:
    """Train a U-Net, whose concatenated skips are its largest tensors, as `attention`.

    Args:
        planned: Whether large model support is used.
        knobs: The callback's.
    """
    tf.config.experimental.enable_op_determinism()
    draw = np.random.default_rng(0)
    x = draw.random((16, 96, 96, 2), dtype=np.float32)
    y = draw.integers(0, 3, (16, 96, 96))
    data = {"x": x, "y": y, "batch_size": 8, "shuffle": False}
    return _trained(Case(build=_unet, fit=data, epochs=2), planned=planned, **knobs)


def _unet() -> keras.Model:
    known: Any = {"padding": "same", "activation": "relu"}
    image, skips = keras.Input((96, 96, 2)), list[Any]()
    x: Any = image
    for width in (16, 24):
        x = layers.Conv2D(width, 3, **known)(x)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(32, 3, **known)(x)
    for skip in reversed(skips):
        x = layers.Concatenate()([layers.UpSampling2D()(x), skip])
        x = layers.Conv2D(skip.shape[-1], 3, **known)(x)
    model = keras.Model(image, layers.Conv2D(3, 1)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=False)  # pyright: ignore[reportArgumentType]
    return model


def _trained(
    case: Case, others: Sequence[Any] = (), *, planned: bool, **knobs: Any
) -> dict[str, Any]:
    callback = LMSCallback(**knobs, verbose=0)
    try:
        trained = train(case, [callback, *others] if planned else [])
    except BudgetError as error:
        return {"least": error.least_bytes, "said": str(error)}
    return {
        "losses": trained.numbers["loss of fit 0"].tolist(),
        "numbers": hashes(trained.numbers),
        "peak": trained.peak,
        "cut": [report.ops_cut for report in callback.report],
        "proof": [report.proof for report in callback.report],
        "replans": [report.replans for report in callback.report],
    }
