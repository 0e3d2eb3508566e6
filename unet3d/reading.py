"""Reads BraTS subjects from disk, and refuses those that would train on nonsense.

A subject is a folder `<name>` with `<name>_flair`, `_t1`, `_t1ce`, `_t2` and `_seg`,
each a NIfTI volume (`.nii.gz` or `.nii`).

NIfTI stores (x, y, z); arrays here are (depth, height, width) = (z, y, x), so that a
slice along the first axis is an axial image.

Source: file names and label values of the BraTS 2017 data description.
"""

import zlib
from dataclasses import dataclass
from pathlib import Path

import nibabel
import numpy as np
from nibabel.filebasedimages import ImageFileError
from numpy.typing import NDArray

__all__ = ["LABEL_VALUES", "MODALITIES", "Images", "Labels", "Subject", "read_subject"]

MODALITIES = ("flair", "t1", "t1ce", "t2")
LABEL_VALUES = (0, 1, 2, 4)

Images = NDArray[np.float32]
Labels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subject:
    """One subject's volumes.

    Args:
        name: The folder's name.
        images: float32 of shape (depth, height, width, channel), channels in the order
            of `MODALITIES`, zero outside the brain.
        labels: uint8 of shape (depth, height, width), values of `LABEL_VALUES`.
        affine: Shape (4, 4); maps voxel (width, height, depth, 1) to millimetres.
    """

    name: str
    images: Images
    labels: Labels
    affine: NDArray[np.float64]


def read_subject(folder: Path) -> Subject:
    """Read `<folder>/<name>_<modality>.nii.gz` and `<name>_seg.nii.gz`.

    Args:
        folder: A subject's folder; its name starts the name of every file.

    Raises:
        FileNotFoundError: If the folder or a file is missing.
        ValueError: If a file is no readable NIfTI volume, shapes differ, an image holds
            NaN or infinity or is zero everywhere, or labels are not 0, 1, 2 or 4.

    Example:
        >>> read_subject(Path("nowhere"))
        Traceback (most recent call last):
        ...
        FileNotFoundError: `folder` must be a subject's folder, got 'nowhere'. Pass \
one that holds nowhere_flair.nii.gz and its siblings.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"`folder` must be a subject's folder, got '{folder}'. "
            f"Pass one that holds {folder.name}_flair.nii.gz and its siblings."
        )
    files = {name: _find(folder, name) for name in (*MODALITIES, "seg")}
    first, affine = _load(files[MODALITIES[0]])
    images = np.empty((*first.shape, len(MODALITIES)), dtype=np.float32)
    for channel, modality in enumerate(MODALITIES):
        voxels = first if channel == 0 else _load(files[modality])[0]
        _check_shape(files[modality], voxels.shape, first.shape)
        _check_image(files[modality], voxels)
        images[..., channel] = voxels
    labels, _ = _load(files["seg"])
    _check_shape(files["seg"], labels.shape, first.shape)
    _check_labels(files["seg"], labels)
    return Subject(
        name=folder.name,
        images=images,
        labels=labels.astype(np.uint8),
        affine=affine,
    )


def _find(folder: Path, name: str) -> Path:
    """Path of one of a subject's files, compressed or not."""
    path = folder / f"{folder.name}_{name}.nii.gz"
    plain = path.with_suffix("")
    if path.is_file():
        return path
    if plain.is_file():
        return plain
    kind = "segmentation" if name == "seg" else f"modality '{name}'"
    raise FileNotFoundError(
        f"`folder` must hold every modality and the segmentation, got subject "
        f"{folder.name} without its {kind}. Add {path} or leave the subject out."
    )


def _load(path: Path) -> tuple[Images, NDArray[np.float64]]:
    """Voxels in (depth, height, width) and the affine of one file."""
    try:
        image = nibabel.Nifti1Image.from_filename(path)
        voxels = np.asarray(image.dataobj, dtype=np.float32)
    except (ImageFileError, OSError, EOFError, zlib.error) as error:
        raise ValueError(
            f"`{path.name}` of subject {path.parent.name} must be a NIfTI volume, got "
            f"a file that cannot be read ({error}). Copy or download it again."
        ) from error
    return voxels.T, np.asarray(image.affine, dtype=np.float64)


def _check_shape(path: Path, shape: tuple[int, ...], first: tuple[int, ...]) -> None:
    if len(shape) != 3:
        raise ValueError(
            f"`{path.name}` of subject {path.parent.name} must have 3 axes, got shape "
            f"{shape[::-1]}. Save one volume per file."
        )
    if shape != first:
        raise ValueError(
            f"`{path.name}` of subject {path.parent.name} must have the shape of the "
            f"subject's first modality, {first[::-1]}, got {shape[::-1]}. Register all "
            "files to one grid."
        )


def _check_image(path: Path, image: Images) -> None:
    if not np.isfinite(image).all():
        count = int(np.count_nonzero(~np.isfinite(image)))
        raise ValueError(
            f"`{path.name}` of subject {path.parent.name} must hold finite numbers, "
            f"got {count} voxels of NaN or infinity. Repair the file or leave the "
            "subject out."
        )
    if not image.any():
        raise ValueError(
            f"`{path.name}` of subject {path.parent.name} must show a brain, got only "
            "zeros. Repair the file or leave the subject out."
        )


def _check_labels(path: Path, labels: Images) -> None:
    # One comparison per value: np.unique would sort every voxel of the volume.
    known = np.zeros(labels.shape, dtype=np.bool_)
    for value in LABEL_VALUES:
        known |= labels == value
    if not known.all():
        wrong = np.unique(labels[~known])[:5].tolist()
        raise ValueError(
            f"`{path.name}` of subject {path.parent.name} must hold the labels 0, 1, 2 "
            f"and 4, got {wrong} too. Map them to BraTS 2017's labels first."
        )
