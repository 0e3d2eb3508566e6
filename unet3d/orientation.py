"""Turns volumes so that every subject lies the same way, and back; compares grids.

    (x, y, z) as stored --to_canonical--> (depth, height, width) --from_canonical-->

Canonical axes run to the patient's left, back and top (LPS), as BraTS stores volumes;
reversed, they are depth, height, width. Only whole turns and flips are made, so no
voxel is resampled: an oblique affine keeps its tilt.

Two grids are equal if no corner, and so no voxel, lies more than a quarter of a voxel
apart. Up to half a voxel apart, nearest voxels are counterparts. Rounding of a rotation
that is stored as a quaternion may move voxels by up to a tenth.
"""

from itertools import product
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from unet3d.extras import nibabel, orientations

__all__ = ["TOLERANCE", "describe_difference", "from_canonical", "same_grid"]
__all__ += ["to_canonical", "voxel_sizes"]

Voxel = TypeVar("Voxel", bound=np.generic)
Affine = NDArray[np.float64]

_AXES = ("L", "P", "S")

TOLERANCE = 0.25  # of the shortest side of a voxel


def to_canonical(
    voxels: NDArray[Voxel], affine: Affine
) -> tuple[NDArray[Voxel], Affine]:
    """Turn a stored volume (x, y, z) into (depth, height, width).

    Returns:
        The volume, and the affine that maps its voxel (width, height, depth, 1) to the
        same millimetres as before.

    Example:
        >>> stored = np.arange(6).reshape(3, 2, 1)
        >>> turned, _ = to_canonical(stored, np.eye(4))  # right, front, top
        >>> turned[0].tolist()
        [[5, 3, 1], [4, 2, 0]]
    """
    turn = orientations.ornt_transform(_orientation(affine), _canonical())
    turned = orientations.apply_orientation(voxels, turn)
    back = orientations.inv_ornt_aff(turn, voxels.shape)
    return np.asarray(turned).T, affine @ back


def from_canonical(volume: NDArray[Voxel], affine: Affine) -> NDArray[Voxel]:
    """Turn (depth, height, width) into the stored axes, which `affine` describes."""
    turn = orientations.ornt_transform(_canonical(), _orientation(affine))
    return np.asarray(orientations.apply_orientation(volume.T, turn))


def voxel_sizes(affine: Affine) -> tuple[float, float, float]:
    """Return a voxel's sides in mm along (depth, height, width)."""
    width, height, depth = np.linalg.norm(affine[:3, :3], axis=0)
    return float(depth), float(height), float(width)


def same_grid(first: Affine, other: Affine, shape: tuple[int, ...]) -> bool:
    """Tell whether two affines of (width, height, depth, 1) place all voxels alike.

    `shape` is (depth, height, width) of both volumes.

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
    """Describe the differences of two stored affines, in words for each.

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


def _canonical() -> NDArray[np.float64]:
    return np.asarray(orientations.axcodes2ornt(_AXES), dtype=np.float64)


def _orientation(affine: Affine) -> NDArray[np.float64]:
    """Return the anatomical axis and direction of each stored axis."""
    finite = np.isfinite(affine).all() and abs(np.linalg.det(affine[:3, :3])) > 0
    axes = orientations.io_orientation(affine) if finite else np.full((3, 2), np.nan)
    if np.isnan(axes).any():  # nibabel finds no direction where axes nearly coincide
        raise ValueError(
            "`affine` must map voxels to a volume in space, got "
            f"{np.asarray(affine).tolist()}. Repair the file's header."
        )
    return np.asarray(axes, dtype=np.float64)


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
