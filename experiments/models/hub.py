"""Models of keras-hub in small configurations, with random weights.

Models import keras-hub when they are made: the rest of the zoo does not need it.
"""

from importlib import import_module
from typing import Any

import keras
import numpy as np
from keras import optimizers

from experiments.models import data
from experiments.models.data import Ready, classes, images, model

_WORDS = 500


def _hub(name: str, *args: Any, **sizes: Any) -> Any:
    """Make an object of a class of keras-hub, which only this file needs."""
    return getattr(import_module("keras_hub").models, name)(*args, **sizes)


def _task(name: str, backbone: Any, optimizer: Any, **more: Any) -> Any:
    """Make a backbone with a head, compiled."""
    made = _hub(name, backbone, preprocessor=None, **more)
    metrics = ["sparse_categorical_accuracy"] if "Segmenter" in name else None
    made.compile(optimizer=optimizer, loss=_loss(), metrics=metrics)
    return made


def _loss() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _layers(width: int = 256, depth: int = 4, heads: int = 4) -> dict[str, int]:
    return {"num_layers": depth, "num_heads": heads, "hidden_dim": width}


def _text(name: str, length: int, words: int, **sizes: int) -> Any:
    known = _layers(**sizes)
    known |= {"vocabulary_size": words, "intermediate_dim": 4 * known["hidden_dim"]}
    return _hub(name, max_sequence_length=length, **known)


@model
def _bert(
    batch: int = 8, length: int = 128, words: int = _WORDS, **sizes: int
) -> Ready:
    backbone = _text("BertBackbone", length, words, **sizes)
    optimizer = optimizers.AdamW(1e-4)
    made = _task("BertTextClassifier", backbone, optimizer, num_classes=4)
    ids = data.tokens(batch, length)
    x = {"token_ids": ids, "segment_ids": np.zeros_like(ids)}
    return made, x | _masked(ids), classes(batch, count=4), batch


def _masked(ids: np.ndarray, part: str = "") -> dict[str, np.ndarray]:
    return {f"{part}padding_mask": np.ones_like(ids)}


def _next_words(made: Any, batch: int, length: int) -> Ready:
    """Add data to a language model: each word's target is the next word."""
    ids = data.tokens(batch, length + 1)
    return made, {"token_ids": ids[:, :-1], **_masked(ids[:, 1:])}, ids[:, 1:], batch


@model
def _gpt2(
    batch: int = 8, length: int = 128, words: int = _WORDS, **sizes: int
) -> Ready:
    backbone = _text("GPT2Backbone", length, words, **sizes)
    made = _task("GPT2CausalLM", backbone, optimizers.Adam(1e-4))
    return _next_words(made, batch, length)


@model
def _llama() -> Ready:
    sizes = {"num_layers": 4, "num_query_heads": 4, "num_key_value_heads": 2}
    sizes |= {"hidden_dim": 256, "intermediate_dim": 704}
    backbone = _hub("LlamaBackbone", vocabulary_size=_WORDS, **sizes)
    made = _task("LlamaCausalLM", backbone, optimizers.Lion(1e-4))
    return _next_words(made, 8, 128)


@model
def _t5() -> Ready:
    batch, length = 8, 96
    sizes = _layers(depth=3) | {"intermediate_dim": 512}
    backbone = _hub("T5Backbone", vocabulary_size=_WORDS, **sizes)
    hidden = backbone.output["decoder_sequence_output"]
    made = keras.Model(backbone.input, keras.layers.Dense(_WORDS)(hidden))
    made.compile(optimizers.Adafactor(1e-3), _loss())
    asked, said = data.tokens(batch, length), data.tokens(batch, length + 1, seed=3)
    x = {"encoder_token_ids": asked, "decoder_token_ids": said[:, :-1]}
    x |= _masked(asked, "encoder_") | _masked(asked, "decoder_")
    return made, x, said[:, 1:], batch


@model
def _vit(batch: int = 8, size: int = 96, patch: int = 8, **sizes: int) -> Ready:
    known: dict[str, Any] = _layers(**{"width": 192, **sizes})
    known |= {"mlp_dim": 4 * known["hidden_dim"], "dropout_rate": 0.1}
    shape = (size, size, 3)
    backbone = _hub("ViTBackbone", image_shape=shape, patch_size=patch, **known)
    optimizer = optimizers.AdamW(1e-4)
    made = _task("ViTImageClassifier", backbone, optimizer, num_classes=10)
    return made, images(batch, size), classes(batch), batch


@model
def _swin() -> Ready:
    batch, size = 4, 112
    sizes = {"embed_dim": 48, "depths": (2, 2), "num_heads": (3, 6), "window_size": 7}
    backbone = _hub("SwinTransformerBackbone", image_shape=(size, size, 3), **sizes)
    features = backbone.output
    if len(features.shape) != 3:  # positions are a grid, not in a row
        features = keras.layers.Reshape((-1, features.shape[-1]))(features)
    pooled = keras.layers.GlobalAveragePooling1D()(features)
    made = keras.Model(backbone.input, keras.layers.Dense(10)(pooled))
    made.compile(optimizers.Lion(1e-4), _loss())
    return made, images(batch, size), classes(batch), batch


@model
def _segformer() -> Ready:
    batch, size, count = 4, 128, 6
    sizes: dict[str, Any] = {"hidden_dims": [32, 64, 160, 256], "num_layers": 4}
    layers = {"depths": [2] * 4, "num_heads": [1, 2, 5, 8], "sr_ratios": [8, 4, 2, 1]}
    layers |= {"patch_sizes": [7, 3, 3, 3], "strides": [4, 2, 2, 2]}
    sizes |= {f"layerwise_{name}": each for name, each in layers.items()}
    sizes |= {"image_shape": (size, size, 3), "max_drop_path_rate": 0.1}
    encoder = _hub("MiTBackbone", **sizes)
    backbone = _hub("SegFormerBackbone", image_encoder=encoder, projection_filters=256)
    optimizer = optimizers.AdamW(1e-4)
    made = _task("SegFormerImageSegmenter", backbone, optimizer, num_classes=count)
    return made, images(batch, size), classes(batch, size, size, count=count), batch


def _resnet(size: int) -> Any:
    """Make a narrow ResNet of 26 layers, as an encoder."""
    sizes: dict[str, Any] = {"stackwise_num_filters": [64, 64, 96, 96]}
    sizes |= {"stackwise_num_blocks": [2] * 4, "stackwise_num_strides": [1, 2, 2, 2]}
    sizes |= {"input_conv_filters": [64], "input_conv_kernel_sizes": [7]}
    sizes |= {"block_type": "bottleneck_block", "image_shape": (size, size, 3)}
    return _hub("ResNetBackbone", **sizes)


@model
def _deeplab() -> Ready:
    batch, size, count = 4, 96, 6
    backbone = _hub(
        "DeepLabV3Backbone",
        image_encoder=_resnet(size),
        projection_filters=48,
        low_level_feature_key="P2",
        spatial_pyramid_pooling_key="P5",
        upsampling_size=8,
        dilation_rates=[6, 12, 18],
        image_shape=(size, size, 3),
    )
    optimizer = optimizers.SGD(0.01, momentum=0.9)
    made = _task("DeepLabV3ImageSegmenter", backbone, optimizer, num_classes=count)
    return made, images(batch, size), classes(batch, size, size, count=count), batch


@model
def _retinanet() -> Ready:
    batch, size, count = 2, 128, 5
    sizes: dict[str, Any] = {
        "image_shape": (size, size, 3),
        "image_encoder": _resnet(size),
    }
    sizes |= {"min_level": 3, "max_level": 5, "use_p5": False}
    made = _hub(
        "RetinaNetObjectDetector",
        _hub("RetinaNetBackbone", **sizes),
        num_classes=count,
        bounding_box_format="yxyx",
        preprocessor=None,
    )
    made.compile(optimizer=optimizers.Adam(1e-4))
    corners = np.random.default_rng(4).uniform(
        0, size / 2, (data.BATCHES * batch, 3, 2)
    )
    boxes = np.concatenate([corners, corners + size / 3], axis=-1).astype(np.float32)
    labels = classes(batch, 3, count=count).astype(np.float32)
    return made, images(batch, size), {"boxes": boxes, "labels": labels}, batch


@model
def _whisper() -> Ready:
    batch, frames, length = 4, 400, 64
    sizes = _layers(192, depth=3) | {"intermediate_dim": 768}
    sizes |= {"max_encoder_sequence_length": frames}
    sizes |= {"max_decoder_sequence_length": length}
    backbone = _hub("WhisperBackbone", vocabulary_size=_WORDS, **sizes)
    hidden = backbone.output["decoder_sequence_output"]
    made = keras.Model(backbone.input, backbone.token_embedding(hidden, reverse=True))
    made.compile(optimizers.Adam(1e-4), _loss())
    said = data.tokens(batch, length + 1)
    x = {"encoder_features": data.noise(data.BATCHES * batch, frames, 80)}
    x |= {"decoder_token_ids": said[:, :-1], **_masked(said[:, 1:], "decoder_")}
    return made, x, said[:, 1:], batch
