"""Agreement of a predicted region with the true one: Dice and HD95.

    dice(t, p) = 2 |t and p| / (|t| + |p|)
    hd95(t, p) = max(P95 of d(s, surface of p) for s on the surface of t,
                     P95 of d(s, surface of t) for s on the surface of p)

Distances are from voxel centre to voxel centre, in mm. A surface is made of the voxels
of a region that have one of their six neighbours, or the volume's edge, outside of it.
P95 is the 95th percentile, interpolated linearly.

Where a region is empty, neither formula means anything, and a rule decides:

    rule    both empty             only one of them empty
    brats   Dice 1, HD95 0         Dice 0, HD95 373.13 mm
    nan     no number, left out    Dice 0, HD95 no number

Sources: Menze et al., IEEE TMI 34(10), 2015, for both measures; the evaluation of the
BraTS challenges for its rule. 373.13 mm is the diagonal of 240 x 240 x 155 mm.

Known weakness: axes are taken to be at right angles, as in BraTS: a sheared affine
would need other distances.
"""

import math
from enum import Enum

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

__all__ = ["FARTHEST", "EmptyRule", "Mask", "Spacing", "dice", "hd95"]

FARTHEST = math.sqrt(240**2 + 240**2 + 155**2)  # mm

Mask = NDArray[np.bool_]
Spacing = tuple[float, float, float]


class EmptyRule(Enum):
    """The score of empty regions."""

    BRATS = "brats"
    NAN = "nan"


def dice(truth: Mask, prediction: Mask, rule: EmptyRule = EmptyRule.BRATS) -> float:
    """Dice coefficient of two masks of one shape.

    Args:
        truth: Any shape.
        prediction: Of the same shape.
        rule: Decides where both are empty.

    Returns:
        Between 0 and 1, or NaN.

    Example:
        >>> dice(np.array([True, True, False]), np.array([True, False, False]))
        0.6666666666666666
    """
    total = int(truth.sum()) + int(prediction.sum())
    if total == 0:
        return 1.0 if rule is EmptyRule.BRATS else math.nan
    return 2 * int((truth & prediction).sum()) / total


def hd95(
    truth: Mask,
    prediction: Mask,
    spacing: Spacing,
    rule: EmptyRule = EmptyRule.BRATS,
) -> float:
    """The larger of the two directed 95th percentiles of surface distance.

    Args:
        truth: Shape (depth, height, width).
        prediction: Of the same shape.
        spacing: Millimetres from voxel to voxel along each axis.
        rule: Decides where one or both are empty.

    Returns:
        Millimetres, at least 0, or NaN.

    Example:
        >>> a, b = np.zeros((2, 1, 1, 9), bool)
        >>> a[..., 1], b[..., 5] = True, True
        >>> hd95(a, b, (1.0, 1.0, 2.0))
        8.0
    """
    if not truth.any() or not prediction.any():
        return _empty(rule, both=not truth.any() and not prediction.any())
    # Nothing outside the box of both matters, and distances take time.
    box = ndimage.find_objects((truth | prediction).astype(np.int8))[0]
    surfaces = [_surface(mask[box]) for mask in (truth, prediction)]
    there = _directed(surfaces[0], surfaces[1], spacing)
    back = _directed(surfaces[1], surfaces[0], spacing)
    return max(there, back)


def _empty(rule: EmptyRule, *, both: bool) -> float:
    if rule is EmptyRule.NAN:
        return math.nan
    return 0.0 if both else FARTHEST


def _surface(mask: Mask) -> Mask:
    return mask & ~np.asarray(ndimage.binary_erosion(mask), np.bool_)


def _directed(start: Mask, target: Mask, spacing: Spacing) -> float:
    distances = ndimage.distance_transform_edt(~target, sampling=spacing)
    return float(np.percentile(np.asarray(distances)[start], 95))
