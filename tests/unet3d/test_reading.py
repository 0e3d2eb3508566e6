"""What reading refuses, and what it says: subjects of a few voxels, spoilt."""

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

from tests.unet3d.tiny import LPS, SHAPE, save, volumes, write_folder
from unet3d.reading import read_subject


def write(folder: Path, name: str, voxels: NDArray) -> None:
    save(folder / f"{folder.name}_{name}.nii.gz", voxels)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A subject of 6 x 5 x 4 voxels: a brain of 4 x 3 x 2 with one voxel per label."""
    return write_folder(tmp_path / "patient")


def remove(folder: Path) -> None:
    (folder / "patient_t1ce.nii.gz").unlink()


def remove_labels(folder: Path) -> None:
    (folder / "patient_seg.nii.gz").unlink()


def change_shape(folder: Path) -> None:
    write(folder, "t2", np.ones((6, 5, 3), np.int16))


def add_an_axis(folder: Path) -> None:
    write(folder, "t2", np.ones((6, 5, 4, 2), np.int16))


def add_nan(folder: Path) -> None:
    image = np.ones(SHAPE, np.float32)
    image[0, 0, :3] = np.nan
    write(folder, "flair", image)


def fill(folder: Path) -> None:
    write(folder, "t1", np.full(SHAPE, 100, np.int16))


def empty(folder: Path) -> None:
    write(folder, "t1", np.zeros(SHAPE, np.int16))


def mislabel(folder: Path) -> None:
    write(folder, "seg", np.full(SHAPE, 3, np.uint8))


def interpolate(folder: Path) -> None:
    write(folder, "seg", np.full(SHAPE, 3.9999, np.float32))


def truncate(folder: Path) -> None:
    path = folder / "patient_t1.nii.gz"
    path.write_bytes(path.read_bytes()[:-20])


def empty_file(folder: Path) -> None:
    (folder / "patient_t1.nii.gz").write_bytes(b"")


def flip(folder: Path) -> None:
    save(folder / "patient_t2.nii.gz", np.ones(SHAPE, np.int16), np.eye(4))


def widen(folder: Path) -> None:
    affine = np.diag([-3.0, -3.0, 2.0, 1.0])
    save(folder / "patient_t1.nii.gz", volumes()[1], affine)


def move_labels(folder: Path) -> None:
    affine = LPS.copy()
    affine[2, 3] = 60
    save(folder / "patient_seg.nii.gz", np.ones(SHAPE, np.uint8), affine)


def tilt(folder: Path) -> None:
    affine = LPS.copy()
    affine[1, 2] = 0.1
    save(folder / "patient_t2.nii.gz", volumes()[3], affine)


def forge(folder: Path, place: int, code: str, *values: float) -> None:
    """Overwrite a part of a header; the file is packed again."""
    path = folder / "patient_t1.nii.gz"
    content = bytearray(gzip.decompress(path.read_bytes()))
    struct.pack_into(code, content, place, *values)
    path.write_bytes(gzip.compress(bytes(content)))


def promise(folder: Path) -> None:
    forge(folder, 42, "<3h", 30000, 30000, 30000)


def promise_a_little(folder: Path) -> None:
    forge(folder, 42, "<3h", 60, 5, 4)


def negate(folder: Path) -> None:
    forge(folder, 42, "<h", -6)


def shrink(folder: Path) -> None:
    forge(folder, 80, "<3f", 0, 1, 1)


def colour(folder: Path) -> None:
    forge(folder, 70, "<h", 128)


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


def uncode(folder: Path) -> None:
    forge(folder, 70, "<h", 7)


def flatten(folder: Path) -> None:
    path = folder / "patient_t2.nii.gz"
    image = nibabel.Nifti1Image(np.ones(SHAPE, np.int16), None)
    image.header.set_sform(np.diag([1, 1, 0, 1]), code=1)
    nibabel.save(image, path)


def scribble(folder: Path) -> None:
    (folder / "patient_t1.nii.gz").write_bytes(b"no volume")


@pytest.mark.parametrize(
    ("spoil", "error", "words"),
    [
        (remove, FileNotFoundError, ["modality 't1ce'", "patient_t1ce.nii.gz"]),
        (remove_labels, FileNotFoundError, ["its segmentation", "leave the subject"]),
        (change_shape, ValueError, ["patient_t2", "(6, 5, 4), got (6, 5, 3)"]),
        (add_an_axis, ValueError, ["patient_t2", "3 axes, got shape (6, 5, 4, 2)"]),
        (add_nan, ValueError, ["patient_flair", "finite", "got 3 voxels"]),
        (empty, ValueError, ["patient_t1", "must show a brain, got 0 in every voxel"]),
        (fill, ValueError, ["patient_t1", "a brain, got 100 in every voxel"]),
        (renumber, ValueError, ["patient_t1", "it is NIfTI-2: save it as NIfTI-1"]),
        (flip_a_byte, ValueError, ["patient_t1", "CRC check failed"]),
        (mislabel, ValueError, ["patient_seg", "labels 0, 1, 2 and 4", "[3.0]"]),
        (interpolate, ValueError, ["patient_seg", "got [3.9999] too. Choose"]),
        (truncate, ValueError, ["patient_t1", "must be a NIfTI volume"]),
        (empty_file, ValueError, ["patient_t1", "must be a NIfTI volume"]),
        (flip, ValueError, ["patient_t2", "patient_flair", "axes LPS", "got axes RAS"]),
        (flatten, ValueError, ["patient_t2", "spacing above 0 mm", "got (1.0, 1.0, 0"]),
        (scribble, ValueError, ["patient_t1", "must be a NIfTI volume"]),
        (widen, ValueError, ["patient_t1", "(1, 1, 1) mm, got spacing (3, 3, 2) mm"]),
        (move_labels, ValueError, ["patient_seg", "got origin (0, 0, 60) mm"]),
        (tilt, ValueError, ["patient_t2", "directions [(-1, 0, 0), (0, -1, 0.099504)"]),
        (promise, ValueError, ["patient_t1", "must hold the 54,000,000,000,352 bytes"]),
        (promise_a_little, ValueError, ["patient_t1", "Expected 2400 bytes, got 240"]),
        (negate, ValueError, ["patient_t1", "at least 1 voxel", "(-6, 5, 4)"]),
        (
            shrink,
            ValueError,
            ["patient_t1", "spacing above 0 mm", "got (0.0, 1.0, 1.0"],
        ),
        (colour, ValueError, ["patient_t1", "one real number for each voxel"]),
        (uncode, ValueError, ["patient_t1", "data code 7 is none"]),
    ],
)
def test_a_bad_file_is_named_with_the_rule_and_the_value(
    small: Path,
    spoil: Callable[[Path], None],
    error: type[Exception],
    words: list[str],
) -> None:
    spoil(small)
    with pytest.raises(error) as caught:
        read_subject(small)
    for word in ["subject patient", *words]:
        assert word in str(caught.value)


def test_every_reason_against_a_subject_is_told(small: Path) -> None:
    for spoil in (add_nan, widen, tilt, mislabel):
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
