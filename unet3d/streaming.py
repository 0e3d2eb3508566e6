"""Probabilities of a volume, a piece at a time: no host holds those of 100 labels.

    patches --add, plane by plane--> planes that no later patch touches --> one piece
    of the scan's own grid --> its labels

A piece has all columns and some rows of a few planes. Patches that lie across two rows
of pieces are predicted for each. Sums are added in one order whatever the pieces are,
so their numbers are those of the whole volume.

Known weakness: a piece of a resampled volume is interpolated alone, whose last bits may
differ from those of the whole volume.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, prod
from typing import Any

import numpy as np
import psutil
import tensorflow as tf
from numpy.typing import NDArray

from lms.errors import HostMemoryError
from lms.units import format_bytes
from unet3d.data import resize_channels
from unet3d.extras import ndimage
from unet3d.patches import STEP, sum_patches
from unet3d.reading import Images
from unet3d.runs import Configuration
from unet3d.shapes import Shape, Sides, as_shape, in_words
from unet3d.subjects import SubjectFiles
from unet3d.volumes import header_grid

__all__ = ["Piece", "Room", "cut_pieces", "find_room", "patched_pieces"]
__all__ += ["resized_pieces"]

Probabilities = NDArray[np.float32]
Piece = tuple[slice, slice]  # planes and rows of the scan's own grid

_PLANES = 8  # of the scan's grid in a piece
_ROWS = 64  # of pieces, at most
_COPIES = 5  # of a channel while a file is read, turned and cropped, in float32


def cut_pieces(shape: Shape, rows: int, *, whole: bool = False) -> list[list[Piece]]:
    """Cut a grid into `rows` of pieces, or into one piece with `whole`."""
    edges = np.linspace(0, shape[1], rows + 1).round().astype(int).tolist()
    steps = [*range(0, shape[0], shape[0] if whole else _PLANES), shape[0]]
    return [
        [(slice(*planes), slice(*row)) for planes in pairwise(steps)]
        for row in pairwise(edges)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The rows of pieces of one scan, or one piece with `whole`, and their memory.

    `labels` counts channels of the probabilities. `host` are the bytes of the process,
    `device` those of the device, None where they are not known.
    """

    rows: int
    whole: bool
    labels: int
    host: int
    device: int | None

    @property
    def in_words(self) -> str:
        """The memory, in words for the user."""
        own = f", {format_bytes(self.device)} of the device" if self.device else ""
        how = "at once" if self.whole else f"in pieces, {self.rows} side by side"
        return f"at most {format_bytes(self.host)} of host memory{own}; {how}"


def find_room(
    files: SubjectFiles,
    models: Sequence[tuple[Any, Configuration]],
    device: int | None,
    limit: int | None,
    *,
    kept: bool,
) -> Room:
    """Choose the fewest pieces that `limit` bytes of the host hold.

    With `kept` all probabilities are held. None limits to half of the free bytes.

    Raises:
        HostMemoryError: If no pieces are small enough; names the least bytes.
    """
    shape, spacing = header_grid(files) or ((0, 0, 0), (1.0, 1.0, 1.0))
    labels, voxels = models[0][0].output_shape[-1], prod(shape)
    before = psutil.Process().memory_info().rss
    if not tf.config.list_physical_devices("GPU"):  # then the device is the host
        before += 2 * (device or 0)
    most = limit or before + psutil.virtual_memory().available // 2
    channels = len(files.images)
    reading = voxels * channels * (4 * _COPIES + 16)
    held = voxels + kept * 4 * voxels * labels
    sums = [_Sums.of(*one, shape, spacing) for one in models]
    held += sum(4 * channels * prod(one.grid) for one in sums)
    least = 0
    for rows in (0, *range(1, _ROWS + 1)):
        planes = min(_PLANES, shape[0]) if rows else shape[0]
        piece = planes * ceil(shape[1] / max(rows, 1)) * shape[2] * labels
        pieces = sum(one.size(rows, labels) for one in sums)
        least = before + max(reading, held + pieces + 4 * piece * (2 + len(models)))
        if least <= most:
            return Room(
                rows=max(rows, 1),
                whole=rows == 0,
                labels=labels,
                host=least,
                device=device,
            )
    advice = "Raise --host-memory" if limit else "Free some, or set --host-memory"
    if kept:
        advice += ", or leave out --save-probabilities"
    raise HostMemoryError(
        f"`host memory` must be at least {format_bytes(least, at_least=True)} for "
        f"subject {files.name}, {in_words(shape)} voxels and {labels} probabilities, "
        f"got {format_bytes(most)}. {advice}."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sums:
    """The grid that a network sees, and its patch; None for a cube."""

    grid: Shape
    patch: Shape | None

    @staticmethod
    def of(model: Any, configuration: Configuration, shape: Shape, sides: Sides) -> Any:
        if configuration.patch is None:
            return _Sums(grid=as_shape(model.input_shape[1:4]), patch=None)
        new = configuration.spacing or sides
        pairs = zip(shape, sides, new, strict=True)
        grid = as_shape([max(1, round(n * own / one)) for n, own, one in pairs])
        return _Sums(grid=grid, patch=as_shape(model.input_shape[1:4]))

    def size(self, rows: int, labels: int) -> int:
        """Return the bytes of sums while a row of pieces is made, or all at once."""
        if self.patch is None:
            return 4 * prod(self.grid) * labels
        depth, height, width = map(max, self.grid, self.patch)
        patch = 3 * 4 * prod(self.patch) * labels
        if rows:
            depth = min(depth, self.patch[0] + _PLANES)
            height = min(height, ceil(height / rows) + 2 * self.patch[1])
        return 4 * depth * height * width * (labels + 1) + patch


def patched_pieces(
    images: Images,
    size: Sequence[int],
    predict: Callable[[Images], Probabilities],
    shape: Shape,
    pieces: Sequence[Piece],
    step: float = STEP,
) -> Iterator[Probabilities]:
    """Yield the probabilities of a row of pieces of a grid of `shape`, by patches."""
    axes = list(zip(shape, images.shape[:3], strict=True))
    planes = [_needed(planes, *axes[0]) for planes, _ in pieces]
    rows = _needed(pieces[0][1], *axes[1])
    sums = sum_patches(images, size, predict, planes, rows, step)
    for piece, found, first in zip(pieces, sums, planes, strict=True):
        yield _resized(found, images.shape[:3], shape, piece, (first.start, rows.start))


def resized_pieces(
    found: Probabilities, shape: Shape, pieces: Sequence[Piece]
) -> Iterator[Probabilities]:
    """Yield the probabilities of a row of pieces of a grid of `shape`, resized."""
    for planes, rows in pieces:
        if (planes.stop - planes.start, rows.stop - rows.start) == shape[:2]:
            yield resize_channels(found, shape)
        else:
            yield _resized(found, found.shape[:3], shape, (planes, rows), (0, 0))


def _needed(wanted: slice, extent: int, there: int) -> slice:
    """Return the voxels of an axis that some voxels of the resized axis depend on."""
    if extent == there:
        return wanted
    first, last = (_place(k, extent, there) for k in (wanted.start, wanted.stop - 1))
    return slice(max(0, floor(first)), min(there, floor(last) + 2))


def _place(k: int, extent: int, there: int) -> float:
    """Return where the middle of a voxel of the resized axis lies."""
    return (k + 0.5) * there / extent - 0.5


def _resized(
    found: Probabilities,
    there: Sequence[int],
    shape: Shape,
    piece: Piece,
    first: tuple[int, int],
) -> Probabilities:
    """Interpolate a piece linearly from a part that begins at plane and row `first`."""
    if tuple(there) == shape:
        return found
    wanted = (*piece, slice(0, shape[2]))
    scales = [n / m for n, m in zip(there, shape, strict=True)]
    offsets = [
        _place(one.start, m, n) - start
        for one, m, n, start in zip(wanted, shape, there, (*first, 0), strict=True)
    ]
    extent = tuple(one.stop - one.start for one in wanted)
    resized = np.empty((*extent, found.shape[-1]), np.float32)
    how: Any = {"offset": offsets, "output_shape": extent, "order": 1}
    for k in range(found.shape[-1]):
        one = ndimage.affine_transform(found[..., k], scales, mode="nearest", **how)
        resized[..., k] = one
    return resized
