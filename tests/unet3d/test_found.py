"""Data as people have it: read as they mean it, or said what it is."""

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import nibabel
import numpy as np
import pytest

from tests.unet3d.tiny import SHAPE, save, volumes, write_folder
from unet3d.prediction_sets import named_alike, open_set
from unet3d.reading import read_subject
from unet3d.schemes import BRATS2017, as_text
from unet3d.subjects import find_subjects

DICOM = b"\0" * 128 + b"DICM"


def renamed(folder: Path, name: Callable[[str], str]) -> list[Path]:
    targets = []
    for path in list(folder.iterdir()):
        targets.append(folder / name(path.name))
        targets[-1].parent.mkdir(exist_ok=True)
        path.rename(targets[-1])
    return targets


def unpack(folder: Path) -> None:
    for path in folder.iterdir():
        path.write_bytes(gzip.decompress(path.read_bytes()))


def a_folder_each(folder: Path) -> None:
    for path in list(folder.iterdir()):
        content = path.read_bytes()
        path.unlink()
        path.mkdir()
        (path / "image.nii.gz").write_bytes(content)


def scaled(folder: Path) -> None:
    """Values of a brain around 0 under the scanner's integer header."""
    for path in folder.iterdir():
        if "seg" not in path.name:
            image = nibabel.Nifti1Image.from_filename(path)
            voxels = image.get_fdata()
            voxels[voxels != 0] -= voxels[voxels != 0].mean() + 0.3
            nibabel.save(nibabel.Nifti1Image(voxels, image.affine, image.header), path)


def float_labels(folder: Path) -> None:
    labels = volumes()[4].astype(np.float32) + np.float32(0.004)
    save(folder / f"{folder.name}_seg.nii.gz", labels)


MENDED: dict[str, Callable[[Path], object]] = {
    "capitals": lambda f: renamed(f, lambda n: n.upper().replace(".NII.GZ", ".nii.gz")),
    "capital endings": lambda f: renamed(f, lambda n: n.replace(".nii", ".NII")),
    "a date in the name": lambda f: renamed(f, lambda n: f"2019.01.02-{n}"),
    "other words": lambda f: renamed(f, lambda n: n.replace("t1ce", "T1-Gd")),
    "more words": lambda f: renamed(f, lambda n: n.replace("_flair", "_t2_flair")),
    "the hospital's segmentation": lambda f: renamed(
        f, lambda n: n.replace("a_seg", "W01_1990.01.02_Segm")
    ),
    "a file more": lambda f: save(f / "a_adc.nii.gz", volumes()[0]),
    "masks beside the tumour's": lambda f: (
        save(f / "a_brain_segmentation.nii.gz", volumes()[0]),
        renamed(f, lambda n: n.replace("a_seg", "a_tumor_segmentation")),
    ),
    "a prediction beside the truth": lambda f: save(
        f / "a_pred_seg.nii.gz", volumes()[0]
    ),
    "not packed": unpack,
    "packed under another name": lambda f: renamed(f, lambda n: n.removesuffix(".gz")),
    "a folder for each file": a_folder_each,
    "labels beside whole numbers": float_labels,
    "unpacked by macOS": lambda f: save(f.parent / "__MACOSX/a/x.nii.gz", volumes()[0]),
    "a disk station's": lambda f: save(f.parent / "@eaDir/a/x.nii.gz", volumes()[0]),
    "resource forks": lambda f: (f / "._a_t1.nii.gz").write_bytes(b"Mac OS X"),
}


@pytest.mark.parametrize("kind", MENDED)
def test_what_is_meant_is_read(tmp_path: Path, kind: str) -> None:
    folder = write_folder(tmp_path / "a")
    expected = read_subject(folder)
    MENDED[kind](folder)
    found = find_subjects(tmp_path)
    assert found.problems == ()
    subject = read_subject(found.subjects[0])
    np.testing.assert_array_equal(subject.images, expected.images)
    np.testing.assert_array_equal(subject.labels, expected.labels)


def test_a_background_that_a_scale_moved_is_0(tmp_path: Path) -> None:
    brain = read_subject(write_folder(tmp_path / "a")).images != 0
    scaled(tmp_path / "a")
    np.testing.assert_array_equal(read_subject(tmp_path / "a").images != 0, brain)


def test_air_is_the_background_of_ct_and_water_is_not(tmp_path: Path) -> None:
    padded = np.full(SHAPE, -1024, np.int16)
    padded[1:5, 1:4, 1:3] = 0
    noisy = np.arange(-60, 60, dtype=np.int16).reshape(SHAPE)
    folder = write_folder(tmp_path / "a")
    save(folder / "a_t1.nii.gz", padded)
    save(folder / "a_t2.nii.gz", noisy)
    images = read_subject(folder).images
    assert np.unique(images[..., 1]).tolist() == [0, 1024]
    assert images[..., 3].min() == 1
    assert np.ptp(images[..., 3]) == 119


def test_a_background_near_the_end_of_float32_stays(tmp_path: Path) -> None:
    huge = np.full(SHAPE, -3e38, np.float32)
    huge[1:5, 1:4, 1:3] = 3e38
    save(write_folder(tmp_path / "a") / "a_t1.nii.gz", huge)
    assert read_subject(tmp_path / "a").images[..., 1].min() == huge.min()


SAID: dict[str, tuple[Callable[[Path], object], str]] = {
    "two that may be meant": (
        lambda f: (
            save(f / "b_flair.nii.gz", volumes()[0])
            or renamed(f, lambda n: n.replace("a_flair", "c_flair"))
        ),
        "several for 'flair': b_flair.nii.gz, c_flair.nii.gz",
    ),
    "a name that says nothing": (
        lambda f: renamed(f, lambda n: n.replace("_t1ce", "_series7")),
        "without its modality 't1ce'; there lie a_series7.nii.gz",
    ),
    "BIDS": (
        lambda f: (
            (f.parent / "dataset_description.json").write_text("{}")
            and renamed(f, lambda n: f"anat/{n}")
        ),
        "which is BIDS, not read yet",
    ),
    "DICOM": (
        lambda f: renamed(f, lambda n: f"{n}.dcm"),
        r"got .*\.dcm\. Convert each series by dcm2niix",
    ),
    "DICOM without endings": (
        lambda f: [path.write_bytes(DICOM) for path in renamed(f, lambda n: n[:-7])],
        r"got .*a_\w+\. Convert each series by dcm2niix",
    ),
    "another format": (
        lambda f: renamed(f, lambda n: n.replace(".nii.gz", ".mha")),
        r"got .*\.mha\. Convert volumes to it",
    ),
    "an archive": (
        lambda f: renamed(f, lambda n: f"{n}.zip"),
        r"got .*\.zip\. Unpack it, and name images such as",
    ),
    "one subject's folder": (
        lambda f: [p.rename(f.parent / p.name) for p in f.iterdir()],
        "with files, such as .*Pass the folder above",
    ),
    "a folder of images and one of masks": (
        lambda f: (
            save(f.parent / "imagesTr" / "x.nii.gz", volumes()[0]),
            save(f.parent / "masks" / "x.nii.gz", volumes()[4]),
            renamed(f, lambda _: "notes.txt"),
        ),
        r"with imagesTr and masks alone\. Write dataset\.json there",
    ),
    "two folders too high": (
        lambda f: [
            write_folder(f.parent / "train" / "b"),
            write_folder(f.parent / "val" / "c"),
            renamed(f, lambda _: "notes.txt"),
        ],
        r"subjects lie in .*train \(1\), .*val \(1\). Pass one",
    ),
}


@pytest.mark.parametrize("kind", SAID)
def test_what_is_not_sure_is_said(tmp_path: Path, kind: str) -> None:
    change, says = SAID[kind]
    change(write_folder(tmp_path / "a"))
    with pytest.raises(ValueError, match=says):
        raise ValueError(find_subjects(tmp_path).problems[0].message)


def test_the_one_folder_that_holds_subjects_is_taken(tmp_path: Path) -> None:
    write_folder(tmp_path / "Training" / "a")
    (tmp_path / "Training" / "names.csv").write_text("a")
    assert [files.name for files in find_subjects(tmp_path).subjects] == ["a"]


@pytest.mark.parametrize("name", ["final_v2.nii.gz", "a.seg.nrrd", "a_bet_mask.nii"])
def test_a_segmentation_that_is_missing_is_asked_for_by_what_lies_there(
    tmp_path: Path, name: str
) -> None:
    renamed(write_folder(tmp_path / "a"), lambda n: n.replace("a_seg.nii.gz", name))
    with pytest.raises(FileNotFoundError, match=f"{name}: is it one of them. Save it"):
        read_subject(tmp_path / "a")


@pytest.mark.parametrize("end", ["_seg", "-pred", ""])
def test_predictions_may_share_a_suffix(tmp_path: Path, end: str) -> None:
    for name in ("a", "a1"):
        save(tmp_path / f"{name}{end}.nii.gz", volumes()[4])
    (tmp_path / f"._a{end}.nii.gz").write_bytes(b"Mac OS X")
    group = named_alike(open_set("A", tmp_path, BRATS2017), ["a", "a1", "b"])
    assert (tuple(sorted(group.subjects)), group.suffix) == (("a", "a1"), end)
    assert named_alike(replace(group, subjects=("a1",)), ["a", "a1"]).suffix == ""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_names_are_read_as_editors_write_them(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "names").write_text("ä\r\nb\r\n", encoding=encoding, newline="")
    assert as_text(tmp_path / "names").splitlines() == ["ä", "b"]
