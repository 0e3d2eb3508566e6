"""Writes synthetic subjects to disk in the layout of BraTS.

One folder per subject with four modalities (int16) and the segmentation (uint8, labels
0, 1, 2 and 4) of 240 x 240 x 155 voxels of 1 mm. The same seed gives the same voxels;
subject 7 is the same whether 8 or 80 are made.

Known weaknesses: an interrupted run leaves a `partial-*` file behind, never a half
written subject file. Bytes may differ between machines whose linear algebra
rounds differently.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lms.storage.files import draft_of
from unet3d.extras import nibabel
from unet3d.lines import check_integer
from unet3d.phantom import Phantom, draw_phantom

__all__ = ["AFFINE", "GRID", "save_volume", "synthesize", "write_subject"]

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
    """Write synthetic subjects below `output`, and return their folders.

    Subjects of the same name are replaced, other files stay. `progress` is called with
    a subject's folder as soon as it is complete.
    """
    check_integer("subjects", subjects, least=1, advice="Ask for one or more.")
    check_integer("seed", seed, least=0, advice="Use 0 or a positive number.")
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
    """Write one subject's five files, its box from `corner` (x, y, z) of `GRID`."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = phantom.labels.shape
    brain = tuple(slice(c, c + n) for c, n in zip(corner, shape, strict=True))
    for name, box in {**phantom.images, "seg": phantom.labels}.items():
        volume: NDArray[np.integer] = np.zeros(GRID, dtype=box.dtype, order="F")
        volume[brain] = box
        save_volume(volume, AFFINE, folder / f"{folder.name}_{name}.nii.gz")


def save_volume(volume: NDArray[np.integer], affine: NDArray[Any], path: Path) -> None:
    """Write a file by renaming its draft, so that a file is complete or absent."""
    image = nibabel.Nifti1Image(volume, affine)
    image.header.set_xyzt_units("mm", "sec")
    with draft_of(path) as draft:
        nibabel.save(image, draft)


def _place(extents: tuple[int, ...], rng: np.random.Generator) -> tuple[int, int, int]:
    """Draw the corner of the bounding box: near the grid's middle, always inside."""
    slack = np.array(GRID) - np.array(extents)
    corner = slack // 2 + np.rint(rng.normal(0, 2, 3)).astype(int)
    x, y, z = np.clip(corner, 0, slack)
    return int(x), int(y), int(z)
