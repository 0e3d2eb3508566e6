"""Reads subjects from disk, and refuses bad voxels, labels and grids.

    SubjectFiles --look--> Looked: the readable volumes, and reasons against the others
                 --read_subject--> Subject, or the reasons as an error

NIfTI stores (x, y, z) in any orientation; arrays here are (depth, height, width) =
(z, y, x), turned so that every subject lies the same way (see `unet3d.orientation`).
All volumes of a subject must then lie on one grid: nothing is resampled here.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unet3d.lines import several
from unet3d.orientation import describe_difference, same_grid
from unet3d.pointers import dead_links, not_fetched
from unet3d.schemes import BRATS2017, MODALITIES, SCHEMES, LabelScheme
from unet3d.subjects import SubjectFiles, Volume, files_in
from unet3d.volumes import Stored, Turned, read_stored, turn

__all__ = ["MODALITIES", "Images", "Labels", "Looked", "Scan", "Subject", "look"]
__all__ += ["missing_segmentation", "read_images", "read_labels", "read_segmentation"]
__all__ += ["read_subject"]

Images = NDArray[np.float32]
Labels = NDArray[np.uint8]

_CORNERS = tuple(np.array(list(product((0, -1), repeat=3))).T)
_ROUNDING = 0.01  # most that a scale factor may move a label


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scan:
    """One subject's images.

    `images` have shape (depth, height, width, channel), 0 outside the brain; `affine`
    maps voxel (width, height, depth, 1) to mm. A channel's values as stored are those
    here and its shift.
    """

    name: str
    images: Images
    affine: NDArray[np.float64]
    shifts: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subject(Scan):
    """One subject's images, and its labels of shape (depth, height, width)."""

    labels: Labels


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Looked:
    """The readable volumes of a subject, and the reasons why it cannot be used.

    `images` are in the order of the files; `labels` are float32.
    """

    images: tuple[Turned, ...]
    labels: Turned | None
    reasons: tuple[str, ...]


def look(
    files: SubjectFiles, scheme: LabelScheme | None, *, labelled: bool = True
) -> Looked:
    """Read the readable volumes of a subject, and gather all reasons against it.

    Without a scheme labels may be any whole numbers up to 255.
    """
    reasons: list[str] = []
    grids: list[tuple[Path, Turned]] = []
    stored: dict[Path, Stored] = {}
    for volume in files.images:
        with _noting(reasons):
            if volume.path not in stored:  # a 4-D file holds all: read it once
                stored = {volume.path: read_stored(volume.path, files.name)}
            image = turn(stored[volume.path], volume, files.name)
            grids.append((volume.path, image))
            _check_image(files, volume.path, image.voxels)
            grids[-1] = volume.path, _without_background(image)
    images = tuple(image for _, image in grids)
    labels = None
    if labelled and files.labels is not None:
        with _noting(reasons):
            path = files.labels.path
            labels = turn(read_stored(path, files.name), files.labels, files.name)
            grids.append((path, labels))
            labels = replace(labels, voxels=_check_labels(files, path, labels, scheme))
    for one in grids[1:]:
        with _noting(reasons):
            _check_grid(files, one, grids[0])
    unique = tuple(dict.fromkeys(reasons))
    return Looked(images=images, labels=labels, reasons=unique)


def read_subject(
    source: SubjectFiles | Path, scheme: LabelScheme = BRATS2017
) -> Subject:
    """Read images and segmentation of listed files, or of a BraTS subject's folder.

    The default scheme is for synthetic subjects; other data needs its own. The message
    of an error has all reasons.
    """
    files = source if isinstance(source, SubjectFiles) else files_in(source)
    if files.labels is None:
        raise missing_segmentation(files)
    looked = look(files, scheme)
    scan = _scan(files, looked)
    assert looked.labels is not None  # or there is a reason
    return Subject(
        name=files.name,
        images=scan.images,
        labels=looked.labels.voxels.astype(np.uint8),
        affine=scan.affine,
        shifts=scan.shifts,
    )


def read_images(files: SubjectFiles) -> Scan:
    """Read a subject's images."""
    return _scan(files, look(files, None, labelled=False))


def read_labels(files: SubjectFiles, scheme: LabelScheme) -> Labels:
    """Read a subject's segmentation as in `Subject`."""
    if files.labels is None:
        raise missing_segmentation(files)
    return read_segmentation(files, files.labels, scheme)[0]


def read_segmentation(
    files: SubjectFiles, volume: Volume, scheme: LabelScheme
) -> tuple[Labels, NDArray[np.float64]]:
    """Read a true or predicted segmentation of a subject, and its turned affine."""
    labels = turn(read_stored(volume.path, files.name), volume, files.name)
    voxels = _check_labels(files, volume.path, labels, scheme)
    return voxels.astype(np.uint8), labels.affine


def missing_segmentation(files: SubjectFiles) -> FileNotFoundError:
    """Make the error of a subject that lacks the labels it needs."""
    folder = files.images[0].path.parent
    dead = dead_links(folder)
    if dead:
        return FileNotFoundError(
            f"`folder` must hold the segmentation too, got subject {files.name} with "
            f"{dead[0].name}, {not_fetched(dead[0])}, or leave the subject out."
        )
    wanted, beside = f"{files.name}_seg", ", ".join(path.name for path in files.others)
    if folder.name.lower() in ("imagestr", "imagests"):
        wanted = folder.with_name(f"labels{folder.name[6:]}") / files.name
    asked = f", with {beside}: is it one of them? Save" if beside else ". Add"
    return FileNotFoundError(
        f"`folder` must hold the segmentation too, got subject {files.name} without "
        f"its segmentation in {folder}{asked} it as {wanted}.nii.gz, or leave the "
        "subject out."
    )


@contextmanager
def _noting(reasons: list[str]) -> Generator[None, None, None]:
    """Catch a bad value, and append its message to `reasons`."""
    try:
        yield
    except ValueError as error:
        reasons.append(str(error))


def _scan(files: SubjectFiles, looked: Looked) -> Scan:
    if looked.reasons:
        raise ValueError("\n".join(looked.reasons))
    return Scan(
        name=files.name,
        images=np.stack([image.voxels for image in looked.images], axis=-1),
        affine=looked.images[0].affine,
        shifts=tuple(image.shift for image in looked.images),
    )


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
            f"{several(count, 'voxel')} of NaN or infinity. Repair {path} or leave "
            "the subject out."
        )
    if image.min() == image.max():
        raise ValueError(
            f"`{path.name}` of subject {files.name} must show something, got "
            f"{image.flat[0]:g} in every voxel. Repair {path} or leave the subject out."
        )


def _without_background(image: Turned) -> Turned:
    """Shift the voxels so that the background, and nothing else, is 0.

    The background is the value of at least five of the eight corners, such as a padding
    of -1024, or a 0 that a scale factor moved. Without a background, negative values
    are shifted above 0, as in CT that shows the table.
    """
    voxels = image.voxels
    corners, counts = np.unique(voxels[_CORNERS], return_counts=True)
    if counts.max() > 4:
        background = corners[counts.argmax()]
    elif voxels.min() < 0:
        background = voxels.min() - 1
    else:
        return image
    with np.errstate(over="ignore"):  # values near the end of float32 stay as they are
        moved = voxels - background
    if not np.isfinite(moved).all():
        return image
    return replace(image, voxels=moved, shift=float(background))


def _check_labels(
    files: SubjectFiles, path: Path, labels: Turned, scheme: LabelScheme | None
) -> Images:
    """Round labels to whole numbers, and refuse values that are not the scheme's."""
    with np.errstate(invalid="ignore"):
        voxels = np.rint(labels.voxels)
        near = np.abs(voxels - labels.voxels) <= _ROUNDING
    if scheme is None:
        known = near & (voxels >= 0) & (voxels <= 255)
        rule, advice = "whole numbers from 0 to 255", f"Save {path} as labels"
    else:
        # One comparison per value: np.unique would sort every voxel of the volume.
        known = near & np.logical_or.reduce([voxels == v for v in scheme.values])
        *most, last = scheme.values
        rule = f"the labels {', '.join(map(str, most))} and {last} of label scheme "
        rule += scheme.name
        own = f"Add them to {scheme.name}"
        if scheme.name in SCHEMES:
            own = "Choose the data's own scheme"
        advice = f"{own}, or map the labels of {path} first"
    if not known.all():
        values = labels.voxels[~known]
        wrong = _first(values)
        if scheme and 4 in values and 4 not in scheme.values:
            wrong += " (4 is the resection cavity in brats2024, no tumour)"
        raise ValueError(
            f"`{path.name}` of subject {files.name} must hold {rule}, got {wrong} too. "
            f"{advice}."
        )
    return voxels


def _first(values: Images) -> str:
    """List up to five different values."""
    return ", ".join(f"{value:.7g}" for value in np.unique(values)[:5])
