"""Subjects of a few voxels, in every layout."""

import json
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from numpy.typing import NDArray

from unet3d.reading import Images, Labels

LABELS = {"background": 0, "bone": 1, "cartilage": 2, "lesion": 3}

SHAPE = (6, 5, 4)  # (x, y, z), as stored
LPS = np.diag([-1.0, -1.0, 1.0, 1.0])
BRATS2017_ENDS = ("_flair", "_t1", "_t1ce", "_t2", "_seg")
BRATS2023_ENDS = ("-t2f", "-t1n", "-t1c", "-t2w", "-seg")


def volumes(values: tuple[int, int, int] = (1, 2, 4)) -> list[NDArray[Any]]:
    """Four modalities of a brain of 4 x 3 x 2 voxels, and one voxel per label."""
    images = []
    for number in range(1, 5):
        image = np.zeros(SHAPE, np.int16)
        image[1:5, 1:4, 1:3] = 100 * number + np.arange(24).reshape(4, 3, 2)
        images.append(image)
    labels = np.zeros(SHAPE, np.uint8)
    labels[1, 1, 1], labels[2, 1, 1], labels[3, 1, 1] = values
    return [*images, labels]


def save(path: Path, voxels: NDArray[Any], affine: NDArray[Any] = LPS) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(voxels, affine), path)


def write_folder(
    folder: Path,
    *,
    ends: tuple[str, ...] = BRATS2017_ENDS,
    values: tuple[int, int, int] = (1, 2, 4),
    extension: str = "nii.gz",
    affine: NDArray[Any] = LPS,
) -> Path:
    for end, voxels in zip(ends, volumes(values), strict=True):
        save(folder / f"{folder.name}{end}.{extension}", voxels, affine)
    return folder


def write_decathlon(data: Path, names: tuple[str, ...] = ("BRATS_001",)) -> Path:
    """Modalities in another order than ours, and one test image without labels."""
    *images, labels = volumes((2, 1, 3))
    stacked = np.stack([images[k] for k in (0, 2, 1, 3)], axis=-1)
    for name in names:
        save(data / "imagesTr" / f"{name}.nii.gz", stacked)
        save(data / "labelsTr" / f"{name}.nii.gz", labels)
    save(data / "imagesTs" / "BRATS_900.nii.gz", stacked)
    listing = {
        "labels": {"0": "background", "1": "edema"}
        | {"2": "non-enhancing tumor", "3": "enhancing tumour"},
        "modality": {"0": "FLAIR", "1": "t1gd", "2": "T1w", "3": "T2w"},
        "training": [
            {"image": f"./imagesTr/{n}.nii.gz", "label": f"./labelsTr/{n}.nii.gz"}
            for n in names
        ],
        "test": ["./imagesTs/BRATS_900.nii.gz"],
    }
    (data / "dataset.json").write_text(json.dumps(listing))
    return data


def example(size: int = 8, seed: int = 0) -> tuple[Images, Labels]:
    """A prepared subject: a background corner, and regions that can be learnt."""
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(size, size, size, 4)).astype(np.float32)
    images[0, 0, 0] = 0
    regions = (images[..., :3] > 0.5).astype(np.uint8)
    return images, regions


def write_knees(data: Path, count: int = 6) -> Path:
    """Scans of several sizes and spacings, with a lesion inside of the cartilage."""
    for number in range(count):
        rng = np.random.default_rng(number)
        shape = (10, 9 + number % 3, 8)
        labels = np.full(shape, 2, np.uint8)
        labels[2:5, 2:6, 2:6], labels[7:9, 3:6, 2:5] = 1, 3
        affine = np.diag([-0.8, -0.8, 1.0 + number % 2, 1])
        for channel in range(2):
            image = 100 + 40 * (channel + 1) * labels + rng.normal(0, 5, shape)
            image[0] = 0
            path = data / "imagesTr" / f"knee_{number}_{channel:04d}.nii.gz"
            save(path, image.astype(np.float32), affine)
        save(data / "labelsTr" / f"knee_{number}.nii.gz", labels, affine)
    content = {"channel_names": {"0": "T1", "1": "T2"}, "labels": LABELS}
    (data / "dataset.json").write_text(json.dumps(content))
    return data
