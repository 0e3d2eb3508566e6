"""Every layout of folders gives the same subject; what is missing is named."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unet3d.tiny import BRATS2023_ENDS, volumes, write_decathlon, write_folder
from unet3d.data import to_regions
from unet3d.reading import read_images, read_subject
from unet3d.schemes import SCHEMES
from unet3d.subjects import find_subjects


def check_subject(data: Path, scheme: str, name: str) -> None:
    (files,) = [f for f in find_subjects(data).subjects if f.name == name]
    subject = read_subject(files, SCHEMES[scheme])
    expected = np.stack([v.T for v in volumes()[:4]], axis=-1)
    np.testing.assert_array_equal(subject.images, expected)
    regions = to_regions(subject.labels, SCHEMES[scheme])
    assert regions[1, 1, 1:4].tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 1]]


@pytest.mark.parametrize("grade", ["", "HGG", "LGG"])
@pytest.mark.parametrize("extension", ["nii", "nii.gz"])
def test_brats_2017_folders_are_flat_or_below_their_grade(
    tmp_path: Path, grade: str, extension: str
) -> None:
    write_folder(tmp_path / grade / "Brats17_1", extension=extension)
    (tmp_path / "survival.csv").write_text("")
    check_subject(tmp_path, "brats2017", "Brats17_1")


def test_names_of_brats_2023_and_of_the_decathlon_s_list_are_read(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "2023" / "BraTS-GLI-00000-000"
    write_folder(folder, ends=BRATS2023_ENDS, values=(1, 2, 3))
    check_subject(folder.parent, "brats2023", folder.name)
    check_subject(write_decathlon(tmp_path / "listed"), "msd", "BRATS_001")


def test_a_test_image_has_no_labels_but_can_be_read(tmp_path: Path) -> None:
    *_, test = find_subjects(write_decathlon(tmp_path)).subjects
    assert test.name == "BRATS_900"
    assert test.labels is None
    assert read_images(test).images.shape == (4, 5, 6, 4)
    with pytest.raises(FileNotFoundError, match="BRATS_900 without its segmentation"):
        read_subject(test, SCHEMES["msd"])


def test_label_4_is_refused_where_it_is_no_tumour(tmp_path: Path) -> None:
    write_folder(tmp_path / "a", ends=BRATS2023_ENDS, values=(1, 2, 4))
    (files,) = find_subjects(tmp_path).subjects
    with pytest.raises(ValueError, match=r"got 4 \(4 is the resection cavi"):
        read_subject(files, SCHEMES["brats2023"])


def test_subjects_are_sorted_and_a_missing_modality_is_a_problem(
    tmp_path: Path,
) -> None:
    for name in ("c", "a", "b"):
        write_folder(tmp_path / name)
    (tmp_path / "b" / "b_t1ce.nii.gz").unlink()
    found = find_subjects(tmp_path)
    assert [files.name for files in found.subjects] == ["a", "c"]
    (problem,) = found.problems
    assert problem.name == "b"
    assert "subject b without its modality 't1ce'. Add" in problem.message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look into any folder")
def test_a_folder_that_cannot_be_looked_into_is_a_problem(tmp_path: Path) -> None:
    write_folder(tmp_path / "a")
    (tmp_path / "b").mkdir(mode=0)
    (problem,) = find_subjects(tmp_path).problems
    assert "`folder` must be readable, got subject b in" in problem.message


def test_a_link_that_leads_nowhere_is_a_problem(tmp_path: Path) -> None:
    write_folder(tmp_path / "a")
    (tmp_path / "b").symlink_to(tmp_path / "moved")
    (tmp_path / "c").symlink_to("c")
    problems = find_subjects(tmp_path).problems
    assert [problem.name for problem in problems] == ["b", "c"]
    assert "a link that leads nowhere" in problems[0].message


def test_a_listed_link_that_leads_nowhere_says_how_to_fetch(tmp_path: Path) -> None:
    write_decathlon(tmp_path, ("BRATS_001", "BRATS_002"))
    path = tmp_path / "imagesTr" / "BRATS_002.nii.gz"
    path.unlink()
    path.symlink_to("../.git/annex/objects/x")
    (problem,) = find_subjects(tmp_path).problems
    assert f"nowhere. Fetch the data by `datalad get {path}`" in problem.message


def test_a_listed_file_that_is_absent_is_a_problem(tmp_path: Path) -> None:
    write_decathlon(tmp_path, ("BRATS_001", "BRATS_002"))
    (tmp_path / "labelsTr" / "BRATS_002.nii.gz").unlink()
    (problem,) = find_subjects(tmp_path).problems
    assert problem.name == "BRATS_002"


def test_folders_without_subjects_and_unknown_lists_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="must hold at least one subject"):
        find_subjects(tmp_path)
    (tmp_path / "dataset.json").write_text('{"modality": {"0": "CT"}}')
    with pytest.raises(
        ValueError, match=r"must list images of flair, t1.*, got channels \{'0': 'CT'\}"
    ):
        find_subjects(tmp_path)
    order = {"0": "flair", "1": "t1w", "2": "t1gd", "3": "t2w"}
    listing: dict[str, Any] = {"modality": order}
    listing["training"] = [{"image": 5, "label": 6}]
    (tmp_path / "dataset.json").write_text(json.dumps(listing))
    with pytest.raises(ValueError, match=r"\(TypeError"):
        find_subjects(tmp_path)


def test_one_name_twice_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "HGG" / "a")
    write_folder(tmp_path / "LGG" / "a")
    with pytest.raises(ValueError, match="each subject once, got a twice"):
        find_subjects(tmp_path)
