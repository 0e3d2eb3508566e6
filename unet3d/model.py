"""The 3D U-Net of Isensee et al. as IBM's case study trained it.

    level 0   conv -- context -- + ----------- skip ----------- concat -- 3 -- 1 -- head
                                 |                                |                  |
    level 1   conv/2 - context - + --- skip --- concat -- 3 -- 1 -+- head -- up -----+
                                 |                |               up, 3
    ...                         ...              up, 3

Every convolution, heads included, has a bias and is followed by instance normalisation
and leaky ReLU. The heads of the top three levels are upsampled and added; a sigmoid
gives one probability per label, float32: labels may overlap. Of labels that exclude
each other a softmax gives the probabilities, the background's first, as in nnU-Net.

Sources: IBM's case study "TensorFlow Large Model Support: 3D image segmentation", for
the network as it was trained, normalised heads included; Isensee et al., BraTS 2017,
arXiv 1802.10508, figure 1, for the architecture, dropout 0.3, the slope 0.01 of leaky
ReLU and Adam's 5e-4. Convolutions start from Keras's Glorot uniform, as in D. G.
Ellis's code. Channels are last on every device, as TensorFlow's CPU kernels want it.

Known weakness: a head that ends in leaky ReLU hardly goes below zero, so a healthy
voxel's probability stays near 0.5. The soft Dice loss levels off far from 0 while the
thresholded Dice goes on rising: judge a training by `dice_coefficient`. Heads of a
convolution alone (`linear_heads`) have no such floor, and learn small regions sooner.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, repeat
from math import prod
from typing import Any

import keras
from keras import layers

from unet3d.layers import InstanceNormalization
from unet3d.lines import check_integer
from unet3d.losses import dice_coefficient, weighted_dice_loss
from unet3d.shapes import CUBE, Shape, as_shape, find_levels, in_words

__all__ = ["DROPOUT", "HEADS", "LEARNING_RATE", "SLOPE", "as_probabilities"]
__all__ += ["build_unet", "check_divisible"]

DROPOUT = 0.3
HEADS = 3
LEARNING_RATE = 5e-4
SLOPE = 0.01


def build_unet(  # noqa: PLR0913 - the knobs of the network, each with a default
    size: int | Sequence[int] = 144,
    filters: int = 16,
    depth: int = 5,
    modalities: int = 4,
    labels: int = 3,
    *,
    batch_size: int | None = None,
    seed: int | None = None,
    linear_heads: bool = False,
    softmax: bool = False,
    supervised: bool = False,
    spacing: Sequence[float] = CUBE,
) -> keras.Model:
    """Build the network, compiled with Adam, weighted Dice loss and the Dice metric.

    Args:
        size: Voxels along each axis of the volume, or (depth, height, width); divisible
            by 2^(depth - 1), where each level halves the axis.
        filters: Channels of the top level; each level below has twice as many.
        depth: Levels, at least 2. The top 3 have a head, but never the lowest one.
        modalities: Channels of the input.
        labels: Channels of the output, without the background's.
        batch_size: Samples per batch, for static shapes; None leaves the axis open.
        seed: Makes initial weights and dropout repeatable; None draws them anew.
        linear_heads: Whether heads are convolutions alone.
        softmax: Whether labels exclude each other, so that the output begins with one
            more channel, the background's.
        supervised: Whether voxels of lower levels follow (`as_probabilities`); they
            have no weights of their own.
        spacing: Sides of a voxel along (depth, height, width). Levels do not halve an
            axis whose voxels are twice as long as the shortest, or longer.

    Example:
        >>> build_unet(size=16, filters=2, depth=2).output_shape
        (None, 16, 16, 16, 3)
    """
    sizes = {"filters": filters, "depth": depth}
    sizes |= {"modalities": modalities, "labels": labels}
    advice = "Ask for more, or leave it out for the case study's."
    sides = [("size", side) for side in as_shape(size)]
    for name, value in (*sides, *sizes.items()):
        check_integer(name, value, least=1 + (name == "depth"), advice=advice)
    shape, levels = as_shape(size), find_levels(spacing, most=depth)
    check_divisible(shape, levels.divisor)
    blocks = _Blocks(seeds=repeat(None) if seed is None else count(seed))
    inputs = keras.Input((*shape, modalities), batch_size, name="images")
    widths = [filters * 2**level for level in range(depth)]
    skips = _go_down(inputs, blocks, widths, levels.strides)
    heads = _go_up(
        skips, blocks, labels + softmax, levels.strides, linear_heads=linear_heads
    )
    *lower, logits = _add_heads(heads, levels.strides)
    every = [logits, *reversed(lower if supervised else [])]
    outputs = as_probabilities(every, softmax=softmax)
    model = keras.Model(inputs, outputs, name="unet3d")
    model.compile(
        optimizer=keras.optimizers.Adam(LEARNING_RATE),
        loss=weighted_dice_loss,
        metrics=[dice_coefficient],
    )
    return model


def as_probabilities(logits: list[Any], *, softmax: bool) -> Any:
    """Turn logits of a network's levels, the top first, into one float32 tensor.

    Of several levels it has the shape (batch, voxel, channel), the top's voxels first.
    """
    kind, every = "softmax" if softmax else "sigmoid", []
    for level, one in enumerate(logits):
        name = f"labels{level or ''}"
        found = layers.Activation(kind, dtype="float32", name=name)(one)
        if len(logits) > 1:
            flat = (prod(one.shape[1:4]), one.shape[-1])
            found = layers.Reshape(flat, dtype="float32")(found)
        every.append(found)
    join = layers.Concatenate(axis=1, dtype="float32", name="supervised")
    return join(every) if len(every) > 1 else every[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Blocks:
    """Makes the network's blocks; holds the seeds, so that no two share a seed."""

    seeds: Iterator[int | None]

    def conv(
        self, x: Any, filters: int, name: str, *, kernel: int = 3, stride: Any = 1
    ) -> Any:
        """Add a convolution with bias, instance normalisation and leaky ReLU."""
        x = self.linear(x, filters, name, kernel=kernel, stride=stride)
        x = InstanceNormalization(name=f"{name}_norm")(x)
        return layers.LeakyReLU(SLOPE, name=f"{name}_relu")(x)

    def linear(
        self, x: Any, filters: int, name: str, *, kernel: int = 3, stride: Any = 1
    ) -> Any:
        """Add a convolution with bias."""
        start: Any = keras.initializers.GlorotUniform(next(self.seeds))
        return layers.Conv3D(
            filters,
            kernel,
            strides=stride,
            padding="same",
            kernel_initializer=start,
            name=f"{name}_conv",
        )(x)

    def context(self, x: Any, filters: int, name: str) -> Any:
        """Add two 3^3 convolutions with whole channels dropped in between."""
        x = self.conv(x, filters, f"{name}_1")
        dropout = layers.SpatialDropout3D(
            DROPOUT, seed=next(self.seeds), name=f"{name}_dropout"
        )
        return self.conv(dropout(x), filters, f"{name}_2")


def _go_down(
    x: Any, blocks: _Blocks, filters: list[int], strides: Sequence[Shape]
) -> list[Any]:
    """Add the way down; return each level's sum with its context, the top first."""
    sums = []
    for level, (width, stride) in enumerate(zip(filters, strides, strict=True)):
        name = f"down{level}"
        x = blocks.conv(x, width, name, stride=stride)
        context = blocks.context(x, width, f"{name}_context")
        x = layers.Add(name=f"{name}_sum")([x, context])
        sums.append(x)
    return sums


def _go_up(
    skips: list[Any],
    blocks: _Blocks,
    labels: int,
    strides: Sequence[Shape],
    *,
    linear_heads: bool,
) -> list[Any]:
    """Add the way up; return the heads of the top levels, the lowest first."""
    x = skips[-1]
    heads = []
    for level in reversed(range(len(skips) - 1)):
        skip, name = skips[level], f"up{level}"
        width = skip.shape[-1]
        x = layers.UpSampling3D(strides[level + 1], name=f"{name}_upsample")(x)
        x = blocks.conv(x, width, f"{name}_in")
        x = layers.Concatenate(name=f"{name}_concat")([skip, x])
        x = blocks.conv(x, width, f"{name}_3")
        x = blocks.conv(x, width, f"{name}_1", kernel=1)
        if level < HEADS:
            make = blocks.linear if linear_heads else blocks.conv
            heads.append(make(x, labels, f"head{level}", kernel=1))
    return heads


def _add_heads(heads: list[Any], strides: Sequence[Shape]) -> list[Any]:
    """Add up the heads, each sum upsampled to the next level; return all sums."""
    total = heads[0]
    sums = [total]
    for level, head in zip(reversed(range(len(heads) - 1)), heads[1:], strict=True):
        enlarge = layers.UpSampling3D(strides[level + 1], name=f"head{level}_upsample")
        total = enlarge(total)
        total = layers.Add(name=f"head{level}_sum")([total, head])
        sums.append(total)
    return sums


def check_divisible(shape: Shape, divisor: Shape, name: str = "size") -> None:
    """Refuse a volume that the levels of a network cannot halve."""
    above = as_shape([-(-n // s) * s for n, s in zip(shape, divisor, strict=True)])
    if above == shape:
        return
    below = as_shape([n - n % s for n, s in zip(shape, divisor, strict=True)])
    step, got, more, less = (
        in_words(one).removesuffix("^3") for one in (divisor, shape, above, below)
    )
    why = "2^(depth - 1)" if len({*divisor}) == 1 else "the strides of all levels"
    raise ValueError(
        f"`{name}` must be divisible by {why} = {step}, got {got}. Use "
        f"{more}{f' or {less}' if all(below) else ''}."
    )
