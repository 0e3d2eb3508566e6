"""Reads one NIfTI file, and turns its volumes to canonical axes.

    path --header, checked--> voxels as stored, affine --turn--> Turned

A header is checked before memory is allocated: a damaged header may promise more voxels
than any machine holds. Free memory is the system's, which may exceed a container's.

Assumptions: deflate, which `.nii.gz` is packed by, makes nothing smaller than one byte
of 1032 (Mark Adler, zlib's technical details).
"""

import gzip
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import numpy as np
import psutil
from numpy.typing import NDArray

from unet3d.extras import data_type_codes, nibabel
from unet3d.orientation import to_canonical, voxel_sizes
from unet3d.pointers import not_fetched
from unet3d.shapes import Shape, Sides, as_shape
from unet3d.subjects import MODALITIES, SubjectFiles, Volume

__all__ = ["Stored", "Turned", "header_grid", "is_packed", "open_nifti"]
__all__ += ["read_source", "read_stored", "turn"]

Affine = NDArray[np.float64]
Result = TypeVar("Result")

_DEFLATE = 1032  # most bytes that one byte of a packed file unpacks to
_CHUNK = 1 << 20  # bytes
_NIFTI2 = (540, 0x1C020000)  # bytes of its header, in either order
_UNITS = {1: "metres", 3: "micrometres"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stored:
    """The content of a file: voxels (x, y, z) or (x, y, z, volume), and their affine.

    `doubts` name unclear fields of the header, in words for the user.
    """

    voxels: NDArray[np.float32]
    affine: Affine
    doubts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turned:
    """One volume, turned by `unet3d.orientation`, and the content of its file.

    `affine` maps voxel (width, height, depth, 1) to millimetres. A voxel's value as it
    was stored is the value here and `shift`.
    """

    voxels: NDArray[np.float32]
    affine: Affine
    stored: Stored
    shift: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """The fields of a header, before nibabel mends any."""

    shape: tuple[int, ...]
    spacings: dict[str, tuple[float, ...]]
    sides: str
    unit: str
    kind: np.dtype
    kind_name: str
    offset: int


def read_stored(path: Path, subject: str) -> Stored:
    """Read a file; refuse a bad header before its voxels are read."""
    header = _attempt(_read_header, path, subject)
    _check_numbers(header, path, subject)
    _check_room(header, path, subject)
    image = _attempt(_read_voxels, path, subject)
    return replace(image, doubts=tuple(_doubts(header)))


def header_grid(files: SubjectFiles) -> tuple[Shape, Sides] | None:
    """Return the first image's shape and mm, along (depth, height, width).

    None if its header cannot be read.
    """
    try:
        with open_nifti(files.images[0].path) as file:
            header = nibabel.Nifti1Header(file.read(348))
        voxels = np.broadcast_to(np.uint8(0), header.get_data_shape()[:3])
        affine = np.array(header.get_best_affine(), np.float64)
        turned, affine = to_canonical(voxels, affine)
        return as_shape(turned.shape), voxel_sizes(affine)
    except Exception:  # `read_stored` says what is wrong
        return None


def turn(stored: Stored, volume: Volume, subject: str) -> Turned:
    """Take one volume of a file, in (depth, height, width).

    Further axes of one voxel are left out: FSL and SPM write them at the end, ITK in
    front of a vector's components.
    """
    name, axes = volume.path.name, 3 if volume.index is None else 4
    voxels = stored.voxels
    while voxels.ndim > axes and 1 in (further := voxels.shape[3:]):
        voxels = voxels.squeeze(-1 - further[::-1].index(1))
    if voxels.ndim != axes or (volume.index or 0) >= voxels.shape[-1]:
        wanted = "3 axes" if axes == 3 else "4 axes, one volume for each modality"
        raise ValueError(
            f"`{name}` of subject {subject} must have {wanted}, got shape "
            f"{stored.voxels.shape}. Save it as its data set describes."
        )
    if volume.index is not None:
        voxels = voxels[..., volume.index]
    try:
        turned, affine = to_canonical(voxels, stored.affine)
    except ValueError as error:
        raise ValueError(f"`{name}` of subject {subject}: {error}") from error
    return Turned(voxels=turned, affine=affine, stored=stored)


def read_source(path: Path) -> nibabel.Nifti1Image:
    """Read a file's header and affine, to write labels on the file's grid."""
    with open_nifti(path) as file:
        return nibabel.Nifti1Image.from_stream(cast(Any, file))


def is_packed(path: Path) -> bool:
    """Tell whether gzip packed a file, whatever its name says."""
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def open_nifti(path: Path) -> IO[bytes]:
    """Open a file for reading, unpacked if gzip packed it."""
    return cast(IO[bytes], gzip.open(path) if is_packed(path) else path.open("rb"))


def _attempt(read: Callable[[Path], Result], path: Path, subject: str) -> Result:
    try:
        return read(path)
    except Exception as error:  # of nibabel, zlib, gzip, NumPy and the disk: any kind
        if pointer := not_fetched(path):
            raise ValueError(
                f"`{path.name}` of subject {subject} must be a NIfTI volume, got "
                f"{pointer}."
            ) from error
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"`{path.name}` of subject {subject} must be a NIfTI volume, got a file "
            f"that cannot be read ({reason}). Save {path} anew, or copy or download "
            "it again."
        ) from error


def _read_header(path: Path) -> _Header:
    with open_nifti(path) as file:
        # Unchecked: nibabel takes a spacing of 0 for 1, and goes on.
        raw = nibabel.Nifti1Header(file.read(348), check=False)
    if int(raw["sizeof_hdr"]) != 348:
        kind = "NIfTI-2" if int(raw["sizeof_hdr"]) in _NIFTI2 else "no NIfTI-1"
        raise ValueError(f"it is {kind}: save it as NIfTI-1")
    code, axes = int(raw["datatype"]), int(raw["dim"][0])
    if code not in data_type_codes.dtype:
        raise ValueError(f"data code {code} is unknown")
    spacings = {"pixdim": raw["pixdim"][1:4]}
    if int(raw["sform_code"]) > 0:
        rows = np.array([raw[name][:3] for name in ("srow_x", "srow_y", "srow_z")])
        spacings["sform"] = np.linalg.norm(rows, axis=0)
    return _Header(
        sides=_sides(raw),
        shape=tuple(int(n) for n in raw["dim"][1 : 1 + axes]),
        spacings={
            name: tuple(float(f"{side:.6g}") for side in sides)
            for name, sides in spacings.items()
        },
        unit=_UNITS.get(int(raw["xyzt_units"]) % 8, "mm"),
        kind=raw.get_data_dtype(),
        kind_name=str(data_type_codes.label[code]),
        offset=int(raw["vox_offset"]),
    )


def _sides(raw: nibabel.Nifti1Header) -> str:
    """Return a doubt about the header's place for voxels; "" if there is none."""
    sform, qform = (int(raw[name]) > 0 for name in ("sform_code", "qform_code"))
    if not sform and not qform:
        return "the header has no orientation: rows are taken to run to the left"
    if sform and qform:
        with suppress(ValueError):  # the quaternion may be invalid
            placed: Any = raw  # without `coded` these give the matrices alone
            apart = placed.get_sform() - placed.get_qform()
            apart = apart @ [*raw["dim"][1:4], 1]
            if np.abs(apart).max() > 1:  # mm
                return "the header's sform and qform differ: sform is taken"
    return ""


def _read_voxels(path: Path) -> Stored:
    with open_nifti(path) as file:
        image = nibabel.Nifti1Image.from_stream(cast(Any, file))
        # Voxels that a scale makes infinite are refused by `unet3d.reading`.
        with np.errstate(over="ignore", invalid="ignore"):
            voxels = np.asarray(image.dataobj, dtype=np.float32)
        if is_packed(path):  # gzip compares the checksum at the end
            while file.read(_CHUNK):
                pass
    affine = np.asarray(image.affine, dtype=np.float64)
    return Stored(voxels=voxels, affine=affine, doubts=())


def _doubts(header: _Header) -> Iterator[str]:
    """Describe fields that other programs may read in another way."""
    if header.sides:
        yield header.sides
    if header.unit != "mm":
        yield f"the header's spacing is in {header.unit}, but is taken for mm"
    said = header.spacings
    if "sform" in said and not np.allclose(said["pixdim"], said["sform"], rtol=0.01):
        yield (
            f"the header has two spacings, pixdim {said['pixdim']} and sform "
            f"{said['sform']}: sform is taken"
        )


def _check_numbers(header: _Header, path: Path, subject: str) -> None:
    if not header.shape or min(header.shape) < 1:
        raise ValueError(
            f"`{path.name}` of subject {subject} must have at least 1 voxel along each "
            f"axis, got shape {header.shape}. Copy or download {path} again."
        )
    if header.kind.kind not in "uif":
        raise ValueError(
            f"`{path.name}` of subject {subject} must hold one real number for each "
            f"voxel, got {header.kind_name}. Save {path} as integers or floats."
        )
    for spacing in header.spacings.values():
        if not all(0 < side < np.inf for side in spacing):
            raise ValueError(
                f"`{path.name}` of subject {subject} must have a spacing above 0 mm "
                f"along each axis, got {spacing}. Repair the header of {path}."
            )


def _check_room(header: _Header, path: Path, subject: str) -> None:
    needed = header.offset + prod(header.shape) * header.kind.itemsize
    size = path.stat().st_size
    if needed > size * (_DEFLATE if is_packed(path) else 1):
        raise ValueError(
            f"`{path.name}` of subject {subject} must hold the {needed:,} bytes that "
            f"its shape {header.shape} needs, got a file of {size:,} bytes. Copy or "
            f"download {path} again."
        )
    free = psutil.virtual_memory().available
    # All modalities are held twice: as read, and stacked.
    needed = (
        prod(header.shape[:3]) * 2 * len(MODALITIES) * np.dtype(np.float32).itemsize
    )
    if needed > free:
        raise ValueError(
            f"`{path.name}` of subject {subject} must fit in the host's memory, of "
            f"which {free:,} bytes are free, got shape {header.shape}, which needs "
            f"{needed:,} bytes for all modalities. Crop or resample {path} first."
        )
