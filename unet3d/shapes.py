"""Shapes of volumes and patches, and of the levels of nnU-Net's networks.

The network of nnU-Net's presets M, L and XL is one: a preset is the size of patch and
batch that its memory takes.

Sources: nnU-Net's `network_topology.py` for axes that are halved and sides of kernels;
`residual_encoder_unet_planners.py` for the blocks of each level (1, 3, 4, 6, 6, ...)
and the voxels of feature maps that a preset holds (6.8e8, 2.1e9, 3.6e9), which Isensee
et al., arXiv 2404.09556, table 1, measured as 9.1, 22.7 and 36.6 GB;
`default_experiment_planner.py` for 32 to 320 channels and at least 2 examples.

Known weakness: that memory is PyTorch's; `python -m unet3d plan` predicts TensorFlow's.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

__all__ = ["CUBE", "PRESETS", "Levels", "Shape", "Sides", "as_shape", "blocks_of"]
__all__ += ["channels_of", "choose_patch", "feature_voxels", "find_levels", "in_words"]
__all__ += ["read_shape", "read_spacing"]

Shape = tuple[int, int, int]  # (depth, height, width)
Sides = tuple[float, float, float]  # mm along (depth, height, width)

CUBE: Sides = (1.0, 1.0, 1.0)  # voxels of equal sides
LOWEST = 4  # voxels along an axis of the lowest level, at least
# Voxels of all feature maps of the convolutions that a preset holds, for 2 examples.
PRESETS = {"m": 6.8e8, "l": 2.1e9, "xl": 3.6e9}
_EXAMPLES = 2  # in a batch, at least
_LARGEST = 256  # voxels along an axis of the cube that begins to shrink
_ANY = (1 << 30,) * 3  # voxels: room for every level


def as_shape(size: int | Sequence[int]) -> Shape:
    """Return (depth, height, width); a number is the side of a cube."""
    depth, height, width = size if isinstance(size, Sequence) else (size,) * 3
    return depth, height, width


def read_shape(text: str) -> int | Shape:
    """Read a side, such as 96, or depth x height x width, such as 48x160x160."""
    if not re.fullmatch(r"\d+(x\d+x\d+)?", text):
        raise ValueError(
            f"`patch` must be voxels along each axis, got '{text}'. Write 96, or "
            "depth, height and width as 48x160x160."
        )
    sides = [int(side) for side in text.split("x")]
    return sides[0] if len({*sides}) == 1 else as_shape(sides)


def read_spacing(text: str) -> str | Sides:
    """Read `median`, `keep`, or mm along depth, height and width, such as 3x0.8x0.8."""
    if text in ("median", "keep"):
        return text
    try:
        depth, height, width = map(float, text.split("x"))
        if min(depth, height, width) > 0:
            return depth, height, width
    except ValueError:
        pass
    raise ValueError(
        f"`spacing` must be median, keep, or mm above 0 along depth, height and width, "
        f"got '{text}'. Write such as 3x0.8x0.8."
    )


def in_words(size: int | Sequence[int]) -> str:
    """Write a shape as the command line takes it, a cube as n^3.

    Example:
        >>> in_words(96), in_words((48, 160, 160))
        ('96^3', '48x160x160')
    """
    shape = as_shape(size)
    return f"{shape[0]}^3" if len({*shape}) == 1 else "x".join(map(str, shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """The stride into each level, the top's first, and the sides of its kernels."""

    strides: tuple[Shape, ...]
    kernels: tuple[Shape, ...]

    @property
    def divisor(self) -> Shape:
        """The number that divides a patch's voxels, along each axis."""
        return as_shape([prod(axis) for axis in zip(*self.strides, strict=True)])


def find_levels(
    spacing: Sequence[float], shape: Sequence[int] = _ANY, *, most: int | None = None
) -> Levels:
    """Halve an axis while its voxels are less than twice as long as the shortest.

    A kernel has one voxel along an axis that was never within that factor. `most`
    limits the levels, which else end where no axis can be halved.

    Example:
        >>> find_levels((3.0, 1.0, 1.0), (16, 32, 32)).strides
        ((1, 1, 1), (1, 2, 2), (2, 2, 2), (2, 2, 2))
    """
    sides, sizes, kernel = list(spacing), list(shape), (1, 1, 1)
    strides: list[Shape] = [(1, 1, 1)]
    kernels: list[Shape] = []
    while len(strides) != most:
        room = [axis for axis in range(3) if sizes[axis] >= 2 * LOWEST]
        shortest = min((sides[axis] for axis in room), default=0.0)
        halved = [axis for axis in room if sides[axis] < 2 * shortest]
        if not halved or (len(halved) == 1 and sizes[halved[0]] < 3 * LOWEST):
            break
        near = [side < 2 * min(sides) for side in sides]
        kernel = as_shape([3 if n else k for n, k in zip(near, kernel, strict=True)])
        kernels.append(kernel)
        strides.append(as_shape([1 + (axis in halved) for axis in range(3)]))
        for axis in halved:
            sides[axis] *= 2
            sizes[axis] = -(-sizes[axis] // 2)
    return Levels(strides=tuple(strides), kernels=(*kernels, (3, 3, 3)))


def channels_of(level: int) -> int:
    """Return the channels of a level of nnU-Net's networks, the top's first."""
    return min(320, 32 * 2**level)


def blocks_of(level: int) -> int:
    """Return the residual blocks of a level of the encoder."""
    return (1, 3, 4, 6)[min(level, 3)]


def choose_patch(
    preset: str, spacing: Sequence[float], median: Sequence[int], outputs: int = 1
) -> tuple[Shape, int]:
    """Return nnU-Net's (depth, height, width) of a patch, and the batch size.

    `spacing` is in mm and `median` in voxels, of the resampled volumes; `outputs` is
    the number of logits.

    Example:
        >>> choose_patch("xl", (1.0, 1.0, 1.0), (400, 400, 400))
        ((256, 224, 224), 2)
    """
    most = PRESETS[preset]
    edge = _LARGEST * prod(spacing) ** (1 / 3)
    patch = [min(round(edge / s), n) for s, n in zip(spacing, median, strict=True)]
    while True:
        levels = find_levels(spacing, patch)
        patch = [
            -(-n // step) * step for n, step in zip(patch, levels.divisor, strict=True)
        ]
        if (held := feature_voxels(patch, levels, outputs)) <= most:
            break
        axis = max(range(3), key=lambda k: (patch[k] / median[k], k))
        less = [n - levels.divisor[k] * (k == axis) for k, n in enumerate(patch)]
        patch[axis] -= find_levels(spacing, less).divisor[axis]
    return as_shape(patch), max(_EXAMPLES, round(most / held * _EXAMPLES))


def feature_voxels(patch: Sequence[int], levels: Levels, outputs: int) -> int:
    """Count the voxels of all convolutions' results, as nnU-Net's estimate does."""
    shape, before = list(patch), channels_of(0)
    total = (channels_of(0) + outputs) * prod(shape)  # the stem, and the top's logits
    for level, stride in enumerate(levels.strides):
        shape = [n // step for n, step in zip(shape, stride, strict=True)]
        width, blocks = channels_of(level), blocks_of(level)
        short = width != before or max(stride) > 1
        total += width * prod(shape) * (2 * blocks + short)
        if level < len(levels.strides) - 1:
            total += 2 * width * prod(shape)
        before = width
    return total
