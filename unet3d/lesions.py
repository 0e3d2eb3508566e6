"""Dice and HD95 lesion by lesion, by BraTS 2023's rules.

    truth, dilated 3 times --components--> lesions: what grows together is one
    prediction --components--> finds; those that touch a dilated lesion are its own

A lesion's Dice and HD95 are those of all its finds together. Lesions of at most 50 mm3
are left out, with their finds; a find that touches no lesion, or a lesion without one,
has Dice 0 and HD95 374 mm. The score is the mean over lesions and false finds.

Source: the evaluation of BraTS 2023 (github.com/rachitsaluja/BraTS-2023-Metrics), for
gliomas; DeepMind's surface-distance, as there, for distances between surfaces: it
weighs surface by its area, so HD95 differs a little from `unet3d.scores`.

Known weakness: dilation counts voxels, whatever their size, as there.
"""

import math
import warnings

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from unet3d.scores import EmptyRule, Mask, Spacing, dice

__all__ = ["lesion_scores"]

_DILATIONS = 3
_LEAST = 50.0  # mm3, of a lesion that counts
_MISSED = 374.0  # mm
_GROWN = ndimage.generate_binary_structure(3, 2)
_TOUCHING = np.ones((3, 3, 3), np.bool_)


def lesion_scores(
    truth: Mask,
    prediction: Mask,
    spacing: Spacing,
    rule: EmptyRule = EmptyRule.BRATS,
) -> tuple[float, float]:
    """Lesion-wise Dice and HD95; arguments as for `unet3d.scores.hd95`.

    Example:
        >>> a, b = np.zeros((2, 9, 9, 9), bool)
        >>> a[:5, :5, :5] = b[:5, :5, :5] = b[8, 8, 8] = True
        >>> lesion_scores(a, b, (1.0, 1.0, 1.0))
        (0.5, 187.0)
    """
    scores, strangers = _each(truth, prediction, spacing)
    scores += [(0.0, _MISSED)] * strangers
    if not scores:
        return (1.0, 0.0) if rule is EmptyRule.BRATS else (math.nan, math.nan)
    mean = np.mean(scores, axis=0)
    return float(mean[0]), float(mean[1])


def _each(
    truth: Mask, prediction: Mask, spacing: Spacing
) -> tuple[list[tuple[float, float]], int]:
    """Scores of each lesion that counts, and the number of finds that touch none."""
    grown = _dilated(truth)
    lesions, count = _components(grown)
    lesions[~truth] = 0
    finds, total = _components(prediction)
    scores, touched = [], set[int]()
    for number in range(1, count + 1):
        lesion = lesions == number
        own = set(np.unique(finds[_dilated(lesion)]).tolist()) - {0}
        touched |= own
        if lesion.sum() * math.prod(spacing) > _LEAST:
            found = np.isin(finds, list(own))
            scores.append((dice(lesion, found), _distance(lesion, found, spacing)))
    return scores, total - len(touched)


def _components(mask: Mask) -> tuple[NDArray[np.int32], int]:
    labels = np.zeros(mask.shape, np.int32)
    return labels, int(np.asarray(ndimage.label(mask, _TOUCHING, output=labels)))


def _dilated(mask: Mask) -> Mask:
    grown = np.zeros_like(mask)
    if mask.any():  # a box around it is enough, and dilation takes time
        box = tuple(
            slice(max(0, side.start - _DILATIONS), side.stop + _DILATIONS)
            for side in ndimage.find_objects(mask.astype(np.int8))[0]
        )
        grown[box] = ndimage.binary_dilation(mask[box], _GROWN, _DILATIONS)
    return grown


def _distance(lesion: Mask, found: Mask, spacing: Spacing) -> float:
    import surface_distance

    if not found.any():
        return _MISSED
    with warnings.catch_warnings():  # its names of SciPy's functions are old ones
        warnings.simplefilter("ignore", DeprecationWarning)
        distances = surface_distance.compute_surface_distances(lesion, found, spacing)
    hausdorff = surface_distance.compute_robust_hausdorff(distances, 95)
    return float(min(hausdorff, _MISSED))
