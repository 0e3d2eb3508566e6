"""Turns subjects into the network's arrays.

    folder --read_subject--> Subject --prepare--> images, regions

Preparing is: crop to the brain, resize to a cube, normalise each channel over the
brain, turn label values into overlapping regions. Importing this imports no TensorFlow.

Sources: cropping, resizing and normalising as in the Keras code of D. G. Ellis for
Isensee et al., BraTS 2017 - except that the mean and deviation are each subject's own,
as in the paper, not the data set's.

Known weakness: shrinking does not smooth first, so fine detail may alias.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from unet3d.reading import Images, Labels, Subject, read_subject
from unet3d.schemes import BRATS2017, MODALITIES, REGIONS, LabelScheme

__all__ = ["MODALITIES", "REGIONS", "Box", "Subject", "brain_box", "check_size"]
__all__ += ["normalise", "prepare", "prepare_images", "read_subject", "resize_images"]
__all__ += ["resize_labels", "resize_volume", "to_regions"]

Voxel = TypeVar("Voxel", bound=np.generic)
Mask = NDArray[np.bool_]
Box = tuple[slice, slice, slice]


def brain_box(images: Images) -> Box:
    """The slices of depth, height and width that hold all voxels other than zero.

    Example:
        >>> images = np.zeros((3, 4, 5, 1))
        >>> images[0, 1, 2] = 7
        >>> brain_box(images)
        (slice(0, 1, None), slice(1, 2, None), slice(2, 3, None))
    """
    brain = (images != 0).any(axis=-1)
    if not brain.any():
        raise ValueError(
            "`images` must show a brain, got only zeros. Leave the subject out or read "
            "its files again."
        )
    depth, height, width = ndimage.find_objects(brain.astype(np.int8))[0]
    return depth, height, width


def resize_images(images: Images, size: int) -> Images:
    """Resize (depth, height, width, channel) to a cube, linearly.

    The corners of the volume, not the centres of its corner voxels, stay in place.
    """
    channels = np.moveaxis(images.astype(np.float32, copy=False), -1, 0)
    cube = (size, size, size)
    return np.stack([resize_volume(one, cube) for one in channels], axis=-1)


def resize_labels(labels: Labels, size: int) -> Labels:
    """Resize to a cube, taking each voxel's nearest neighbour: no new values appear."""
    return resize_volume(labels, (size, size, size), order=0)


def resize_volume(
    volume: NDArray[Voxel], shape: tuple[int, int, int], *, order: int = 1
) -> NDArray[Voxel]:
    """Resize (depth, height, width) to any shape; its corners and its type stay.

    `order` 0 takes the nearest voxel, 1 is linear.
    """
    factors = [new / old for new, old in zip(shape, volume.shape, strict=True)]
    resized = ndimage.zoom(volume, factors, order=order, mode="nearest", grid_mode=True)
    return np.asarray(resized, dtype=volume.dtype)


def normalise(images: Images, brain: Mask) -> Images:
    """Give each channel mean 0 and deviation 1 over the brain, and 0 outside it.

    A channel that is constant over the brain becomes 0 everywhere.

    Example:
        >>> images = np.array([[[[9.0], [1.0], [3.0]]]], dtype=np.float32)
        >>> normalise(images, np.array([[[False, True, True]]])).ravel().tolist()
        [0.0, -1.0, 1.0]
    """
    voxels = images[brain].astype(np.float64)
    deviation = voxels.std(axis=0)
    deviation[deviation == 0] = 1.0
    result = np.zeros(images.shape, dtype=np.float32)
    result[brain] = (voxels - voxels.mean(axis=0)) / deviation
    return result


def to_regions(labels: Labels, scheme: LabelScheme) -> Labels:
    """Turn label values into one 0/1 channel per region of the scheme.

    Example:
        >>> to_regions(np.array([[[0, 1, 2, 4]]], np.uint8), BRATS2017)[0, 0].tolist()
        [[0, 0, 0], [1, 1, 0], [1, 0, 0], [1, 1, 1]]
    """
    masks = [np.isin(labels, values) for values in scheme.regions.values()]
    return np.stack(masks, axis=-1).astype(np.uint8)


def prepare(
    subject: Subject, size: int | None, scheme: LabelScheme = BRATS2017
) -> tuple[Images, Labels]:
    """Crop, resize and normalise one subject; a `size` of None keeps all voxels.

    Returns:
        Images, float32 of shape (size, size, size, channel), and regions, uint8 of
        shape (size, size, size, region).
    """
    try:
        images, box = prepare_images(subject.images, size)
    except ValueError as error:
        raise ValueError(f"subject {subject.name}: {error}") from error
    labels = subject.labels[box]
    return images, to_regions(resize_labels(labels, size) if size else labels, scheme)


def prepare_images(images: Images, size: int | None) -> tuple[Images, Box]:
    """Images as `prepare` gives, and the box that was cropped to."""
    box = brain_box(images)
    images = images[box]
    brain = (images != 0).any(axis=-1).astype(np.uint8)
    if size is None:
        return normalise(images, brain > 0), box
    check_size(size)
    inside = resize_volume(brain, (size, size, size), order=0) > 0
    return normalise(resize_images(images, size), inside), box


def check_size(size: int) -> None:
    """Refuse what is no size of a cube."""
    if not isinstance(size, int) or isinstance(size, bool):
        kind = type(size).__name__
        raise TypeError(f"`size` must be an integer, got {kind}. Pass an int.")
    if size < 1:
        raise ValueError(
            f"`size` must be at least 1 voxel, got {size}. Ask for a size the network "
            "takes, such as 144."
        )
