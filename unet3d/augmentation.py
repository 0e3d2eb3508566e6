"""Varies training examples: flips, axis permutations and intensities.

Each example has a random generator of its own, made from (seed, epoch, place in the
epoch), so an epoch that is done again gives the same voxels.

Sources: flips and permutations of a cube as in D. G. Ellis's Keras code; shifts and
scales of intensity as in Myronenko, arXiv 1810.11654, section 3.3.
"""

import numpy as np

from unet3d.reading import Images, Labels

__all__ = ["SCALE", "SHIFT", "augment"]

# In deviations of a normalised modality, and as a part of it.
SHIFT = 0.1
SCALE = 0.1


def augment(
    images: Images, regions: Labels, rng: np.random.Generator
) -> tuple[Images, Labels]:
    """Turn, mirror and re-colour one example; images and regions move together.

    Args:
        images: Shape (size, size, size, channel), normalised, 0 outside the brain.
        regions: Shape (size, size, size, region).
        rng: Decides everything.

    Returns:
        New arrays of the same shapes and types; the background stays 0.

    Example:
        >>> x, y = np.ones((2, 2, 2, 4), np.float32), np.ones((2, 2, 2, 3), np.uint8)
        >>> augment(x, y, np.random.default_rng(0))[1].sum()
        np.uint64(24)
    """
    order = (*rng.permutation(3).tolist(), 3)
    mirrored = tuple(np.flatnonzero(rng.random(3) < 0.5).tolist())
    channels = images.shape[-1]
    scale = rng.uniform(1 - SCALE, 1 + SCALE, channels).astype(np.float32)
    shift = rng.uniform(-SHIFT, SHIFT, channels).astype(np.float32)
    brain = (images != 0).any(axis=-1, keepdims=True)
    images = np.where(brain, images * scale + shift, 0).astype(np.float32, copy=False)
    return _move(images, order, mirrored), _move(regions, order, mirrored)


def _move(
    volume: np.ndarray, order: tuple[int, ...], mirrored: tuple[int, ...]
) -> np.ndarray:
    return np.ascontiguousarray(np.flip(volume.transpose(order), mirrored))
