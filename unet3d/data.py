"""Turns subjects into the network's arrays, and its probabilities into files.

    folder --read_subject--> Subject --prepare--> images, regions
    probabilities --resize--> brain's box --threshold--> regions --to_labels--> labels
        --paste--> (depth, height, width) --from_canonical--> (x, y, z) as stored

Preparing is: crop to the brain, resize to a cube, normalise each channel over the
brain, turn label values into overlapping regions. After prediction probabilities are
resized, not labels: a linear mean of labels 1 and 4 is neither label. This module
imports no TensorFlow.

The probabilities of labels that exclude each other add up to 1 with the background's:
the likeliest is written. Regions that overlap have a probability each.

Sources: cropping, resizing and normalising as in the Keras code of D. G. Ellis for
Isensee et al., BraTS 2017 - except that the mean and deviation are each subject's own,
as in the paper, not the data set's.

Known weakness: shrinking does not smooth first, so fine detail may alias.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from unet3d.extras import Nifti1Image, ndimage
from unet3d.lines import check_integer
from unet3d.orientation import from_canonical, voxel_sizes
from unet3d.reading import Images, Labels, Scan, Subject, read_subject
from unet3d.schemes import BRATS2017, MODALITIES, REGIONS, LabelScheme
from unet3d.shapes import Sides, as_shape

__all__ = ["Common", "Window", "as_image", "to_labels"]
__all__ += ["MODALITIES", "REGIONS", "Box", "Subject", "brain_box", "check_size"]
__all__ += ["normalise", "prepare", "prepare_images", "read_subject"]
__all__ += ["resize_channels", "resize_labels", "resized_labels", "to_regions"]

# Lower and upper end, mean and deviation of a CT window, in Hounsfield units.
Window = tuple[float, float, float, float]
Voxel = TypeVar("Voxel", bound=np.generic)
Mask = NDArray[np.bool_]
Box = tuple[slice, slice, slice]

THRESHOLD = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """The `spacing` in mm, and `windows` of CT channels, that all scans of a run get.

    None leaves a scan's spacing, or normalises a channel over its own brain.
    """

    spacing: Sides | None = None
    windows: tuple[Window | None, ...] = ()


_OWN = Common()


def brain_box(images: Images) -> Box:
    """Return the (depth, height, width) slices of the box around non-zero voxels."""
    brain = (images != 0).any(axis=-1)
    if not brain.any():
        raise ValueError(
            "`images` must show a brain, got only zeros. Leave the subject out or read "
            "its files again."
        )
    depth, height, width = ndimage.find_objects(brain.astype(np.int8))[0]
    return depth, height, width


def resize_labels(labels: Labels, size: int) -> Labels:
    """Resize to a cube, taking each voxel's nearest neighbour: no new values appear."""
    return resize_volume(labels, (size, size, size), order=0)


def resize_volume(
    volume: NDArray[Voxel], shape: tuple[int, int, int], *, order: int = 1
) -> NDArray[Voxel]:
    """Resize (depth, height, width) to any shape; corners and dtype stay.

    `order` 0 takes the nearest voxel, 1 is linear.
    """
    factors = [new / old for new, old in zip(shape, volume.shape, strict=True)]
    resized = ndimage.zoom(volume, factors, order=order, mode="nearest", grid_mode=True)
    return np.asarray(resized, dtype=volume.dtype)


def normalise(
    images: Images,
    brain: Mask,
    windows: Sequence[Window | None] = (),
    shifts: Sequence[float] = (),
) -> Images:
    """Give each channel mean 0 and deviation 1 over the brain, and 0 outside it.

    A channel that is constant over the brain becomes 0 everywhere. A channel with a
    window is cut to its ends, and gets the window's mean and deviation everywhere.
    """
    voxels = images[brain].astype(np.float64)
    deviation = voxels.std(axis=0)
    deviation[deviation == 0] = 1.0
    voxels -= voxels.mean(axis=0)  # in place: CT of a whole body takes gigabytes
    voxels /= deviation
    result = np.zeros(images.shape, dtype=np.float32)
    result[brain] = voxels
    for k, window in enumerate(windows):
        if window is not None:
            low, high, mean, deviation = window
            own = np.clip(images[..., k] + np.float32(shifts[k]), low, high)
            result[..., k] = (own - np.float32(mean)) / np.float32(deviation)
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
    subject: Subject,
    size: int | None,
    scheme: LabelScheme = BRATS2017,
    common: Common = _OWN,
) -> tuple[Images, Labels]:
    """Crop, resize and normalise one subject.

    With a `size` of None the spacing becomes the common one, or stays.

    Returns:
        Images, float32 of shape (size, size, size, channel), and regions, uint8 of
        shape (size, size, size, region).
    """
    images, box = prepare_images(subject, size, common)
    labels, shape = subject.labels[box], as_shape(images.shape[:3])
    if labels.shape != shape:
        labels = resize_volume(labels, shape, order=0)
    return images, to_regions(labels, scheme)


def prepare_images(
    scan: Scan, size: int | None, common: Common = _OWN
) -> tuple[Images, Box]:
    """Return images as `prepare` does, and the box of the crop."""
    try:
        box = brain_box(scan.images)
    except ValueError as error:
        raise ValueError(f"subject {scan.name}: {error}") from error
    images = scan.images[box]
    brain = (images != 0).any(axis=-1).astype(np.uint8)
    shape = brain.shape
    if size is not None:
        check_size(size)
        shape = as_shape(size)
    elif common.spacing is not None:
        sides = zip(shape, voxel_sizes(scan.affine), common.spacing, strict=True)
        shape = as_shape([max(1, round(n * own / new)) for n, own, new in sides])
    if shape != brain.shape or size is not None:
        brain = resize_volume(brain, shape, order=0)
        images = resize_channels(images, shape)
    return normalise(images, brain > 0, common.windows, scan.shifts), box


def check_size(size: int) -> None:
    """Refuse a size that is no positive integer."""
    check_integer("size", size, advice="Ask for one the network takes, such as 144.")


def resized_labels(
    probabilities: NDArray[np.float32], shape: tuple[int, int, int], scheme: LabelScheme
) -> Labels:
    """Resize probabilities to a crop's shape, and turn them into label values."""
    return to_labels(resize_channels(probabilities, shape), scheme)


def resize_channels(
    volume: NDArray[np.float32], shape: tuple[int, int, int]
) -> NDArray[np.float32]:
    """Resize each channel, the last axis, linearly to (depth, height, width)."""
    resized = np.empty((*shape, volume.shape[-1]), np.float32)
    for k in range(volume.shape[-1]):
        resized[..., k] = resize_volume(volume[..., k].astype(np.float32), shape)
    return resized


def to_labels(probabilities: NDArray[np.floating], scheme: LabelScheme) -> Labels:
    """Turn probabilities, on the last axis, into label values.

    With one more than regions the first is the background's, and the likeliest is
    written. By a scheme's `order` each region is written over earlier ones (nnU-Net's
    documentation, "Region-based training"). Else a voxel is in a region only if it is
    in all enclosing regions, so larger regions stay as predicted. Of regions that share
    no value the likelier is written.

    Example:
        >>> masks = np.array([[0, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1]], float)
        >>> to_labels(masks, BRATS2017).tolist()
        [0, 2, 1, 4]
    """
    sets = [set(values) for values in scheme.regions.values()]
    if probabilities.shape[-1] == len(sets) + 1:
        values = np.array([0, *scheme.written], dtype=np.uint8)
        return values[probabilities.argmax(axis=-1)]
    labels = np.zeros(probabilities.shape[:-1], dtype=np.uint8)
    for k, written in enumerate(scheme.written):
        assert written is not None  # `LabelScheme` refuses None
        inside = probabilities[..., k] > THRESHOLD
        if scheme.order is not None:
            labels[inside] = written
            continue
        for other in range(len(sets)):
            if sets[other] > sets[k]:
                inside &= probabilities[..., other] > THRESHOLD
            elif other < k and not sets[other] & sets[k]:
                inside &= probabilities[..., k] > probabilities[..., other]
        labels[inside] = written
    return labels


def as_image(labels: np.ndarray, source: Nifti1Image) -> Nifti1Image:
    """Make a NIfTI volume of (depth, height, width) labels on the source's grid.

    Channels, on a fourth axis, become volumes of one file. Of a 4-D source the first
    three axes count. Intensity scaling and display range are the labels' own, the rest
    is the source's header.
    """
    affine = np.asarray(source.affine, dtype=np.float64)
    volumes = np.moveaxis(labels, 3, 0) if labels.ndim > 3 else [labels]
    turned = np.stack([from_canonical(one, affine) for one in volumes], axis=-1)
    stored = np.ascontiguousarray(turned if labels.ndim > 3 else turned[..., 0])
    header = source.header.copy()
    header.set_data_shape(stored.shape)
    header.set_data_dtype(labels.dtype)
    header.set_slope_inter(1, 0)
    header["cal_min"], header["cal_max"] = 0, 0
    # Without an affine nibabel keeps the header's own qform and sform, codes included.
    image = Nifti1Image(stored, None, header)
    image.header["descrip"] = b"segmentation by unet3d"
    return image
