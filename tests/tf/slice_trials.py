"""Trainings of attention, whose scores exceed the card."""

import hashlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from lms import LMSCallback
from lms.errors import BudgetError
from tests.models import SILENT

__all__ = ["attention"]

_WIDTH, _WORDS = 32, 64


def _model(length: int, heads: int, dropout: float) -> keras.Model:
    tokens = keras.Input((length,), dtype="int32")
    x = layers.Embedding(_WORDS, _WIDTH)(tokens)
    y = layers.LayerNormalization()(x)
    attended = layers.MultiHeadAttention(heads, _WIDTH // heads, dropout=dropout)
    x = x + attended(y, y, use_causal_mask=True)
    model = keras.Model(tokens, layers.Dense(_WORDS)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    return model


def attention(
    *,
    planned: bool,
    length: int,
    heads: int,
    dropout: float = 0.0,
    slices: Any = None,
) -> dict[str, Any]:
    """Train a transformer's block with op determinism.

    Returns:
        Its losses and a digest of all variables, and the predicted peak; the least
        budget where there is no plan.
    """
    keras.utils.set_random_seed(0)
    tf.config.experimental.enable_op_determinism()
    model = _model(length, heads, dropout)
    draw = np.random.default_rng(0)
    x = draw.integers(0, _WORDS, (4, length), dtype=np.int32)
    callback = LMSCallback(slices=slices, verbose=0)
    try:
        history = model.fit(
            x,
            np.roll(x, 1),
            batch_size=2,
            shuffle=False,
            epochs=2,
            verbose=SILENT,
            callbacks=[callback] if planned else [],
        )
    except BudgetError as error:
        return {"least": error.least_bytes}
    digest = hashlib.sha256()
    for variable in (*model.variables, *model.optimizer.variables):
        digest.update(np.array(variable).tobytes())
    numbers = [*(loss.hex() for loss in history.history["loss"]), digest.hexdigest()]
    return {
        "numbers": numbers,
        "peak": tf.config.experimental.get_memory_info("GPU:0")["peak"],
        "cut": [report.ops_cut for report in callback.report],
    }
