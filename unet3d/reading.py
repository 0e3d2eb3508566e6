"""Reads subjects from disk, and refuses those that would train on nonsense.

    SubjectFiles --look--> Looked: what can be read, and every reason against the rest
                 --read_subject--> Subject, or the reasons as an error

NIfTI stores (x, y, z) in any orientation; arrays here are (depth, height, width) =
(z, y, x), turned so that every subject lies the same way (see `unet3d.orientation`).
All volumes of a subject must then lie on one grid (see `unet3d.grids`): nothing is
resampled here.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unet3d.grids import describe_difference, same_grid
from unet3d.schemes import BRATS2017, LabelScheme
from unet3d.subjects import MODALITIES, SubjectFiles, Volume, files_in
from unet3d.volumes import Stored, Turned, read_stored, turn

__all__ = ["MODALITIES", "Images", "Labels", "Looked", "Subject", "look"]
__all__ += ["missing_segmentation", "read_images", "read_labels", "read_segmentation"]
__all__ += ["read_subject"]

Images = NDArray[np.float32]
Labels = NDArray[np.uint8]


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Looked:
    """What came of reading a subject's files.

    Args:
        images: Those modalities that could be read, in the order of the files.
        labels: The segmentation, still float32; None if there is none to be read.
        reasons: Why the subject cannot be used; empty if it can.
    """

    images: tuple[Turned, ...]
    labels: Turned | None
    reasons: tuple[str, ...]


def look(
    files: SubjectFiles, scheme: LabelScheme | None, *, labelled: bool = True
) -> Looked:
    """Read what can be read of a subject, and gather all that speaks against it.

    Args:
        files: The subject's files.
        scheme: Which labels may be there; None for any whole number up to 255.
        labelled: Whether the segmentation is looked at, if there is one.
    """
    reasons: list[str] = []
    grids: list[tuple[Path, Turned]] = []
    stored: dict[Path, Stored] = {}
    for volume in files.images:
        with _noting(reasons):
            if volume.path not in stored:  # a 4-D file holds all: read it once
                stored = {volume.path: read_stored(volume.path, files.name)}
            grids.append((volume.path, turn(stored[volume.path], volume, files.name)))
            _check_image(files, volume.path, grids[-1][1].voxels)
    images = tuple(image for _, image in grids)
    labels = None
    if labelled and files.labels is not None:
        with _noting(reasons):
            path = files.labels.path
            labels = turn(read_stored(path, files.name), files.labels, files.name)
            grids.append((path, labels))
            _check_labels(files, path, labels.voxels, scheme)
    for one in grids[1:]:
        with _noting(reasons):
            _check_grid(files, one, grids[0])
    unique = tuple(dict.fromkeys(reasons))
    return Looked(images=images, labels=labels, reasons=unique)


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
        ValueError: If a file is no readable NIfTI volume, grids differ, an image holds
            NaN or infinity or one value everywhere, or a label is not in the scheme.
            The message has all reasons.

    Example:
        >>> read_subject(Path("nowhere"))
        Traceback (most recent call last):
        ...
        FileNotFoundError: `folder` must be a subject's folder, got 'nowhere'. Pass \
one that holds nowhere_flair.nii.gz and its siblings.
    """
    files = source if isinstance(source, SubjectFiles) else files_in(source)
    if files.labels is None:
        raise missing_segmentation(files)
    looked = look(files, scheme)
    images, affine = _images(looked)
    assert looked.labels is not None  # or there is a reason
    labels = looked.labels.voxels.astype(np.uint8)
    return Subject(name=files.name, images=images, labels=labels, affine=affine)


def read_images(files: SubjectFiles) -> tuple[Images, NDArray[np.float64]]:
    """Read a subject's modalities.

    Returns:
        Images as in `Subject`, and the affine that goes with them.

    Raises:
        ValueError: As `read_subject` does.
    """
    return _images(look(files, None, labelled=False))


def read_labels(files: SubjectFiles, scheme: LabelScheme) -> Labels:
    """Read a subject's segmentation.

    Returns:
        uint8 of shape (depth, height, width), values of `scheme`.

    Raises:
        FileNotFoundError: If the subject has none.
        ValueError: As `read_subject` does.
    """
    if files.labels is None:
        raise missing_segmentation(files)
    return read_segmentation(files, files.labels, scheme)[0]


def read_segmentation(
    files: SubjectFiles, volume: Volume, scheme: LabelScheme
) -> tuple[Labels, NDArray[np.float64]]:
    """Read one segmentation, of `files` or predicted for it, and its turned affine."""
    labels = turn(read_stored(volume.path, files.name), volume, files.name)
    _check_labels(files, volume.path, labels.voxels, scheme)
    return labels.voxels.astype(np.uint8), labels.affine


def missing_segmentation(files: SubjectFiles) -> FileNotFoundError:
    """What is said of a subject without labels, where they are needed."""
    folder = files.images[0].path.parent
    return FileNotFoundError(
        f"`folder` must hold the segmentation too, got subject {files.name} without "
        f"its segmentation in {folder}. Add it or leave the subject out."
    )


@contextmanager
def _noting(reasons: list[str]) -> Generator[None, None, None]:
    """Go on after a bad value, with its message in the list."""
    try:
        yield
    except ValueError as error:
        reasons.append(str(error))


def _images(looked: Looked) -> tuple[Images, NDArray[np.float64]]:
    if looked.reasons:
        raise ValueError("\n".join(looked.reasons))
    channels = [image.voxels for image in looked.images]
    return np.stack(channels, axis=-1), looked.images[0].affine


def _check_grid(
    files: SubjectFiles, one: tuple[Path, Turned], first: tuple[Path, Turned]
) -> None:
    (path, volume), (first_path, wanted) = one, first
    shape, expected = volume.voxels.shape, wanted.voxels.shape
    if shape != expected:
        raise ValueError(
            f"`{path.name}` of subject {files.name} must have the shape of "
            f"`{first_path.name}`, {expected[::-1]}, got {shape[::-1]}. Resample "
            f"{path} to that grid."
        )
    if not same_grid(wanted.affine, volume.affine, expected):
        right, got = describe_difference(wanted.stored.affine, volume.stored.affine)
        raise ValueError(
            f"`{path.name}` of subject {files.name} must lie on the grid of "
            f"`{first_path.name}`, {right}, got {got}. Resample {path} to that "
            "grid, or mend its header if it lies there already."
        )


def _check_image(files: SubjectFiles, path: Path, image: Images) -> None:
    if not np.isfinite(image).all():
        count = int(np.count_nonzero(~np.isfinite(image)))
        raise ValueError(
            f"`{path.name}` of subject {files.name} must hold finite numbers, got "
            f"{count} voxels of NaN or infinity. Repair {path} or leave the subject "
            "out."
        )
    if image.min() == image.max():
        raise ValueError(
            f"`{path.name}` of subject {files.name} must show a brain, got "
            f"{image.flat[0]:g} in every voxel. Repair {path} or leave the subject out."
        )


def _check_labels(
    files: SubjectFiles, path: Path, labels: Images, scheme: LabelScheme | None
) -> None:
    if scheme is None:
        _check_whole(files, path, labels)
        return
    # One comparison per value: np.unique would sort every voxel of the volume.
    known = np.zeros(labels.shape, dtype=np.bool_)
    for value in scheme.values:
        known |= labels == value
    if not known.all():
        wrong = _first(labels[~known])
        *most, last = scheme.values
        cavity = " (4 is the resection cavity in BraTS 2024, no tumour)"
        raise ValueError(
            f"`{path.name}` of subject {files.name} must hold the labels "
            f"{', '.join(map(str, most))} and {last} of label scheme {scheme.name}, "
            f"got {wrong} too{cavity if 4.0 in wrong else ''}. Choose the data's own "
            f"scheme, or map the labels of {path} first."
        )


def _check_whole(files: SubjectFiles, path: Path, labels: Images) -> None:
    wrong = labels[~((labels >= 0) & (labels <= 255) & (labels == np.round(labels)))]
    if wrong.size:
        raise ValueError(
            f"`{path.name}` of subject {files.name} must hold whole numbers from 0 to "
            f"255, got {_first(wrong)} too. Save {path} as labels."
        )


def _first(values: Images) -> list[float]:
    """A few of the values, short enough to be read."""
    return [float(f"{value:.7g}") for value in np.unique(values)[:5]]
