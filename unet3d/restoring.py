"""The way back: from the network's cube to the grid of the source's files.

    probabilities --resize--> brain's box --threshold--> regions --to_labels--> labels
        --paste--> (depth, height, width) --from_canonical--> (x, y, z) as stored

Probabilities are resized, not labels: a linear mean of labels 1 and 4 would be neither.
"""

import numpy as np
from nibabel.nifti1 import Nifti1Image
from numpy.typing import NDArray

from unet3d.data import Box, resize_volume
from unet3d.orientation import from_canonical
from unet3d.reading import Labels
from unet3d.schemes import LabelScheme

__all__ = ["as_image", "restore", "to_labels"]

THRESHOLD = 0.5


def restore(
    probabilities: NDArray[np.float32],
    box: Box,
    shape: tuple[int, int, int],
    scheme: LabelScheme,
) -> Labels:
    """Turn probabilities on the network's cube into labels of the whole volume.

    Args:
        probabilities: Shape (size, size, size, region); any size.
        box: Where the cube was cropped from; outside of it all is 0.
        shape: (depth, height, width) of the whole volume.
        scheme: Which values to write.
    """
    extents = (
        box[0].stop - box[0].start,
        box[1].stop - box[1].start,
        box[2].stop - box[2].start,
    )
    resized = [
        resize_volume(probabilities[..., k].astype(np.float32), extents)
        for k in range(probabilities.shape[-1])
    ]
    labels = np.zeros(shape, dtype=np.uint8)
    labels[box] = to_labels(np.stack(resized, axis=-1), scheme)
    return labels


def to_labels(probabilities: NDArray[np.floating], scheme: LabelScheme) -> Labels:
    """Turn a probability for each region, the last axis, into label values.

    A voxel is in a region only inside of those that hold it, so the larger regions stay
    as they were predicted. Of regions that share no value the likelier is written.

    Example:
        >>> from unet3d.schemes import BRATS2017
        >>> masks = np.array([[0, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1]], float)
        >>> to_labels(masks, BRATS2017).tolist()
        [0, 2, 1, 4]
    """
    labels = np.zeros(probabilities.shape[:-1], dtype=np.uint8)
    sets = [set(values) for values in scheme.regions.values()]
    for k, written in enumerate(scheme.written):
        assert written is not None  # or there were no such scheme
        inside = probabilities[..., k] > THRESHOLD
        for other in range(len(sets)):
            if sets[other] > sets[k]:
                inside &= probabilities[..., other] > THRESHOLD
            elif other < k and not sets[other] & sets[k]:
                inside &= probabilities[..., k] > probabilities[..., other]
        labels[inside] = written
    return labels


def as_image(labels: Labels, source: Nifti1Image) -> Nifti1Image:
    """Make a NIfTI volume of (depth, height, width) labels on the source's grid.

    Of a 4-D source the first three axes count. Intensity scaling and display range are
    the labels' own, the rest is the source's header.
    """
    affine = np.asarray(source.affine, dtype=np.float64)
    stored = np.ascontiguousarray(from_canonical(labels, affine))
    header = source.header.copy()
    header.set_data_shape(stored.shape)
    header.set_data_dtype(np.uint8)
    header.set_slope_inter(1, 0)
    header["cal_min"], header["cal_max"] = 0, 0
    # Without an affine nibabel keeps the header's own qform and sform, codes included.
    image = Nifti1Image(stored, None, header)
    image.header["descrip"] = b"segmentation by unet3d"
    return image
