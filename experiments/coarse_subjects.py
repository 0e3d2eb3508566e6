"""Writes subjects of coarse voxels, as a scanner of larger voxels would see them.

An image's voxel is the mean of its block, a label voxel is the label in the middle of
its block.

Known weakness: at the edge of the brain a block's mean holds background too, as partial
volume does in a scanner.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unet3d.extras import nibabel
from unet3d.synthesis import save_volume, synthesize

__all__ = ["coarsen", "make_coarse_subjects"]


def make_coarse_subjects(
    folder: Path,
    *,
    subjects: int,
    seed: int,
    factor: int,
    progress: Callable[[Path], None] | None = None,
) -> Path:
    """Write fine and coarse subjects below `folder`; return the coarse folder.

    Complete coarse subjects are kept. `factor` voxels along each axis become one voxel.
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
    """Make one voxel of each block; blocks at the end are padded by 0."""
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
    save_volume(coarse, affine, target)
