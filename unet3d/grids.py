"""Compares grids: whether a voxel of two volumes is the same place in the patient.

Two grids are one if no voxel of the two is farther apart than a quarter of a voxel. Up
to half of one, each voxel's nearest counterpart is the voxel itself, so that nothing is
trained or scored at a wrong place. Less than a tenth may be rounding: a header keeps
float32, and may keep a rotation as a quaternion of which one part is left out, which
near half a turn moves the far corner of 512 x 512 x 512 voxels by so much.

The farthest voxels are corners: the difference of two affines is an affine.
"""

from itertools import product

import nibabel
import numpy as np
from numpy.typing import NDArray

from unet3d.orientation import voxel_sizes

__all__ = ["TOLERANCE", "describe_difference", "same_grid"]

Affine = NDArray[np.float64]

TOLERANCE = 0.25  # of the shortest side of a voxel


def same_grid(first: Affine, other: Affine, shape: tuple[int, ...]) -> bool:
    """Tell whether two affines put every voxel in the same place.

    Args:
        first: Shape (4, 4); maps voxel (width, height, depth, 1) to millimetres.
        other: Another one.
        shape: (depth, height, width) of both volumes.

    Example:
        >>> moved = np.eye(4)
        >>> moved[0, 3] = 0.05
        >>> same_grid(np.eye(4), moved, (9, 9, 9))
        True
        >>> same_grid(np.eye(4), np.diag([1.05, 1, 1, 1]), (9, 9, 9))
        False
    """
    corners = [[*corner, 1] for corner in product(*((0, n - 1) for n in shape[::-1]))]
    apart = (other - first)[:3] @ np.array(corners, dtype=np.float64).T
    farthest = np.linalg.norm(apart, axis=0).max()
    return bool(farthest <= TOLERANCE * min(voxel_sizes(first)))


def describe_difference(first: Affine, other: Affine) -> tuple[str, str]:
    """Say what differs between two affines as stored, in words for each.

    Example:
        >>> describe_difference(np.eye(4), np.diag([3.0, 3.0, 2.0, 1.0]))
        ('spacing (1, 1, 1) mm', 'spacing (3, 3, 2) mm')
    """
    ours, others = _describe(first), _describe(other)
    differing = [name for name in ours if ours[name] != others[name]]
    return (
        ", ".join(f"{name} {ours[name]}" for name in differing),
        ", ".join(f"{name} {others[name]}" for name in differing),
    )


def _describe(affine: Affine) -> dict[str, str]:
    sides = np.linalg.norm(affine[:3, :3], axis=0)
    directions = affine[:3, :3] / sides
    return {
        "axes": "".join(nibabel.aff2axcodes(affine)),
        "spacing": f"{_text(sides)} mm",
        "origin": f"{_text(affine[:3, 3])} mm",
        "directions": f"[{', '.join(_text(row) for row in directions)}]",
    }


def _text(numbers: NDArray[np.float64]) -> str:
    # Adding 0 takes the sign from a zero.
    return f"({', '.join(f'{round(float(n), 6) + 0:g}' for n in numbers)})"
