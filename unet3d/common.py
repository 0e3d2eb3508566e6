"""Finds a spacing for all scans of a run, and a window for each channel of CT.

    headers --median_grid--> shape and spacing      scans --find_windows--> windows

Source: nnU-Net (Isensee et al., Nature Methods 18, 2021), its planner and fingerprint:
the median spacing; of an axis with voxels three times as long and three times as few as
the others' the tenth percentile; of CT the 0.5th and 99.5th percentile, mean and
deviation of labelled voxels, 10,000 of each scan.

Known weaknesses: shapes are those of files, not of the box around the brain. Volumes
are resampled linearly and labels by the nearest voxel; nnU-Net takes cubic splines.
"""

from collections.abc import Sequence

import numpy as np

from unet3d.data import Window
from unet3d.reading import read_subject
from unet3d.schemes import LabelScheme
from unet3d.shapes import Shape, Sides, as_shape
from unet3d.subjects import SubjectFiles
from unet3d.volumes import header_grid

__all__ = ["CT", "find_windows", "median_grid"]

_UNLIKE = 3.0  # times: voxels that are longer and fewer along one axis
_LOW = 10  # percentile of spacings along such an axis
_ENDS = (0.5, 99.5)  # percentiles
_VOXELS = 10_000  # labelled ones of a scan
CT = "ct"  # the kind of channel that is measured in Hounsfield units


def median_grid(subjects: Sequence[SubjectFiles]) -> tuple[Shape, Sides]:
    """Return the common spacing, in mm, and the median shape of resampled scans."""
    grids = [grid for files in subjects if (grid := header_grid(files))]
    if not grids:
        raise ValueError(
            "`spacing` must be given where no header tells it, got "
            f"{len(subjects)} subjects without. Give three numbers in mm, or keep."
        )
    shapes, spacings = (np.array(one, np.float64) for one in zip(*grids, strict=True))
    spacing, shape = np.median(spacings, axis=0), np.median(shapes, axis=0)
    worst = int(spacing.argmax())
    others = [axis for axis in range(3) if axis != worst]
    longest = spacing[others].max()
    if spacing[worst] > _UNLIKE * longest and (
        _UNLIKE * shape[worst] < shape[others].min()
    ):
        spacing[worst] = max(np.percentile(spacings[:, worst], _LOW), longest)
    resampled = np.median(shapes * spacings / spacing, axis=0)
    depth, height, width = (float(f"{side:.6g}") for side in spacing)
    return as_shape(resampled.round().astype(int).tolist()), (depth, height, width)


def find_windows(
    subjects: Sequence[SubjectFiles], scheme: LabelScheme
) -> tuple[Window | None, ...]:
    """Return a window for each channel of CT, and None for the others."""
    drawn: list[list[np.ndarray]] = [[] for _ in scheme.channels]
    for number, files in enumerate(subjects):
        try:
            subject = read_subject(files, scheme)
        except (OSError, ValueError):  # training refuses it, or leaves it out
            continue
        voxels = subject.images[subject.labels > 0]
        if len(voxels):
            chosen = np.random.default_rng(number).integers(0, len(voxels), _VOXELS)
            for k, values in enumerate(drawn):
                values.append(voxels[chosen, k].astype(np.float64) + subject.shifts[k])
    windows: list[Window | None] = []
    for kind, values in zip(scheme.channels, drawn, strict=True):
        if kind != CT or not values:
            windows.append(None)
            continue
        every = np.concatenate(values)
        low, high = np.percentile(every, _ENDS)
        deviation = every.std() or 1.0
        windows.append((float(low), float(high), float(every.mean()), float(deviation)))
    return tuple(windows)
