"""Models made of blocks, each with a batch: in all of them activations take the most.

GPT-2, BERT and ViT are keras-hub's, of a small width and with random weights; ResNet50
is Keras's own. Dropout is what each has by default. Functions return a compiled model
and one batch, as those of `experiments.subjects` do, whose U-Net is among them.

keras-hub is imported when a model of it is made.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

import keras
import numpy as np

from experiments.subjects import unet

__all__ = ["BLOCK_SUBJECTS"]

_WORDS = 500
_Subject = tuple[keras.Model, tuple[Any, np.ndarray]]


def _hub() -> Any:
    return import_module("keras_hub").models


def _compiled(model: keras.Model, *, rate: float = 1e-4) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss)
    return model


def _words(batch: int, length: int, words: int = _WORDS) -> np.ndarray:
    shape = (batch, length + 1)
    return np.random.default_rng(0).integers(1, words, shape, dtype=np.int32)


def _images(batch: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    images = random.random((batch, size, size, 3), dtype=np.float32)
    return images, random.integers(0, 10, batch, dtype=np.int32)


def gpt2(
    length: int = 256,
    batch: int = 6,
    width: int = 192,
    depth: int = 6,
    heads: int = 4,
    words: int = _WORDS,
) -> _Subject:
    """A language model: the batch is sentences, and the words that follow."""
    backbone = _hub().GPT2Backbone(
        vocabulary_size=words,
        num_layers=depth,
        num_heads=heads,
        hidden_dim=width,
        intermediate_dim=4 * width,
        max_sequence_length=length,
    )
    model = _compiled(_hub().GPT2CausalLM(backbone, preprocessor=None))
    text = _words(batch, length, words)
    ids = text[:, :-1]
    return model, ({"token_ids": ids, "padding_mask": np.ones_like(ids)}, text[:, 1:])


def bert(
    length: int = 256, batch: int = 6, width: int = 192, depth: int = 6
) -> _Subject:
    """Sentences of four classes."""
    backbone = _hub().BertBackbone(
        vocabulary_size=_WORDS,
        num_layers=depth,
        num_heads=4,
        hidden_dim=width,
        intermediate_dim=4 * width,
        max_sequence_length=length,
    )
    model = _hub().BertTextClassifier(backbone, num_classes=4, preprocessor=None)
    ids = _words(batch, length)[:, :-1]
    x = {
        "token_ids": ids,
        "segment_ids": np.zeros_like(ids),
        "padding_mask": np.ones_like(ids),
    }
    return _compiled(model), (x, np.arange(batch, dtype=np.int32) % 4)


def vit(size: int = 128, batch: int = 6, width: int = 192, depth: int = 6) -> _Subject:
    """Images of ten classes, in patches of 8 x 8."""
    backbone = _hub().ViTBackbone(
        image_shape=(size, size, 3),
        patch_size=8,
        num_layers=depth,
        num_heads=4,
        hidden_dim=width,
        mlp_dim=4 * width,
        dropout_rate=0.1,
    )
    model = _hub().ViTImageClassifier(backbone, num_classes=10, preprocessor=None)
    return _compiled(model), _images(batch, size)


def resnet50(size: int = 128, batch: int = 10) -> _Subject:
    """Images of ten classes; SGD keeps nothing beside the weights."""
    network: Callable[..., keras.Model] = keras.applications.ResNet50
    model = network(weights=None, input_shape=(size, size, 3), classes=10)
    model.compile(keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy")
    return model, _images(batch, size)


BLOCK_SUBJECTS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"gpt2": gpt2, "bert": bert, "vit": vit, "unet": unet, "resnet50": resnet50}
)
