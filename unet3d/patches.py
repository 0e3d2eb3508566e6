"""Patches of whole volumes: drawn to train with, laid over a volume to predict.

    volume --draw_patch--> (size, size, size)       a third of them around a label
    volume --slide--> patches, half a patch apart --predict--> mean by Gaussian weights

The device holds one patch, however large the volume is; the host holds the volume's
probabilities and one weight for each voxel.

Source: nnU-Net (Isensee et al., Nature Methods 18, 2021): a third of the patches hold
foreground, steps of half a patch, weights of a Gaussian whose deviation is an eighth of
the patch.
"""

from collections.abc import Callable, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unet3d.reading import Images, Labels

__all__ = ["draw_patch", "predict_volume", "slide", "starts"]

_LABELLED = 1 / 3  # share of the patches around a labelled voxel
_DEVIATION = 1 / 8  # of the Gaussian weights, over the patch's side


def draw_patch(
    images: Images,
    regions: Labels,
    size: int,
    rng: np.random.Generator,
    *,
    by_label: bool = False,
) -> tuple[Images, Labels]:
    """Cut a random cube out of a volume, which is padded by 0 if too small.

    With `by_label` each label that is there is as likely as the others to be inside of
    a third of the cubes, as in nnU-Net; else each labelled voxel is.
    """
    images, regions = _padded(images, size), _padded(regions, size)
    room = np.array(images.shape[:3]) - size
    corner = rng.integers(0, room + 1)
    if rng.random() < _LABELLED and regions.any():
        chosen = regions.any(axis=-1)
        if by_label:
            there = np.flatnonzero(regions.any(axis=(0, 1, 2)))
            chosen = regions[..., rng.choice(there)]
        labelled = np.flatnonzero(chosen)
        centre = np.unravel_index(rng.choice(labelled), images.shape[:3])
        corner = np.clip(np.array(centre) - size // 2, 0, room)
    box = tuple(slice(start, start + size) for start in corner.tolist())
    return images[box], regions[box]


def slide(
    images: Images, size: int, predict: Callable[[Images], NDArray[np.float32]]
) -> NDArray[np.float32]:
    """Predict a whole volume by a network that sees patches."""
    shape, padded = images.shape[:3], _padded(images, size)
    window, total = _window(size), None
    weights = np.zeros(padded.shape[:3], np.float32)
    for corner in product(*(starts(n, size) for n in padded.shape[:3])):
        box = tuple(slice(start, start + size) for start in corner)
        found = predict(padded[box])
        if total is None:
            total = np.zeros((*padded.shape[:3], found.shape[-1]), np.float32)
        total[box] += found * window[..., np.newaxis]
        weights[box] += window
    assert total is not None  # there is at least one patch
    total /= weights[..., np.newaxis]
    depth, height, width = shape
    return total[:depth, :height, :width]


def predict_volume(
    model: Any,
    images: Images,
    *,
    patched: bool,
    callbacks: Sequence[Any] = (),
    mirrored: bool = False,
) -> NDArray[np.float32]:
    """Predict by a Keras model: the whole cube at once, or by patches.

    With `mirrored` the result is the mean over all eight mirror images, as nnU-Net's.
    """

    def predicted(cube: Images) -> NDArray[np.float32]:
        batch = cube[np.newaxis]
        found = model.predict(batch, batch_size=1, verbose=0, callbacks=[*callbacks])
        return np.asarray(found)[0]

    def averaged(cube: Images) -> NDArray[np.float32]:
        subsets = [a for n in range(4) for a in combinations(range(3), n)]
        found = [np.flip(predicted(np.flip(cube, axes)), axes) for axes in subsets]
        return np.mean(found, axis=0)

    one = averaged if mirrored else predicted
    return slide(images, model.input_shape[1], one) if patched else one(images)


def starts(extent: int, size: int) -> list[int]:
    """Return where patches begin along an axis: evenly, at most half a patch apart."""
    count = int(np.ceil((extent - size) / (size / 2))) + 1
    return np.linspace(0, extent - size, count).round().astype(int).tolist()


def _padded(volume: np.ndarray, size: int) -> np.ndarray:
    missing = [(0, max(0, size - n)) for n in volume.shape[:3]]
    return np.pad(volume, [*missing, (0, 0)]) if np.any(missing) else volume


def _window(size: int) -> NDArray[np.float32]:
    places = (np.arange(size) - (size - 1) / 2) / (size * _DEVIATION)
    line = np.exp(-(places**2) / 2)
    return np.einsum("i,j,k->ijk", line, line, line).astype(np.float32)
