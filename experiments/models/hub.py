"""Models of keras-hub in small configurations, with random weights.

It is imported when a model is made: the rest of the zoo needs no keras-hub.
"""

from importlib import import_module
from typing import Any

import keras
import numpy as np

from experiments.models.data import (
    BATCHES,
    Maker,
    Ready,
    classes,
    images,
    noise,
    tokens,
)

__all__ = ["MODELS"]

_WORDS = 500


def _hub() -> Any:
    """The classes of keras-hub, which only this file needs."""
    return import_module("keras_hub").models


def _loss() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _bert(
    batch: int = 8,
    length: int = 128,
    width: int = 256,
    depth: int = 4,
    heads: int = 4,
    words: int = _WORDS,
) -> Ready:
    backbone = _hub().BertBackbone(
        vocabulary_size=words,
        num_layers=depth,
        num_heads=heads,
        hidden_dim=width,
        intermediate_dim=4 * width,
        max_sequence_length=length,
    )
    model = _hub().BertTextClassifier(backbone, num_classes=4, preprocessor=None)
    model.compile(optimizer=keras.optimizers.AdamW(1e-4), loss=_loss())
    ids = tokens(batch, length)
    x = {
        "token_ids": ids,
        "segment_ids": np.zeros_like(ids),
        "padding_mask": np.ones_like(ids),
    }
    return model, x, classes(batch, count=4), batch


def _next_words(model: Any, batch: int, length: int) -> Ready:
    """A language model learns the word that follows each word."""
    ids = tokens(batch, length + 1)
    x = {"token_ids": ids[:, :-1], "padding_mask": np.ones_like(ids[:, 1:])}
    return model, x, ids[:, 1:], batch


def _gpt2(
    batch: int = 8,
    length: int = 128,
    width: int = 256,
    depth: int = 4,
    heads: int = 4,
    words: int = _WORDS,
) -> Ready:
    backbone = _hub().GPT2Backbone(
        vocabulary_size=words,
        num_layers=depth,
        num_heads=heads,
        hidden_dim=width,
        intermediate_dim=4 * width,
        max_sequence_length=length,
    )
    model = _hub().GPT2CausalLM(backbone, preprocessor=None)
    model.compile(optimizer=keras.optimizers.Adam(1e-4), loss=_loss())
    return _next_words(model, batch, length)


def _llama() -> Ready:
    backbone = _hub().LlamaBackbone(
        vocabulary_size=_WORDS,
        num_layers=4,
        num_query_heads=4,
        num_key_value_heads=2,
        hidden_dim=256,
        intermediate_dim=704,
    )
    model = _hub().LlamaCausalLM(backbone, preprocessor=None)
    model.compile(optimizer=keras.optimizers.Lion(1e-4), loss=_loss())
    return _next_words(model, 8, 128)


def _t5() -> Ready:
    batch, length = 8, 96
    backbone = _hub().T5Backbone(
        vocabulary_size=_WORDS,
        num_layers=3,
        num_heads=4,
        hidden_dim=256,
        intermediate_dim=512,
    )
    hidden = backbone.output["decoder_sequence_output"]
    model = keras.Model(backbone.input, keras.layers.Dense(_WORDS)(hidden))
    model.compile(keras.optimizers.Adafactor(1e-3), _loss())
    asked, said = tokens(batch, length), tokens(batch, length + 1, seed=3)
    x = {
        "encoder_token_ids": asked,
        "encoder_padding_mask": np.ones_like(asked),
        "decoder_token_ids": said[:, :-1],
        "decoder_padding_mask": np.ones_like(asked),
    }
    return model, x, said[:, 1:], batch


def _vit(
    batch: int = 8,
    size: int = 96,
    width: int = 192,
    depth: int = 4,
    heads: int = 4,
    patch: int = 8,
) -> Ready:
    backbone = _hub().ViTBackbone(
        image_shape=(size, size, 3),
        patch_size=patch,
        num_layers=depth,
        num_heads=heads,
        hidden_dim=width,
        mlp_dim=4 * width,
        dropout_rate=0.1,
    )
    model = _hub().ViTImageClassifier(backbone, num_classes=10, preprocessor=None)
    model.compile(optimizer=keras.optimizers.AdamW(1e-4), loss=_loss())
    return model, images(batch, size), classes(batch), batch


def _swin() -> Ready:
    batch, size = 4, 112
    backbone = _hub().SwinTransformerBackbone(
        image_shape=(size, size, 3),
        embed_dim=48,
        depths=(2, 2),
        num_heads=(3, 6),
        window_size=7,
    )
    pooled = keras.layers.GlobalAveragePooling1D()(_flat(backbone.output))
    model = keras.Model(backbone.input, keras.layers.Dense(10)(pooled))
    model.compile(keras.optimizers.Lion(1e-4), _loss())
    return model, images(batch, size), classes(batch), batch


def _flat(features: Any) -> Any:
    """Positions in a row, where they are a grid."""
    if len(features.shape) == 3:  # batch, position, channel
        return features
    return keras.layers.Reshape((-1, features.shape[-1]))(features)


def _segformer() -> Ready:
    batch, size, count = 4, 128, 6
    encoder = _hub().MiTBackbone(
        image_shape=(size, size, 3),
        num_layers=4,
        hidden_dims=[32, 64, 160, 256],
        layerwise_depths=[2, 2, 2, 2],
        layerwise_num_heads=[1, 2, 5, 8],
        layerwise_sr_ratios=[8, 4, 2, 1],
        layerwise_patch_sizes=[7, 3, 3, 3],
        layerwise_strides=[4, 2, 2, 2],
        max_drop_path_rate=0.1,
    )
    backbone = _hub().SegFormerBackbone(image_encoder=encoder, projection_filters=256)
    model = _hub().SegFormerImageSegmenter(
        backbone, num_classes=count, preprocessor=None
    )
    model.compile(
        optimizer=keras.optimizers.AdamW(1e-4),
        loss=_loss(),
        metrics=["sparse_categorical_accuracy"],
    )
    return model, images(batch, size), classes(batch, size, size, count=count), batch


def _resnet(size: int) -> Any:
    """A narrow ResNet of 26 layers, as an encoder."""
    return _hub().ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[7],
        stackwise_num_filters=[64, 64, 96, 96],
        stackwise_num_blocks=[2, 2, 2, 2],
        stackwise_num_strides=[1, 2, 2, 2],
        block_type="bottleneck_block",
        image_shape=(size, size, 3),
    )


def _deeplab() -> Ready:
    batch, size, count = 4, 96, 6
    backbone = _hub().DeepLabV3Backbone(
        image_encoder=_resnet(size),
        projection_filters=48,
        low_level_feature_key="P2",
        spatial_pyramid_pooling_key="P5",
        upsampling_size=8,
        dilation_rates=[6, 12, 18],
        image_shape=(size, size, 3),
    )
    model = _hub().DeepLabV3ImageSegmenter(
        backbone, num_classes=count, preprocessor=None
    )
    model.compile(
        optimizer=keras.optimizers.SGD(0.01, momentum=0.9),
        loss=_loss(),
        metrics=["sparse_categorical_accuracy"],
    )
    return model, images(batch, size), classes(batch, size, size, count=count), batch


def _retinanet() -> Ready:
    batch, size, count = 2, 128, 5
    backbone = _hub().RetinaNetBackbone(
        image_encoder=_resnet(size),
        min_level=3,
        max_level=5,
        use_p5=False,
        image_shape=(size, size, 3),
    )
    model = _hub().RetinaNetObjectDetector(
        backbone, num_classes=count, bounding_box_format="yxyx", preprocessor=None
    )
    model.compile(optimizer=keras.optimizers.Adam(1e-4))
    corners = np.random.default_rng(4).uniform(0, size / 2, (BATCHES * batch, 3, 2))
    boxes = np.concatenate([corners, corners + size / 3], axis=-1).astype(np.float32)
    labels = classes(batch, 3, count=count).astype(np.float32)
    return model, images(batch, size), {"boxes": boxes, "labels": labels}, batch


def _whisper() -> Ready:
    batch, frames, length = 4, 400, 64
    backbone = _hub().WhisperBackbone(
        vocabulary_size=_WORDS,
        num_layers=3,
        num_heads=4,
        hidden_dim=192,
        intermediate_dim=768,
        max_encoder_sequence_length=frames,
        max_decoder_sequence_length=length,
    )
    hidden = backbone.output["decoder_sequence_output"]
    logits = backbone.token_embedding(hidden, reverse=True)
    model = keras.Model(backbone.input, logits)
    model.compile(keras.optimizers.Adam(1e-4), _loss())
    said = tokens(batch, length + 1)
    x = {
        "encoder_features": noise(BATCHES * batch, frames, 80),
        "decoder_token_ids": said[:, :-1],
        "decoder_padding_mask": np.ones_like(said[:, 1:]),
    }
    return model, x, said[:, 1:], batch


MODELS: dict[str, Maker] = {
    "bert": _bert,
    "gpt2": _gpt2,
    "llama": _llama,
    "t5": _t5,
    "vit": _vit,
    "swin": _swin,
    "segformer": _segformer,
    "deeplab": _deeplab,
    "retinanet": _retinanet,
    "whisper": _whisper,
}
