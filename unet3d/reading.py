"""Reads subjects from disk, and refuses those that would train on nonsense.

NIfTI stores (x, y, z) in any orientation; arrays here are (depth, height, width) =
(z, y, x), turned so that every subject lies the same way (see `unet3d.orientation`).

Known weakness: modalities must have equal shapes and lie the same way, but offsets
between their affines are not looked at: BraTS files are registered to one grid.
"""

import zlib
from dataclasses import dataclass
from pathlib import Path

import nibabel
import numpy as np
from nibabel.filebasedimages import ImageFileError
from nibabel.spatialimages import HeaderDataError
from nibabel.wrapstruct import WrapStructError
from numpy.typing import NDArray

from unet3d.orientation import to_canonical
from unet3d.schemes import BRATS2017, LabelScheme
from unet3d.subjects import MODALITIES, SubjectFiles, Volume, files_in

__all__ = ["MODALITIES", "Images", "Labels", "Subject", "read_images", "read_labels"]
__all__ += ["read_segmentation", "read_subject"]

Images = NDArray[np.float32]
Labels = NDArray[np.uint8]

# What nibabel raises for files that are cut off or no NIfTI.
_UNREADABLE = (ImageFileError, HeaderDataError, WrapStructError, OSError, EOFError)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subject:
    """One subject's volumes.

    Args:
        name: Unique in its data set.
        images: float32 of shape (depth, height, width, channel), channels in the order
            of `MODALITIES`, zero outside the brain.
        labels: uint8 of shape (depth, height, width), values of a label scheme.
        affine: Shape (4, 4); maps voxel (width, height, depth, 1) to millimetres.
    """

    name: str
    images: Images
    labels: Labels
    affine: NDArray[np.float64]


def read_subject(
    source: SubjectFiles | Path, scheme: LabelScheme = BRATS2017
) -> Subject:
    """Read a subject's modalities and its segmentation.

    Args:
        source: What `find_subjects` found, or a BraTS subject's folder.
        scheme: What the segmentation's values mean. The default is for synthetic
            subjects; whoever has other data must choose.

    Raises:
        FileNotFoundError: If the folder or a file is missing.
        ValueError: If a file is no readable NIfTI volume, shapes differ, an image holds
            NaN or infinity or is zero everywhere, or a label is not in the scheme.

    Example:
        >>> read_subject(Path("nowhere"))
        Traceback (most recent call last):
        ...
        FileNotFoundError: `folder` must be a subject's folder, got 'nowhere'. Pass \
one that holds nowhere_flair.nii.gz and its siblings.
    """
    files = source if isinstance(source, SubjectFiles) else files_in(source)
    if files.labels is None:
        raise _missing_segmentation(files)
    images, affine = read_images(files)
    labels = read_labels(files, scheme)
    _check_shape(files, files.labels.path, labels.shape, images.shape[:3])
    return Subject(name=files.name, images=images, labels=labels, affine=affine)


def read_images(files: SubjectFiles) -> tuple[Images, NDArray[np.float64]]:
    """Read a subject's modalities.

    Returns:
        Images as in `Subject`, and the affine that goes with them.

    Raises:
        ValueError: As `read_subject` does.
    """
    loaded: dict[Path, tuple[NDArray, NDArray[np.float64]]] = {}
    channels: list[NDArray] = []
    axes: tuple[str, ...] = ()
    affine = np.eye(4)
    for volume in files.images:
        if volume.path not in loaded:  # a 4-D file holds every modality: read it once
            loaded = {volume.path: _load(files, volume.path)}
        stored, stored_affine = loaded[volume.path]
        voxels, turned = _turn(files, volume, stored, stored_affine)
        if not channels:
            affine, axes = turned, nibabel.aff2axcodes(stored_affine)
        _check_shape(files, volume.path, voxels.shape, (channels or [voxels])[0].shape)
        _check_axes(files, volume.path, nibabel.aff2axcodes(stored_affine), axes)
        _check_image(files, volume.path, voxels)
        channels.append(voxels)
    return np.stack(channels, axis=-1), affine


def read_labels(files: SubjectFiles, scheme: LabelScheme) -> Labels:
    """Read a subject's segmentation.

    Returns:
        uint8 of shape (depth, height, width), values of `scheme`.

    Raises:
        FileNotFoundError: If the subject has none.
        ValueError: As `read_subject` does.
    """
    if files.labels is None:
        raise _missing_segmentation(files)
    return read_segmentation(files, files.labels, scheme)[0]


def read_segmentation(
    files: SubjectFiles, volume: Volume, scheme: LabelScheme
) -> tuple[Labels, NDArray[np.float64]]:
    """Read one segmentation, of `files` or predicted for it, and its turned affine."""
    stored, stored_affine = _load(files, volume.path)
    labels, affine = _turn(files, volume, stored, stored_affine)
    _check_labels(files, volume.path, labels, scheme)
    return labels.astype(np.uint8), affine


def _missing_segmentation(files: SubjectFiles) -> FileNotFoundError:
    folder = files.images[0].path.parent
    return FileNotFoundError(
        f"`folder` must hold the segmentation too, got subject {files.name} without "
        f"its segmentation in {folder}. Add it or leave the subject out."
    )


def _load(files: SubjectFiles, path: Path) -> tuple[Images, NDArray[np.float64]]:
    """Voxels as stored and the affine of one file."""
    try:
        image = nibabel.Nifti1Image.from_filename(path)
        voxels = np.asarray(image.dataobj, dtype=np.float32)
    except (*_UNREADABLE, zlib.error) as error:
        raise ValueError(
            f"`{path.name}` of subject {files.name} must be a NIfTI volume, got a file "
            f"that cannot be read ({error}). Copy or download {path} again."
        ) from error
    return voxels, np.asarray(image.affine, dtype=np.float64)


def _turn(
    files: SubjectFiles, volume: Volume, stored: Images, affine: NDArray[np.float64]
) -> tuple[Images, NDArray[np.float64]]:
    """One volume in (depth, height, width), and its affine."""
    name, axes = volume.path.name, 3 if volume.index is None else 4
    if stored.ndim != axes or (volume.index or 0) >= stored.shape[-1]:
        wanted = "3 axes" if axes == 3 else "4 axes, one volume for each modality"
        raise ValueError(
            f"`{name}` of subject {files.name} must have {wanted}, got shape "
            f"{stored.shape}. Save it as its data set describes."
        )
    voxels = stored if volume.index is None else stored[..., volume.index]
    try:
        return to_canonical(voxels, affine)
    except ValueError as error:
        raise ValueError(f"`{name}` of subject {files.name}: {error}") from error


def _check_shape(
    files: SubjectFiles, path: Path, shape: tuple[int, ...], first: tuple[int, ...]
) -> None:
    if shape != first:
        raise ValueError(
            f"`{path.name}` of subject {files.name} must have the shape of the "
            f"subject's first modality, {first[::-1]}, got {shape[::-1]}. Register all "
            "files to one grid."
        )


def _check_axes(
    files: SubjectFiles, path: Path, axes: tuple[str, ...], first: tuple[str, ...]
) -> None:
    if axes != first:
        raise ValueError(
            f"`{path.name}` of subject {files.name} must lie as the subject's first "
            f"modality, axes {''.join(first)}, got {''.join(axes)}. Register all files "
            "to one grid."
        )


def _check_image(files: SubjectFiles, path: Path, image: Images) -> None:
    if not np.isfinite(image).all():
        count = int(np.count_nonzero(~np.isfinite(image)))
        raise ValueError(
            f"`{path.name}` of subject {files.name} must hold finite numbers, got "
            f"{count} voxels of NaN or infinity. Repair {path} or leave the subject "
            "out."
        )
    if not image.any():
        raise ValueError(
            f"`{path.name}` of subject {files.name} must show a brain, got only zeros. "
            f"Repair {path} or leave the subject out."
        )


def _check_labels(
    files: SubjectFiles, path: Path, labels: Images, scheme: LabelScheme
) -> None:
    # One comparison per value: np.unique would sort every voxel of the volume.
    known = np.zeros(labels.shape, dtype=np.bool_)
    for value in scheme.values:
        known |= labels == value
    if not known.all():
        wrong = np.unique(labels[~known])[:5].tolist()
        *most, last = scheme.values
        cavity = " (4 is the resection cavity in BraTS 2024, no tumour)"
        raise ValueError(
            f"`{path.name}` of subject {files.name} must hold the labels "
            f"{', '.join(map(str, most))} and {last} of label scheme {scheme.name}, "
            f"got {wrong} too{cavity if 4.0 in wrong else ''}. Choose the data's own "
            f"scheme, or map the labels of {path} first."
        )
