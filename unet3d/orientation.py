"""Turns volumes so that every subject lies the same way, and back.

    (x, y, z) as stored --to_canonical--> (depth, height, width) --from_canonical-->

Canonical axes run to the patient's left, back and top (LPS), which is how BraTS stores
its volumes; reversed, they are depth, height, width, so that a slice along the first
axis is an axial image. Only whole turns and flips are made, so no voxel is resampled:
an oblique affine keeps its tilt.

Source: nibabel's `orientations` module, which pairs each stored axis with the nearest
anatomical one.
"""

from typing import TypeVar

import numpy as np
from nibabel import orientations
from numpy.typing import NDArray

__all__ = ["from_canonical", "to_canonical", "voxel_sizes"]

Voxel = TypeVar("Voxel", bound=np.generic)
Affine = NDArray[np.float64]

_AXES = ("L", "P", "S")


def to_canonical(
    voxels: NDArray[Voxel], affine: Affine
) -> tuple[NDArray[Voxel], Affine]:
    """Turn a stored volume into (depth, height, width).

    Args:
        voxels: Shape (x, y, z), as stored.
        affine: Shape (4, 4); maps voxel (x, y, z, 1) to millimetres.

    Returns:
        The volume of shape (depth, height, width), and the affine that maps its voxel
        (width, height, depth, 1) to the same millimetres.

    Raises:
        ValueError: If the affine gives a stored axis no direction.

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
    """Turn (depth, height, width) into the stored axes that `affine` belongs to.

    Args:
        volume: As `to_canonical` returned it.
        affine: The stored volume's own affine, not the canonical one.

    Returns:
        Shape (x, y, z), as stored.
    """
    turn = orientations.ornt_transform(_canonical(), _orientation(affine))
    return np.asarray(orientations.apply_orientation(volume.T, turn))


def voxel_sizes(affine: Affine) -> tuple[float, float, float]:
    """Millimetres from a voxel to the next along (depth, height, width).

    Args:
        affine: Shape (4, 4); maps voxel (width, height, depth, 1) to millimetres.

    Example:
        >>> voxel_sizes(np.diag([-1.0, -1.0, 3.0, 1.0]))
        (3.0, 1.0, 1.0)
    """
    width, height, depth = np.linalg.norm(affine[:3, :3], axis=0)
    return float(depth), float(height), float(width)


def _canonical() -> NDArray[np.float64]:
    return np.asarray(orientations.axcodes2ornt(_AXES), dtype=np.float64)


def _orientation(affine: Affine) -> NDArray[np.float64]:
    """The anatomical axis and direction of each stored axis."""
    finite = np.isfinite(affine).all() and abs(np.linalg.det(affine[:3, :3])) > 0
    axes = orientations.io_orientation(affine) if finite else np.full((3, 2), np.nan)
    if np.isnan(axes).any():  # nibabel finds no direction where axes nearly coincide
        raise ValueError(
            "`affine` must map voxels to a volume in space, got "
            f"{np.asarray(affine).tolist()}. Repair the file's header."
        )
    return np.asarray(axes, dtype=np.float64)
