"""Models of `state_on_host`: small ones with much state, each with its batches.

Each function returns a compiled model, what it is given and what it should say, of so
many batches; then how many examples a batch has. Adam has two slots for each weight.
"""

from collections.abc import Callable, Mapping
from importlib import import_module, util
from typing import Any

import keras
import numpy as np
from keras import layers

__all__ = ["MODELS", "Ready"]

# A model, its inputs, its targets, examples of a batch.
Ready = tuple[keras.Model, Any, np.ndarray, int]

_VOCABULARY, _CLASSES, _HEADS = 2048, 10, 4


def _mlp(batches: int, width: int = 2048, depth: int = 6, batch: int = 16) -> Ready:
    hidden = [layers.Dense(width, activation="relu") for _ in range(depth)]
    model = keras.Sequential([keras.Input((width,)), *hidden, layers.Dense(_CLASSES)])
    draw, n = np.random.default_rng(0), batches * batch
    x = draw.random((n, width), "float32")
    return _compiled(model), x, draw.integers(0, _CLASSES, n), batch


def _transformer(
    batches: int, width: int = 384, depth: int = 4, length: int = 32, batch: int = 8
) -> Ready:
    """A language model of causal attention (Vaswani et al., 2017)."""
    tokens = keras.Input((length,), dtype="int32")
    x = layers.Embedding(_VOCABULARY, width)(tokens)
    for _ in range(depth):
        normal = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(_HEADS, width // _HEADS, dropout=0.1)
        x = x + attention(normal, normal, use_causal_mask=True)
        normal = layers.LayerNormalization()(x)
        wide = layers.Dense(4 * width, activation="gelu")(normal)
        x = x + layers.Dense(width)(wide)
    words = layers.Dense(_VOCABULARY)(layers.LayerNormalization()(x))
    said = _words(batches * batch, length + 1)
    return _compiled(keras.Model(tokens, words)), said[:, :-1], said[:, 1:], batch


def _gpt2(
    batches: int, width: int = 384, depth: int = 4, length: int = 32, batch: int = 8
) -> Ready:
    if util.find_spec("keras_hub") is None:
        raise ModuleNotFoundError(
            "keras-hub must be installed, got no module of this name. Install it with "
            "`pip install '.[zoo]'`."
        )
    hub = import_module("keras_hub").models
    backbone = hub.GPT2Backbone(
        vocabulary_size=_VOCABULARY,
        num_layers=depth,
        num_heads=_HEADS,
        hidden_dim=width,
        intermediate_dim=4 * width,
        max_sequence_length=length,
    )
    model = hub.GPT2CausalLM(backbone, preprocessor=None)
    said = _words(batches * batch, length + 1)
    x = {"token_ids": said[:, :-1], "padding_mask": np.ones_like(said[:, 1:])}
    return _compiled(model), x, said[:, 1:], batch


def _recommender(
    batches: int, items: int = 200_000, width: int = 64, batch: int = 64
) -> Ready:
    """Eight items that somebody liked, and a class: nearly all of it is the table."""
    liked = keras.Input((8,), dtype="int32")
    x = layers.Flatten()(layers.Embedding(items, width)(liked))
    x = layers.Dense(64, activation="relu")(x)
    model = keras.Model(liked, layers.Dense(_CLASSES)(x))
    draw, n = np.random.default_rng(0), batches * batch
    x = draw.integers(0, items, (n, 8)).astype("int32")
    return _compiled(model), x, draw.integers(0, _CLASSES, n), batch


def _compiled(model: keras.Model) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss)
    return model


def _words(rows: int, length: int) -> np.ndarray:
    draw = np.random.default_rng(0)
    return draw.integers(0, _VOCABULARY, (rows, length)).astype("int32")


MODELS: Mapping[str, Callable[..., Ready]] = {
    "mlp": _mlp,
    "transformer": _transformer,
    "gpt2": _gpt2,
    "recommender": _recommender,
}
