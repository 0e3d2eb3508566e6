"""Agreement of a predicted region with the true one: Dice and HD95, whole or by lesion.

    dice(t, p) = 2 |t and p| / (|t| + |p|)
    hd95(t, p) = max(P95 of d(s, surface of p) for s on the surface of t,
                     P95 of d(s, surface of t) for s on the surface of p)

Distances are from voxel centre to voxel centre, in mm. A surface is made of the voxels
of a region that have one of their six neighbours, or the volume's edge, outside of it.
Where a region is empty, neither formula means anything, and a rule decides:

    rule    both empty             only one of them empty
    brats   Dice 1, HD95 0         Dice 0, HD95 373.13 mm
    nan     no number, left out    Dice 0, HD95 no number

Lesion by lesion, by BraTS 2023's rules: lesions are the parts that stay apart when the
truth is dilated 3 times. A part of the prediction, a find, belongs to each dilated
lesion that it touches. Lesions of at most 50 mm3 are left out, with their finds. A
lesion without a find, and a find without a lesion, has Dice 0 and HD95 374 mm. The
score is the mean over lesions and false finds.

Sources: Menze et al., IEEE TMI 34(10), 2015, for both measures; the evaluation of the
BraTS challenges for its rule: 373.13 mm is the diagonal of 240 x 240 x 155 mm; that of
BraTS 2023 (github.com/rachitsaluja/BraTS-2023-Metrics) for lesions of gliomas, with
DeepMind's surface-distance, which weighs surface by its area.

The two HD95 differ for a lesion that is the whole region: where predictions miss by a
voxel here and there, above 5% of the surface's voxels but below 5% of its area, HD95 is
the side of a voxel and lesion-wise HD95 is 0.

Known weaknesses: axes are taken to be at right angles, and dilation counts voxels of
any size, both as in BraTS.
"""

import math
import warnings
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from lms.errors import extra
from unet3d.extras import ndimage

__all__ = ["FARTHEST", "EmptyRule", "Mask", "Spacing", "dice", "hd95", "lesion_scores"]

FARTHEST = math.sqrt(240**2 + 240**2 + 155**2)  # mm

Mask = NDArray[np.bool_]
Spacing = tuple[float, float, float]
_DILATIONS = 3
_LEAST = 50.0  # mm3; smaller lesions do not count
_MISSED = 374.0  # mm, HD95 of a missed lesion or a false find
_GROWN = ndimage.generate_binary_structure(3, 2)
_TOUCHING = np.ones((3, 3, 3), np.bool_)


class EmptyRule(Enum):
    """The rule for scores of empty regions."""

    BRATS = "brats"
    NAN = "nan"


def dice(truth: Mask, prediction: Mask, rule: EmptyRule = EmptyRule.BRATS) -> float:
    """Compute Dice of two masks; the rule decides where both are empty.

    Example:
        >>> dice(np.array([True, True, False]), np.array([True, False, False]))
        0.6666666666666666
    """
    total = int(truth.sum()) + int(prediction.sum())
    if total == 0:
        return 1.0 if rule is EmptyRule.BRATS else math.nan
    return 2 * int((truth & prediction).sum()) / total


def hd95(
    truth: Mask, prediction: Mask, spacing: Spacing, rule: EmptyRule = EmptyRule.BRATS
) -> float:
    """Return the larger of both directed 95th percentiles of surface distance, in mm.

    `spacing` is mm from voxel to voxel along (depth, height, width).
    """
    if not truth.any() or not prediction.any():
        return _empty(rule, both=not truth.any() and not prediction.any())
    # Voxels outside the box of both masks do not matter, and distances take time.
    box = ndimage.find_objects((truth | prediction).astype(np.int8))[0]
    surfaces = [_surface(mask[box]) for mask in (truth, prediction)]
    there = _directed(surfaces[0], surfaces[1], spacing)
    back = _directed(surfaces[1], surfaces[0], spacing)
    return max(there, back)


def lesion_scores(
    truth: Mask, prediction: Mask, spacing: Spacing, rule: EmptyRule = EmptyRule.BRATS
) -> tuple[float, float]:
    """Compute lesion-wise Dice and HD95; arguments as for `unet3d.scores.hd95`."""
    scores, strangers = _each(truth, prediction, spacing)
    scores += [(0.0, _MISSED)] * strangers
    if not scores:
        return (1.0, 0.0) if rule is EmptyRule.BRATS else (math.nan, math.nan)
    mean = np.mean(scores, axis=0)
    return float(mean[0]), float(mean[1])


def _empty(rule: EmptyRule, *, both: bool) -> float:
    if rule is EmptyRule.NAN:
        return math.nan
    return 0.0 if both else FARTHEST


def _surface(mask: Mask) -> Mask:
    return mask & ~np.asarray(ndimage.binary_erosion(mask), np.bool_)


def _directed(start: Mask, target: Mask, spacing: Spacing) -> float:
    distances = ndimage.distance_transform_edt(~target, sampling=spacing)
    return float(np.percentile(np.asarray(distances)[start], 95))


def _each(
    truth: Mask, prediction: Mask, spacing: Spacing
) -> tuple[list[tuple[float, float]], int]:
    """Score each lesion that counts, and count the finds that touch no lesion."""
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
    if mask.any():  # dilate in a box around the mask, to save time
        box = tuple(
            slice(max(0, side.start - _DILATIONS), side.stop + _DILATIONS)
            for side in ndimage.find_objects(mask.astype(np.int8))[0]
        )
        grown[box] = ndimage.binary_dilation(mask[box], _GROWN, _DILATIONS)
    return grown


def _distance(lesion: Mask, found: Mask, spacing: Spacing) -> float:
    if not found.any():
        return _MISSED
    with extra("unet3d"):
        import surface_distance
    with warnings.catch_warnings():  # surface_distance uses old names of SciPy
        warnings.simplefilter("ignore", DeprecationWarning)
        distances = surface_distance.compute_surface_distances(lesion, found, spacing)
    hausdorff = surface_distance.compute_robust_hausdorff(distances, 95)
    return float(min(hausdorff, _MISSED))
