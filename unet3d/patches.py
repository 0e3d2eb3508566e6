"""Patches of whole volumes: drawn to train with, laid over a volume to predict.

    volume --draw_patch--> (size, size, size)       a third of them around a label
    volume --slide--> patches, half a patch apart --predict--> mean by Gaussian weights

The device holds one patch, however large the volume is. The host holds the
wanted planes, and the planes that a patch has reached (`unet3d.streaming`).

Source: nnU-Net (Isensee et al., Nature Methods 18, 2021): a third of the patches hold
foreground, steps of half a patch, weights of a Gaussian whose deviation is an eighth of
the patch.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unet3d.reading import Images, Labels
from unet3d.shapes import as_shape

__all__ = ["draw_patch", "predict_volume", "predictor", "slide", "starts"]
__all__ += ["sum_patches"]

_LABELLED = 1 / 3  # share of the patches around a labelled voxel
STEP = 0.5  # of a patch, between the patches of a volume
_DEVIATION = 1 / 8  # of the Gaussian weights, over the patch's side


def draw_patch(
    images: Images,
    regions: Labels,
    size: int | Sequence[int],
    rng: np.random.Generator,
    *,
    by_label: bool = False,
) -> tuple[Images, Labels]:
    """Cut a random patch out of a volume, which is padded by 0 if too small.

    With `by_label` each label that is there is as likely as the others to be inside of
    a third of the patches, as in nnU-Net; else each labelled voxel is.
    """
    shape = np.array(as_shape(size))
    images, regions = _padded(images, shape), _padded(regions, shape)
    room = np.array(images.shape[:3]) - shape
    corner = rng.integers(0, room + 1)
    if rng.random() < _LABELLED and regions.any():
        chosen = regions.any(axis=-1)
        if by_label:
            there = np.flatnonzero(regions.any(axis=(0, 1, 2)))
            chosen = regions[..., rng.choice(there)]
        labelled = np.flatnonzero(chosen)
        centre = np.unravel_index(rng.choice(labelled), images.shape[:3])
        corner = np.clip(np.array(centre) - shape // 2, 0, room)
    box = tuple(map(slice, corner, corner + shape))
    return images[box], regions[box]


def slide(
    images: Images,
    size: int | Sequence[int],
    predict: Callable[[Images], NDArray[np.float32]],
) -> NDArray[np.float32]:
    """Predict a whole volume by a network that sees patches."""
    planes, rows = (slice(0, extent) for extent in images.shape[:2])
    return next(sum_patches(images, size, predict, [planes], rows))


def sum_patches(
    images: Images,
    size: int | Sequence[int],
    predict: Callable[[Images], NDArray[np.float32]],
    wanted: Sequence[slice],
    rows: slice,
    step: float = STEP,
) -> Iterator[NDArray[np.float32]]:
    """Yield the mean of all patches on the `wanted` planes, in ascending order.

    A plane is held from its first patch until no later plane needs it. Patches that
    touch no wanted row are left out; the numbers do not depend on `rows`.
    """
    shape = as_shape(size)
    padded, window = _padded(images, np.array(shape)), _window(shape)
    sides = zip(padded.shape, shape, strict=False)
    grid = [starts(n, side, step) for n, side in sides]
    near = [y for y in grid[1] if y < rows.stop and y + shape[1] > rows.start]
    own = (slice(rows.start - near[0], rows.stop - near[0]), slice(0, images.shape[2]))
    size_of_plane = (near[-1] + shape[1] - near[0], padded.shape[2])
    sums: dict[int, NDArray[np.float32]] = {}
    weights: dict[int, NDArray[np.float32]] = {}
    begins, turn = [*grid[0], padded.shape[0]], 0  # planes below begins[turn] are done
    for planes in wanted:
        for plane in [plane for plane in sums if plane < planes.start]:
            del sums[plane], weights[plane]
        while (begin := begins[turn]) < planes.stop:
            turn += 1
            kept = range(max(begin, planes.start), begin + shape[0])
            for y, x in product(near, grid[2] if kept else ()):
                box = (slice(begin, begin + shape[0]), slice(y, y + shape[1]))
                found = predict(padded[(*box, slice(x, x + shape[2]))])
                part = (
                    slice(y - near[0], y - near[0] + shape[1]),
                    slice(x, x + shape[2]),
                )
                for plane in kept:
                    if plane not in sums:
                        sums[plane] = np.zeros((*size_of_plane, found.shape[-1]), "f4")
                        weights[plane] = np.zeros(size_of_plane, np.float32)
                    weight = window[plane - begin]
                    sums[plane][part] += found[plane - begin] * weight[..., np.newaxis]
                    weights[plane][part] += weight
        every = range(planes.start, planes.stop)
        yield np.stack([sums[k][own] / weights[k][own][..., np.newaxis] for k in every])


def predict_volume(
    model: Any,
    images: Images,
    *,
    patched: bool,
    callbacks: Sequence[Any] = (),
    mirrored: bool = False,
) -> NDArray[np.float32]:
    """Predict by a Keras model: the whole cube at once, or by patches."""
    one = predictor(model, callbacks=callbacks, mirrored=mirrored)
    return slide(images, model.input_shape[1:4], one) if patched else one(images)


def predictor(
    model: Any, *, callbacks: Sequence[Any] = (), mirrored: bool = False
) -> Callable[[Images], NDArray[np.float32]]:
    """Return a function that predicts what the network sees at once.

    With `mirrored` the result is the mean over all eight mirror images, as nnU-Net's.
    """

    def predicted(cube: Images) -> NDArray[np.float32]:
        batch = cube[np.newaxis]
        found = model.predict(batch, batch_size=1, verbose=0, callbacks=[*callbacks])
        found = np.asarray(found)[0]
        if found.ndim > 2:
            return found
        return found[: prod(cube.shape[:3])].reshape(*cube.shape[:3], -1)

    def averaged(cube: Images) -> NDArray[np.float32]:
        subsets = [a for n in range(4) for a in combinations(range(3), n)]
        found = (np.flip(predicted(np.flip(cube, axes)), axes) for axes in subsets)
        return sum(found, np.zeros(1, np.float32)) / np.float32(len(subsets))

    return averaged if mirrored else predicted


def starts(extent: int, size: int, step: float = STEP) -> list[int]:
    """Return where patches begin along an axis: evenly, at most `step` of one apart."""
    count = int(np.ceil((extent - size) / (size * step))) + 1
    return np.linspace(0, extent - size, count).round().astype(int).tolist()


def _padded(volume: np.ndarray, shape: NDArray[np.int_]) -> np.ndarray:
    missing = [
        (0, max(0, side - n)) for n, side in zip(volume.shape, shape, strict=False)
    ]
    return np.pad(volume, [*missing, (0, 0)]) if np.any(missing) else volume


def _window(shape: Sequence[int]) -> NDArray[np.float32]:
    lines = []
    for size in shape:
        places = (np.arange(size) - (size - 1) / 2) / (size * _DEVIATION)
        lines.append(np.exp(-(places**2) / 2))
    return np.einsum("i,j,k->ijk", *lines).astype(np.float32)
