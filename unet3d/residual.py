"""nnU-Net's U-Net with a residual encoder.

    stem - blocks ------------ skip ------------ concat - conv - head
             blocks/2 -------- skip -- concat - conv - up -' 'head
               ...                       up -'

A block is two convolutions, each normalised, and a shortcut: mean pooling where the
block has a stride, a convolution of one voxel where channels change, as in ResNet-D.

Sources: Isensee et al., "nnU-Net Revisited", arXiv 2404.09556; nnU-Net's
`residual_encoder_unet_planners.py` for one convolution a level on the way up; He et
al., arXiv 1812.01187, for ResNet-D; He's initialisation as in nnU-Net; `unet3d.shapes`.

Known weakness: variances have `InstanceNormalization`'s epsilon of 1e-3, not 1e-5.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import layers, ops

from unet3d.layers import InstanceNormalization, LeanLeakyReLU
from unet3d.shapes import Levels, Shape, blocks_of, channels_of

__all__ = ["build_residual"]


def build_residual(shape: Sequence[int], outputs: int, levels: Levels) -> Any:
    """Build the network; it returns logits of all levels but the lowest, the top first.

    `shape` is (depth, height, width, channel), `outputs` the number of logits.
    """
    inputs = keras.Input(tuple(shape))
    x = _conv(inputs, channels_of(0), levels.kernels[0])
    skips = []
    for level, (stride, kernel) in enumerate(
        zip(levels.strides, levels.kernels, strict=True)
    ):
        for number in range(blocks_of(level)):
            step = stride if number == 0 else (1, 1, 1)
            x = _block(x, channels_of(level), kernel, step)
        skips.append(x)
    heads = []
    for level in reversed(range(len(skips) - 1)):
        width, stride = channels_of(level), levels.strides[level + 1]
        x = layers.Conv3DTranspose(width, stride, strides=stride, **_start())(x)
        x = layers.Concatenate()([x, skips[level]])
        x = _conv(x, width, levels.kernels[level])
        heads.append(layers.Conv3D(outputs, 1, **_start())(x))
    return keras.Model(inputs, heads[::-1])


def _start() -> dict[str, Any]:
    return {"kernel_initializer": "he_normal"}


def _conv(
    x: Any, width: int, kernel: Shape, *, stride: Shape = (1, 1, 1), last: bool = True
) -> Any:
    """Add a convolution and its normalisation, and leaky ReLU unless a sum follows."""
    x = layers.Conv3D(width, kernel, strides=stride, padding="same", **_start())(x)
    x = InstanceNormalization()(x)
    return LeanLeakyReLU()(x) if last else x


def _block(x: Any, width: int, kernel: Shape, stride: Shape) -> Any:
    short: Any = x
    for axis, step in enumerate(stride, start=1):
        if step > 1:  # TensorFlow's mean pooling has no float16 on a CPU
            sizes: list[Any] = [-1, *short.shape[1:]]
            sizes[axis : axis + 1] = [short.shape[axis] // step, step]
            short = ops.mean(ops.reshape(short, sizes), axis=axis + 1)
    if x.shape[-1] != width:
        short = layers.Conv3D(width, 1, use_bias=False, **_start())(short)
        short = InstanceNormalization()(short)
    x = _conv(x, width, kernel, stride=stride)
    x = _conv(x, width, kernel, last=False)
    return LeanLeakyReLU()(layers.Add()([x, short]))
