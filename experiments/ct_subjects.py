"""Writes synthetic CT in nnU-Net's layout: a body, an organ, a tumour in the organ.

    python -m experiments.ct_subjects FOLDER SUBJECTS SEED

For `docs/patch_or_whole.md`. One channel, two labels, 2 mm; extents differ by subject.
Tumours have a radius of 3 to 6 voxels, so that a resized volume shows them coarsely.
"""

import json
import sys
from pathlib import Path

import numpy as np

from unet3d.extras import nibabel

__all__ = ["write_subjects"]

_AIR, _BODY, _ORGAN, _TUMOUR = -1000, 40, 110, 60  # Hounsfield units
_NOISE = 25


def write_subjects(data: Path, subjects: int, seed: int) -> None:
    """Write a data set; the same seed gives the same voxels."""
    for folder in ("imagesTr", "labelsTr"):
        (data / folder).mkdir(parents=True, exist_ok=True)
    for index in range(subjects):
        rng = np.random.default_rng([seed, index])
        shape = rng.integers((56, 52, 40), (72, 64, 52))
        grid = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"))
        middle = shape / 2 + rng.uniform(-3, 3, 3)
        body = _ball(grid, shape / 2, shape / 2.2)
        organ = body & _ball(grid, middle, rng.uniform(12, 18, 3))
        places = np.argwhere(organ & _ball(grid, middle, rng.uniform(7, 9, 3)))
        tumour = organ & _ball(grid, rng.choice(places), rng.uniform(3, 6, 3))
        image = np.select([tumour, organ, body], [_TUMOUR, _ORGAN, _BODY], _AIR)
        image = image + rng.normal(0, _NOISE, image.shape) * body
        name = f"ct_{seed}{index:03d}"
        _save(data / "imagesTr" / f"{name}_0000.nii.gz", image.astype(np.int16))
        _save(data / "labelsTr" / f"{name}.nii.gz", organ.astype(np.uint8) + tumour)
    labels = {"background": 0, "organ": [1, 2], "tumour": 2}
    content = {"channel_names": {"0": "CT"}, "labels": labels}
    content |= {"numTraining": subjects, "file_ending": ".nii.gz"}
    (data / "dataset.json").write_text(json.dumps(content, indent=1))


def _save(path: Path, voxels: np.ndarray) -> None:
    nibabel.save(nibabel.Nifti1Image(voxels, np.diag([-2.0, -2.0, 2.0, 1.0])), path)


def _ball(grid: np.ndarray, centre: np.ndarray, radii: np.ndarray) -> np.ndarray:
    places = (slice(None), None, None, None)
    apart = (grid - centre[places]) / np.asarray(radii)[places]
    return (apart**2).sum(axis=0) < 1


if __name__ == "__main__":
    write_subjects(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
