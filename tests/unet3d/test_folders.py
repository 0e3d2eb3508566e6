"""Folders as nnU-Net lays them: images alone, data sets above, and what is told."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.unet3d.tiny import save, volumes, write_decathlon, write_folder
from unet3d.__main__ import main
from unet3d.checking import check_data
from unet3d.schemes import MODALITIES, choose_scheme
from unet3d.subjects import find_subjects

KNEE = {"channel_names": {"0": "T1", "1": "T2"}, "labels": {"bone": 1, "lesion": 2}}


def write_nnunet(data: Path) -> Path:
    first, second, *_, labels = volumes((1, 2, 2))
    for folder, name in (("imagesTr", "a_001"), ("imagesTr", "b"), ("imagesTs", "c")):
        save(data / folder / f"{name}_0000.nii.gz", first)
        save(data / folder / f"{name}_0001.nii.gz", second)
        if folder == "imagesTr":
            save(data / "labelsTr" / f"{name}.nii.gz", labels)
    (data / "dataset.json").write_text(json.dumps(KNEE))
    return data


def test_a_folder_of_images_is_predicted_as_it_is(tmp_path: Path) -> None:
    folder = write_nnunet(tmp_path / "Dataset001_Knee") / "imagesTr"
    found = find_subjects(folder, ("t2", "t1"), bare=True).subjects
    assert [files.name for files in found] == ["a_001", "b"]
    names = [image.path.name for image in found[0].images]
    assert names == ["a_001_0001.nii.gz", "a_001_0000.nii.gz"]  # as above, not as here
    assert all(files.is_test for files in found)
    (folder / "b_0001.nii.gz").unlink()
    with pytest.raises(
        ValueError, match=r"2 images of each .* got b with 1 in .*_0000"
    ):
        find_subjects(folder, ("t1", "t2"), bare=True)


def test_four_digits_of_a_subject_s_name_are_no_channel(tmp_path: Path) -> None:
    folder = tmp_path / "scans"
    folder.mkdir()
    for k in range(2):
        (folder / f"scan_{k:04d}.nii.gz").touch()
    with pytest.raises(ValueError, match=r"files of 1 channels, ct, .*got scan_0001"):
        find_subjects(folder, ("ct",), bare=True)


def test_a_test_file_of_all_volumes_is_predicted_too(tmp_path: Path) -> None:
    folder = write_decathlon(tmp_path) / "imagesTs"
    (files,) = find_subjects(folder, MODALITIES, bare=True).subjects
    assert [image.index for image in files.images] == [0, 2, 1, 3]


def test_the_folder_of_one_subject_is_no_folder_of_images(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Pass the folder above if it is one subject"):
        find_subjects(write_folder(tmp_path / "a"), MODALITIES, bare=True)


def test_images_alone_cannot_be_trained_with_and_the_folder_above_is_named(
    tmp_path: Path,
) -> None:
    data = write_nnunet(tmp_path / "Dataset001_Knee")
    with pytest.raises(ValueError, match=rf"of dataset\.json, got .* Pass {data}\."):
        find_subjects(data / "imagesTr", ("t1", "t2"))
    with pytest.raises(ValueError, match=rf"of dataset\.json, got .* Pass {data}\."):
        choose_scheme(None, data / "imagesTr")


def test_the_folder_above_a_data_set_says_which_one_to_give(tmp_path: Path) -> None:
    data = write_nnunet(tmp_path / "Dataset001_Knee")
    (tmp_path / "imagesTr").mkdir()
    with pytest.raises(ValueError, match=rf"one data set, got .* Pass {data}\."):
        find_subjects(tmp_path)
    with pytest.raises(ValueError, match=rf"one data set, got .* Pass {data}\."):
        choose_scheme(None, tmp_path)
    other = write_nnunet(tmp_path / "Dataset002_Knee")
    with pytest.raises(ValueError, match=rf"{data}, {other}\. Pass one of these\."):
        find_subjects(tmp_path)


def test_scans_without_labels_are_named(tmp_path: Path) -> None:
    data = write_nnunet(tmp_path)
    found = check_data(data, choose_scheme(None, data))
    assert found.is_sound
    assert found.unlabelled == ("c",)


@pytest.mark.parametrize(
    "parts", [{}, {"training": [], "test": ["./imagesTs/c.nii.gz"]}]
)
def test_predicted_test_scans_are_scored_where_they_have_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], parts: dict[str, list[str]]
) -> None:
    data, found = write_nnunet(tmp_path / "Dataset001_Knee"), tmp_path / "predicted"
    (data / "dataset.json").write_text(json.dumps(KNEE | parts))
    labels = volumes((1, 2, 2))[-1]
    words = ["evaluate", "--truth", data, "--predictions", found, "--output", tmp_path]
    save(found / "c.nii.gz", labels * (labels == 1))
    assert main(list(map(str, words))) == 2
    assert f"Add it as {data}/labelsTs/c.nii.gz" in capsys.readouterr().err
    save(data / "labelsTs" / "c.nii.gz", labels)
    assert main(list(map(str, words))) == 0
    assert "Not predicted" not in capsys.readouterr().err  # of a and b
    scores = json.loads((tmp_path / "report.json").read_text())["scores"]
    assert [score["dice"] for score in scores] == [1, 0]
    assert check_data(data, choose_scheme(None, data)).unlabelled == ()


def test_a_folder_of_images_is_checked_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_nnunet(tmp_path / "Dataset001_Knee")
    save(data / "imagesTs" / "d_0000.nii.gz", volumes()[0], np.diag([-1, -1, 2, 1.0]))
    save(data / "imagesTs" / "d_0001.nii.gz", volumes()[1], np.diag([-1, -1, 2, 1.0]))
    words = ["check", "--data", str(data / "imagesTs"), "--unlabelled"]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "spacings differ between subjects" in told
    rows = [line.split() for line in told.splitlines()]
    assert [row[3] for row in rows if row[1:2] == ["subjects"]] == ["2"]
    assert [row[3] for row in rows if row[1:2] == ["warnings"]] == ["2"]
    assert told.count("  - ") == 2
    assert main(words[:-1]) == 2


@pytest.mark.parametrize(
    "parts", [{}, {"training": [], "test": ["./imagesTs/c.nii.gz"]}]
)
def test_labels_of_test_scans_that_lack_images_are_none_to_train_with(
    tmp_path: Path, parts: dict[str, list[str]]
) -> None:
    data = write_nnunet(tmp_path)
    (data / "dataset.json").write_text(json.dumps(KNEE | parts))
    for name in ("c", "gone"):
        save(data / "labelsTs" / f"{name}.nii.gz", volumes()[-1])
    assert find_subjects(data, ("t1", "t2")).problems == ()
    (data / "imagesTs" / "c_0001.nii.gz").unlink()
    (problem,) = find_subjects(data, ("t1", "t2")).problems
    assert problem.rest is not None
    assert (problem.name, problem.rest.is_test) == ("c", True)


def test_no_folder_of_images_is_proposed_for_labels(tmp_path: Path) -> None:
    for name in ("imagesTr", "imagesTs"):
        save(tmp_path / name / "a.nii.gz", volumes()[0])
    with pytest.raises(
        ValueError, match=r'"image": "imagesTr/a\.nii\.gz", "label": "lab'
    ):
        find_subjects(tmp_path)
