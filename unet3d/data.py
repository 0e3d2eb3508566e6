"""Turns subjects into the network's arrays.

    folder --read_subject--> Subject --prepare--> images, regions --load_batch--> x, y

Preparing is: crop to the brain, resize to a cube, normalise each modality over the
brain, turn label values into three overlapping regions.

Importing this module does not import TensorFlow; `as_tf_dataset` does when called.

Sources: regions from Menze et al., IEEE TMI 34(10), 2015, with the label values
of BraTS 2017; cropping, resizing and normalising per modality as in the Keras code of
D. G. Ellis for Isensee et al., BraTS 2017 - except that the mean and deviation are each
subject's own, as in the paper, not the data set's.

Known weakness: shrinking does not smooth first, so fine detail may alias.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from unet3d.reading import MODALITIES, Images, Labels, Subject, read_subject

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = [
    "MODALITIES",
    "REGIONS",
    "Subject",
    "as_tf_dataset",
    "crop_to_brain",
    "load_batch",
    "normalise",
    "prepare",
    "read_subject",
    "resize_images",
    "resize_labels",
    "to_regions",
]

REGIONS = {"whole tumour": (1, 2, 4), "tumour core": (1, 4), "enhancing tumour": (4,)}

Voxel = TypeVar("Voxel", bound=np.generic)
Mask = NDArray[np.bool_]


def crop_to_brain(subject: Subject) -> Subject:
    """Crop to the bounding box of voxels where any modality is not zero.

    The affine is moved along, so that each voxel keeps its place in millimetres.

    Raises:
        ValueError: If every voxel is zero.
    """
    brain = (subject.images != 0).any(axis=-1)
    if not brain.any():
        raise ValueError(
            f"`images` of subject {subject.name} must show a brain, got only zeros. "
            "Leave the subject out or read its files again."
        )
    box = ndimage.find_objects(brain.astype(np.int8))[0]
    corner = [s.start for s in reversed(box)]  # (x, y, z), as the affine wants it
    affine = subject.affine.copy()
    affine[:3, 3] = (subject.affine @ [*corner, 1])[:3]
    return replace(
        subject, images=subject.images[box], labels=subject.labels[box], affine=affine
    )


def resize_images(images: Images, size: int) -> Images:
    """Resize to a cube, linearly; also for predictions, to compare resolutions.

    Args:
        images: Shape (depth, height, width, channel).
        size: Voxels along each axis of the result.

    Returns:
        float32 of shape (size, size, size, channel). The corners of the volume, not
        the centres of its corner voxels, stay in place.
    """
    channels = [
        _zoom(images[..., c].astype(np.float32, copy=False), size, order=1)
        for c in range(images.shape[-1])
    ]
    return np.stack(channels, axis=-1)


def resize_labels(labels: Labels, size: int) -> Labels:
    """Resize to a cube, taking each voxel's nearest neighbour: no new values appear.

    Args:
        labels: Shape (depth, height, width).
        size: Voxels along each axis of the result.
    """
    return _zoom(labels, size, order=0)


def normalise(images: Images, brain: Mask) -> Images:
    """Give each modality mean 0 and deviation 1 over the brain, and 0 outside it.

    Args:
        images: Shape (depth, height, width, channel), in any unit.
        brain: Shape (depth, height, width); at least one voxel is true.

    Returns:
        float32 of the same shape. A modality that is constant over the brain becomes
        0 everywhere.

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


def to_regions(labels: Labels) -> Labels:
    """Turn label values into one 0/1 channel per region of `REGIONS`.

    Args:
        labels: Shape (depth, height, width), values of `LABEL_VALUES`.

    Returns:
        uint8 of shape (depth, height, width, 3).

    Example:
        >>> to_regions(np.array([[[0, 1, 2, 4]]], np.uint8))[0, 0].tolist()
        [[0, 0, 0], [1, 1, 0], [1, 0, 0], [1, 1, 1]]
    """
    masks = [np.isin(labels, values) for values in REGIONS.values()]
    return np.stack(masks, axis=-1).astype(np.uint8)


def prepare(subject: Subject, size: int) -> tuple[Images, Labels]:
    """Crop, resize and normalise one subject.

    Args:
        subject: As read.
        size: Voxels along each axis of the result, at least 1.

    Returns:
        Images, float32 of shape (size, size, size, 4), and regions, uint8 of shape
        (size, size, size, 3).

    Raises:
        TypeError: If `size` is not an integer.
        ValueError: If `size` is less than 1 or the subject has no brain.
    """
    _check_size(size)
    cropped = crop_to_brain(subject)
    brain = (cropped.images != 0).any(axis=-1)
    brain = _zoom(brain.astype(np.uint8), size, order=0) > 0
    images = normalise(resize_images(cropped.images, size), brain)
    return images, to_regions(resize_labels(cropped.labels, size))


def load_batch(folders: Sequence[Path], size: int) -> tuple[Images, Labels]:
    """Read and prepare subjects; 228 subjects at 144^3 are 13 GB, so mind the memory.

    Args:
        folders: Subjects' folders, at least one.
        size: Voxels along each axis.

    Returns:
        x, float32 of shape (batch, depth, height, width, 4), and y, uint8 of shape
        (batch, depth, height, width, 3).

    Raises:
        ValueError: If `folders` is empty, or as `read_subject` and `prepare` do.
    """
    _check_folders(folders)
    _check_size(size)
    x = np.empty((len(folders), size, size, size, len(MODALITIES)), dtype=np.float32)
    y = np.empty((len(folders), size, size, size, len(REGIONS)), dtype=np.uint8)
    for index, folder in enumerate(folders):
        x[index], y[index] = prepare(read_subject(folder), size)
    return x, y


def as_tf_dataset(
    folders: Sequence[Path], size: int, *, batch_size: int = 1
) -> "tf.data.Dataset":
    """Read subjects lazily, in order, with the next batch prepared in the background.

    Every pass reads the files again; add `.cache()` where memory allows.

    Args:
        folders: Subjects' folders, at least one.
        size: Voxels along each axis.
        batch_size: Subjects per batch; the last batch may be smaller.

    Returns:
        Pairs (x, y) as `load_batch` gives for `batch_size` folders.
    """
    import tensorflow as tf

    _check_folders(folders)
    _check_size(size)

    def examples() -> Iterator[tuple[Images, Labels]]:
        for folder in folders:
            yield prepare(read_subject(folder), size)

    cube = (size, size, size)
    signature = (
        tf.TensorSpec((*cube, len(MODALITIES)), tf.float32),
        tf.TensorSpec((*cube, len(REGIONS)), tf.uint8),
    )
    dataset = tf.data.Dataset.from_generator(examples, output_signature=signature)
    return dataset.batch(batch_size).prefetch(1)


def _zoom(volume: NDArray[Voxel], size: int, *, order: int) -> NDArray[Voxel]:
    """Resize one volume to a cube by splines of `order`, in the volume's own type."""
    factors = [size / n for n in volume.shape]
    resized = ndimage.zoom(volume, factors, order=order, mode="nearest", grid_mode=True)
    return np.asarray(resized, dtype=volume.dtype)


def _check_size(size: int) -> None:
    if not isinstance(size, int) or isinstance(size, bool):
        kind = type(size).__name__
        raise TypeError(f"`size` must be an integer, got {kind}. Pass an int.")
    if size < 1:
        raise ValueError(
            f"`size` must be at least 1 voxel, got {size}. Ask for a size the network "
            "takes, such as 144."
        )


def _check_folders(folders: Sequence[Path]) -> None:
    if len(folders) == 0:
        raise ValueError(
            "`folders` must name at least one subject, got none. "
            "Write some with `python -m unet3d synthesize`."
        )
