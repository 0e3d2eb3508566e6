"""Reading refuses spoilt subjects of a few voxels, and says why."""

import contextlib
import gzip
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import nibabel
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.unet3d.tiny import (
    LPS,
    SHAPE,
    save,
    volumes,
    write_decathlon,
    write_folder,
)
from unet3d.reading import read_subject
from unet3d.schemes import SCHEMES
from unet3d.subjects import find_subjects

Spoil = Callable[[Path], None]


def write(folder: Path, name: str, voxels: NDArray) -> None:
    save(folder / f"{folder.name}_{name}.nii.gz", voxels)


def raw(name: str, change: Callable[[bytes], bytes]) -> Spoil:
    """Change the bytes of a file."""

    def spoil(folder: Path) -> None:
        path = folder / f"patient_{name}.nii.gz"
        path.write_bytes(change(path.read_bytes()))

    return spoil


def forged(place: int, code: str, *values: float) -> Spoil:
    """Overwrite a part of a header; the file is packed again."""

    def change(packed: bytes) -> bytes:
        content = bytearray(gzip.decompress(packed))
        struct.pack_into(code, content, place, *values)
        return gzip.compress(bytes(content))

    return raw("t1", change)


def stored(
    name: str, voxels: NDArray, affine: NDArray = LPS, *places: tuple[int, int, float]
) -> Spoil:
    """Write a volume, with some numbers of its affine changed."""
    affine = affine.copy()
    for row, column, number in places:
        affine[row, column] = number
    return lambda folder: save(folder / f"patient_{name}.nii.gz", voxels, affine)


def gone(name: str) -> Spoil:
    return lambda folder: (folder / f"patient_{name}.nii.gz").unlink()


def linked(name: str, target: str) -> Spoil:
    """Put a link that leads nowhere in place of a file."""

    def spoil(folder: Path) -> None:
        gone(name)(folder)
        (folder / f"patient_{name}.nii.gz").symlink_to(target)

    return spoil


def with_nan() -> NDArray:
    image = np.ones(SHAPE, np.float32)
    image[0, 0, :3] = np.nan
    return image


def renumber(folder: Path) -> None:
    image = nibabel.Nifti2Image(volumes()[1], LPS)
    nibabel.save(image, folder / "patient_t1.nii.gz")


def flip_a_byte(folder: Path) -> None:
    """In the middle of large voxels, where they are unpacked all the same."""
    noise = np.random.default_rng(0).integers(1, 99, (64, 64, 64)).astype(np.int16)
    path = folder / "patient_t1.nii.gz"
    save(path, noise)
    content = bytearray(gzip.compress(gzip.decompress(path.read_bytes()), 0))
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def flatten(folder: Path) -> None:
    image = nibabel.Nifti1Image(np.ones(SHAPE, np.int16), None)
    image.header.set_sform(np.diag([1, 1, 0, 1]), code=1)
    nibabel.save(image, folder / "patient_t2.nii.gz")


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1234567\n"
ANNEX = b"/annex/objects/MD5E-s129--c8.nii.gz\n"
ONES = np.ones(SHAPE, np.int16)
NAN = stored("flair", with_nan())
WIDE = stored("t1", volumes()[1], np.diag([-3.0, -3.0, 2.0, 1.0]))
TILTED = stored("t2", volumes()[3], LPS, (1, 2, 0.1))
MISLABELLED = stored("seg", np.full(SHAPE, 3, np.uint8))
FOUR_AXES = stored("t2", np.ones((6, 5, 4, 2), np.int16))
BROKEN = stored("seg", np.full(SHAPE, 3.9, np.float32))
TURNED = stored("t2", ONES, np.eye(4))
MOVED = stored("seg", np.ones(SHAPE, np.uint8), LPS, (2, 3, 60))
HUGE, THIN = forged(42, "<3h", *[30000] * 3), forged(80, "<3f", 0, 1, 1)
BAD: list[tuple[Spoil, list[str]]] = [
    (gone("t1ce"), ["modality 't1ce'", "patient_t1ce.nii.gz"]),
    (gone("seg"), ["its segmentation", "leave the subject"]),
    (stored("t2", ONES[:, :, :3]), ["patient_t2", "(6, 5, 4), got (6, 5, 3)"]),
    (FOUR_AXES, ["patient_t2", "3 axes, got shape (6, 5, 4, 2)"]),
    (NAN, ["patient_flair", "finite", "got 3 voxels"]),
    (stored("t1", 0 * ONES), ["patient_t1", "show something, got 0 in every voxel"]),
    (stored("t1", 100 * ONES), ["patient_t1", "something, got 100 in every voxel"]),
    (renumber, ["patient_t1", "it is NIfTI-2: save it as NIfTI-1"]),
    (flip_a_byte, ["patient_t1", "CRC check failed"]),
    (MISLABELLED, ["patient_seg", "labels 0, 1, 2 and 4", "got 3 too"]),
    (BROKEN, ["patient_seg", "got 3.9 too. Choose"]),
    (raw("t1", lambda packed: packed[:-20]), ["patient_t1", "be a NIfTI volume"]),
    (raw("t1", lambda _: b""), ["patient_t1", "must be a NIfTI volume"]),
    (raw("t1", lambda _: b"no volume"), ["patient_t1", "must be a NIfTI volume"]),
    (raw("t1", lambda _: LFS), ["patient_t1", "pointer of Git LFS", "`git lfs pull`"]),
    (raw("seg", lambda _: LFS), ["patient_seg", "pointer of Git LFS"]),
    (raw("t1", lambda _: ANNEX), ["patient_t1", "of git-annex", "`datalad get "]),
    (linked("t1", "../.git/annex/x"), ["with patient_t1", "git-annex that leads now"]),
    (linked("seg", "../.git/annex/x"), ["with patient_seg", "`git annex get "]),
    (linked("t1", "moved.nii.gz"), ["patient_t1.nii.gz: a link that leads nowhere"]),
    (TURNED, ["patient_t2", "patient_flair", "axes LPS", "got axes RAS"]),
    (flatten, ["patient_t2", "spacing above 0 mm", "got (1.0, 1.0, 0"]),
    (WIDE, ["patient_t1", "(1, 1, 1) mm, got spacing (3, 3, 2) mm"]),
    (MOVED, ["patient_seg", "got origin (0, 0, 60) mm"]),
    (TILTED, ["patient_t2", "directions [(-1, 0, 0), (0, -1, 0.099504)"]),
    (HUGE, ["patient_t1", "must hold the 54,000,000,000,352 bytes"]),
    (forged(42, "<3h", 60, 5, 4), ["patient_t1", "Expected 2400 bytes, got 240"]),
    (forged(42, "<h", -6), ["patient_t1", "at least 1 voxel", "(-6, 5, 4)"]),
    (THIN, ["patient_t1", "spacing above 0 mm", "got (0.0, 1.0, 1.0"]),
    (forged(70, "<h", 128), ["patient_t1", "one real number for each voxel"]),
    (forged(70, "<h", 7), ["patient_t1", "data code 7 is unknown"]),
]


@pytest.mark.parametrize(("spoil", "words"), BAD)
def test_a_bad_file_is_named_with_the_rule_and_the_value(
    small: Path, spoil: Spoil, words: list[str]
) -> None:
    spoil(small)
    is_missing = sum(path.exists() for path in small.iterdir()) < 5
    with pytest.raises(FileNotFoundError if is_missing else ValueError) as caught:
        read_subject(small)
    for word in ["subject patient", *words]:
        assert word in str(caught.value)


def test_every_reason_against_a_subject_is_told(small: Path) -> None:
    for spoil in (NAN, WIDE, TILTED, MISLABELLED):
        spoil(small)
    with pytest.raises(ValueError, match="patient_flair") as caught:
        read_subject(small)
    said = str(caught.value).splitlines()
    assert [line.split("`")[1] for line in said] == [
        "patient_flair.nii.gz",
        "patient_seg.nii.gz",
        "patient_t1.nii.gz",
        "patient_t2.nii.gz",
    ]


BYTES = st.tuples(st.integers(0, 355), st.integers(0, 255))


@given(changes=st.lists(BYTES, min_size=1, max_size=8), kept=st.integers(0, 700))
def test_whatever_a_header_holds_a_subject_is_read_or_refused(
    changes: list[tuple[int, int]], kept: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = write_folder(Path(name) / "patient", extension="nii")
        path = folder / "patient_t1.nii"
        content = bytearray(path.read_bytes())
        for place, value in changes:
            content[place] = value
        path.write_bytes(content[: max(kept, 1)] if kept % 3 == 0 else content)
        with contextlib.suppress(ValueError):
            assert read_subject(folder).images.shape == (4, 5, 6, 4)


def test_what_is_larger_than_the_host_is_refused_before_it_is_read(small: Path) -> None:
    path = small / "patient_t1.nii"
    save(path, np.ones(SHAPE, np.uint8))
    (small / "patient_t1.nii.gz").unlink()
    with path.open("r+b") as file:  # sparse: it takes no room on the disk
        file.seek(42)
        file.write(struct.pack("<3h", 16000, 16000, 16000))
        file.truncate(352 + 16000**3)
    with pytest.raises(
        ValueError, match=r"must fit in the host's memory, .* needs 131,072,"
    ):
        read_subject(small)


def test_one_more_axis_of_one_voxel_is_none(small: Path) -> None:
    before = read_subject(small)
    for name in ("t1", "seg"):
        path = small / f"patient_{name}.nii.gz"
        voxels = np.asarray(nibabel.Nifti1Image.from_filename(path).dataobj)
        write(small, name, voxels[..., np.newaxis])
    after = read_subject(small)
    np.testing.assert_array_equal(after.images, before.images)
    np.testing.assert_array_equal(after.labels, before.labels)


@pytest.mark.parametrize("axes", [(3,), (4,), (3, 5)])
def test_axes_of_one_voxel_around_a_vector_s_components_are_none(
    tmp_path: Path, axes: tuple[int, ...]
) -> None:
    write_decathlon(tmp_path)
    files = find_subjects(tmp_path).subjects[0]
    before = read_subject(files, SCHEMES["msd"])
    path = tmp_path / "imagesTr" / "BRATS_001.nii.gz"
    voxels = np.asarray(nibabel.Nifti1Image.from_filename(path).dataobj)
    save(path, np.expand_dims(voxels, axes))
    after = read_subject(files, SCHEMES["msd"])
    np.testing.assert_array_equal(after.images, before.images)


def test_a_modality_stored_the_other_way_round_lies_on_the_same_grid(
    small: Path,
) -> None:
    before = read_subject(small)
    path = small / "patient_t1.nii.gz"
    voxels = np.asarray(nibabel.Nifti1Image.from_filename(path).dataobj)
    affine = LPS @ np.diag([-1.0, 1, 1, 1])
    affine[0, 3] = 1 - SHAPE[0]
    save(path, voxels[::-1], affine)
    np.testing.assert_array_equal(read_subject(small).images, before.images)
