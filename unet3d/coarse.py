"""Synthetic subjects as a scanner of larger voxels would have seen them.

    240 x 240 x 155 voxels of 1 mm  --blocks of 4^3-->  60 x 60 x 39 voxels of 4 mm

An image's voxel is the mean of its block, a label's voxel the label in the middle of
the block. A brain of about 140 x 171 x 140 mm then has 35 x 43 x 35 voxels.

Known weakness: at the edge of the brain a block's mean holds background too, as partial
volume does in a scanner.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from numpy.typing import NDArray

from lms.storage.files import draft_of
from unet3d.synthesis import synthesize

__all__ = ["coarsen", "make_coarse_subjects"]


def make_coarse_subjects(
    folder: Path,
    *,
    subjects: int,
    seed: int,
    factor: int,
    progress: Callable[[Path], None] | None = None,
) -> Path:
    """Write subjects; what is complete stays.

    Args:
        folder: `fine` and `coarse` are made in it.
        subjects: How many.
        seed: As for `synthesize`.
        factor: Voxels along each axis that become one.
        progress: Called with each subject's folder.

    Returns:
        The folder of the coarse subjects.
    """
    coarse = folder / "coarse"
    wanted = [coarse / f"synthetic_{i:03d}" for i in range(subjects)]
    if all((path / "complete").exists() for path in wanted):
        return coarse
    fine = synthesize(folder / "fine", subjects=subjects, seed=seed, progress=progress)
    for subject in fine:
        for path in sorted(subject.glob(f"{subject.name}_*.nii.gz")):
            _coarsen_file(path, coarse / subject.name / path.name, factor)
        (coarse / subject.name / "complete").touch()
    return coarse


def coarsen(volume: NDArray[Any], factor: int, *, labels: bool) -> NDArray[Any]:
    """Make one voxel of each block; what is missing at the end counts as background.

    Example:
        >>> coarsen(np.arange(8).reshape(2, 2, 2), 2, labels=False)
        array([[[4]]])
        >>> coarsen(np.arange(8).reshape(2, 2, 2), 2, labels=True)
        array([[[7]]])
    """
    missing = [(0, -length % factor) for length in volume.shape]
    padded = np.pad(volume, missing)
    if labels:
        middle = slice(factor // 2, None, factor)
        return padded[middle, middle, middle]
    parts = [n for length in padded.shape for n in (length // factor, factor)]
    means = padded.reshape(parts).mean(axis=(1, 3, 5))
    return np.rint(means).astype(volume.dtype)


def _coarsen_file(source: Path, target: Path, factor: int) -> None:
    image: Any = nibabel.load(source)
    volume = np.asanyarray(image.dataobj)
    coarse = coarsen(volume, factor, labels=source.name.endswith("_seg.nii.gz"))
    affine = image.affine @ np.diag([factor, factor, factor, 1.0])
    # A block's middle lies half a block from the first voxel's.
    affine[:3, 3] += image.affine[:3, :3] @ np.full(3, (factor - 1) / 2)
    made = nibabel.Nifti1Image(coarse, affine)
    made.header.set_xyzt_units("mm", "sec")
    _save(made, target)


def _save(image: Any, target: Path) -> None:
    with draft_of(target) as draft:
        nibabel.save(image, draft)
