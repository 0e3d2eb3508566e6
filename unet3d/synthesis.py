"""Writes synthetic subjects to disk in the layout of BraTS.

One folder per subject with four modalities and the segmentation, each a NIfTI file of
240 x 240 x 155 voxels of 1 mm:

    synthetic_000/synthetic_000_flair.nii.gz     int16
    synthetic_000/synthetic_000_t1.nii.gz        int16
    synthetic_000/synthetic_000_t1ce.nii.gz      int16
    synthetic_000/synthetic_000_t2.nii.gz        int16
    synthetic_000/synthetic_000_seg.nii.gz       uint8, labels 0, 1, 2 and 4

The same seed gives the same voxels; subject 7 is the same whether 8 or 80 are made.
Bytes may differ between machines whose linear algebra rounds differently.

Known weakness: an interrupted run leaves a `partial-*` file behind, never a half
written subject file.
"""

from collections.abc import Callable
from pathlib import Path

import nibabel
import numpy as np
from numpy.typing import NDArray

from lms.storage.files import draft_of
from unet3d.phantom import Phantom, draw_phantom

__all__ = ["AFFINE", "GRID", "synthesize", "write_subject"]

# The grid of BraTS in (x, y, z) voxels, and its affine to millimetres: x runs to the
# patient's left and y to the back (BraTS 2017 data, registered to the SRI24 atlas).
GRID = (240, 240, 155)
AFFINE = np.array(
    [[-1, 0, 0, 0], [0, -1, 0, GRID[1] - 1], [0, 0, 1, 0], [0, 0, 0, 1]], dtype=float
)
AFFINE.setflags(write=False)


def synthesize(
    output: Path,
    *,
    subjects: int,
    seed: int,
    progress: Callable[[Path], None] | None = None,
) -> tuple[Path, ...]:
    """Write `subjects` synthetic subjects below `output`.

    Args:
        output: Folder of the data set; made if missing. Subjects of the same name are
            replaced, other files stay.
        subjects: How many to write, at least 1.
        seed: Not negative; the same seed gives the same voxels.
        progress: Called with a subject's folder as soon as it is complete.

    Returns:
        The subjects' folders, in order.

    Raises:
        TypeError: If `subjects` or `seed` is not an integer.
        ValueError: If `subjects` is less than 1 or `seed` is negative.

    Example:
        >>> synthesize(Path("data"), subjects=0, seed=0)
        Traceback (most recent call last):
        ...
        ValueError: `subjects` must be at least 1, got 0. Ask for one or more.
    """
    _check_integer("subjects", subjects, least=1, advice="Ask for one or more.")
    _check_integer("seed", seed, least=0, advice="Use 0 or a positive number.")
    folders = []
    for index in range(subjects):
        phantom = draw_phantom(rng := np.random.default_rng([seed, index]))
        folder = Path(output) / f"synthetic_{index:03d}"
        write_subject(folder, phantom, corner=_place(phantom.labels.shape, rng))
        folders.append(folder)
        if progress is not None:
            progress(folder)
    return tuple(folders)


def write_subject(
    folder: Path, phantom: Phantom, *, corner: tuple[int, int, int]
) -> None:
    """Write one subject's five files.

    Args:
        folder: The subject's folder; made if missing. Its name starts every file name.
        phantom: The brain to write.
        corner: Voxel (x, y, z) of `GRID` at which the brain's bounding box starts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shape = phantom.labels.shape
    brain = tuple(slice(c, c + n) for c, n in zip(corner, shape, strict=True))
    for name, box in {**phantom.images, "seg": phantom.labels}.items():
        volume: NDArray[np.integer] = np.zeros(GRID, dtype=box.dtype, order="F")
        volume[brain] = box
        _save(volume, folder / f"{folder.name}_{name}.nii.gz")


def _check_integer(name: str, value: int, *, least: int, advice: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        kind = type(value).__name__
        raise TypeError(f"`{name}` must be an integer, got {kind}. Pass an int.")
    if value < least:
        raise ValueError(f"`{name}` must be at least {least}, got {value}. {advice}")


def _place(extents: tuple[int, ...], rng: np.random.Generator) -> tuple[int, int, int]:
    """Corner of the bounding box: near the middle of the grid, always inside it."""
    slack = np.array(GRID) - np.array(extents)
    corner = slack // 2 + np.rint(rng.normal(0, 2, 3)).astype(int)
    x, y, z = np.clip(corner, 0, slack)
    return int(x), int(y), int(z)


def _save(volume: NDArray[np.integer], path: Path) -> None:
    """Write under a temporary name, then rename: a file is complete or absent."""
    image = nibabel.Nifti1Image(volume, AFFINE)
    image.header.set_xyzt_units("mm", "sec")
    with draft_of(path) as draft:
        nibabel.save(image, draft)
