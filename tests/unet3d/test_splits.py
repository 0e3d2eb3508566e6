"""Splits: drawn, kept in files, refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unet3d.splits import (
    Split,
    by_patient,
    check_patients,
    known_split,
    make_fold,
    make_split,
    numbered_alike,
    read_split,
    without,
    write_split,
)


def test_a_split_is_80_to_20_and_the_order_of_names_does_not_matter() -> None:
    names = [f"s{k}" for k in range(10)]
    split = make_split(names, seed=4)
    assert (len(split.training), len(split.validation)) == (8, 2)
    assert sorted([*split.training, *split.validation]) == names
    assert make_split(names[::-1], seed=4) == split
    assert len({make_split(names, seed=seed) for seed in range(9)}) > 3
    with pytest.raises(ValueError, match=r"at least 2 usable subjects, .* got 1"):
        make_split(["one"], seed=0)


GLIOMAS = [f"BraTS-GLI-{k:05d}-{s}" for k in range(10) for s in (100, 101)]


@given(seed=st.integers(0, 2**32), order=st.permutations(GLIOMAS))
def test_scans_of_a_patient_stay_on_one_side(seed: int, order: list[str]) -> None:
    split = make_split(order, seed)
    assert split == make_split(GLIOMAS, seed)
    assert len(split.validation) == 4
    for name in split.validation:
        assert all(s in split.validation for s in GLIOMAS if s[:-4] == name[:-4])
    check_patients(split)


@given(counts=st.lists(st.integers(1, 9), min_size=2, max_size=9), seed=st.integers(0))
def test_both_sides_have_a_patient_however_many_scans_each_has(
    counts: list[int], seed: int
) -> None:
    names = [f"p{p}-{scan}" for p, n in enumerate(counts) for scan in range(n)]
    split = make_split(names, seed % 2**32, group_by="p[0-9]+")
    assert split.training
    assert split.validation
    room = max(round(0.2 * len(names)), min(counts))
    assert len(split.validation) <= room
    check_patients(split, group_by="p[0-9]+")


def test_one_patient_alone_and_names_without_one_are_refused() -> None:
    scans = ["BraTS-GLI-00001-100", "BraTS-GLI-00001-101"]
    with pytest.raises(ValueError, match=r"at least 2 patients, .* BraTS-GLI-00001 al"):
        make_split(scans, 0)
    assert len(make_split(scans, 0, group_by="none").training) == 1
    with pytest.raises(ValueError, match=r"got 'sub-.', which finds none in BraTS"):
        make_split(scans, 0, group_by="sub-.")


@pytest.mark.parametrize(
    ("scans", "apart"),
    [
        (["Brats17_TCIA_101_1", "Brats17_TCIA_101_2"], "Brats17_TCIA_102_1"),
        (["BraTS19_CBICA_AAB_1", "Brats18_CBICA_AAB_1"], "BraTS19_CBICA_AAC_1"),
        (["BraTS2021_00001"], "BraTS2021_00002"),
        (["BraTS20_Training_001"], "BraTS20_Training_002"),
        (["BraTS-MET-00001-000", "BraTS-MET-00001-001"], "BraTS-GLI-00001-000"),
        (["BraTS-MEN-RT-0001-1", "BraTS-MEN-RT-0001-2"], "BraTS-MEN-RT-0002-1"),
        (["synthetic_000"], "synthetic_001"),
    ],
)
def test_brats_s_names_tell_patients_apart(scans: list[str], apart: str) -> None:
    groups = by_patient([*scans, apart]).values()
    assert {len(group) for group in groups} == {len(scans), 1}


@pytest.mark.parametrize(
    ("names", "alike"),
    [
        (["sub-01_ses-1", "sub-01_ses-2", "sub-02_ses-1"], 2),
        (["UPENN-GBM-00001_11", "UPENN-GBM-00001_21", "UPENN-GBM-00002_11"], 2),
        (["P1_t1_pre", "P1_t2_pre", "P2_t1_pre", "P2_t2_pre"], 4),
        (["sub-01_ses-1", "sub-02_ses-1", "sub-03_ses-1"], 0),
        (["BRATS_001", "BRATS_002", "BRATS_003"], 0),
        (["BraTS20_Training_001", "BraTS20_Training_002"], 0),
        (["BraTS2021_00001", "BraTS2021_00002"], 0),
        (GLIOMAS, 0),
    ],
)
def test_names_that_may_be_scans_of_one_patient_are_found(
    names: list[str], alike: int
) -> None:
    assert numbered_alike(names) == tuple(sorted(names)[:alike])


def test_a_split_file_may_not_part_a_patient_but_a_run_keeps_its_own(
    tmp_path: Path,
) -> None:
    parted = Split(training=("BraTS-GLI-00001-100",), validation=tuple(GLIOMAS[2:4]))
    check_patients(parted)
    parted = Split(training=(GLIOMAS[0], GLIOMAS[2]), validation=(GLIOMAS[1],))
    write_split(tmp_path / "asked.json", parted)
    with pytest.raises(ValueError, match=r"one side, got patient BraTS-GLI-00000 with"):
        known_split(tmp_path, tmp_path / "asked.json")
    assert known_split(tmp_path, tmp_path / "asked.json", group_by="none") == parted
    write_split(tmp_path / "split.json", parted)
    assert known_split(tmp_path, None) == parted


def test_a_split_comes_back_from_its_file(tmp_path: Path) -> None:
    split = Split(training=("a", "b"), validation=("c",))
    write_split(tmp_path / "split.json", split)
    assert read_split(tmp_path / "split.json") == split


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        ({"training": ["a"]}, "must have the lists"),
        ({"training": ["a"], "validation": []}, "some in each list"),
        ({"training": ["a", "b"], "validation": ["a"]}, "each subject once"),
    ],
)
def test_a_split_that_is_none_is_refused(
    tmp_path: Path, content: object, rule: str
) -> None:
    path = tmp_path / "split.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rule):
        read_split(path)
    with pytest.raises(FileNotFoundError, match="`split` must be a file"):
        read_split(tmp_path / "other.json")


def test_a_run_keeps_its_split_and_refuses_another(tmp_path: Path) -> None:
    own = Split(training=("a", "b"), validation=("c",))
    other = tmp_path / "other.json"
    write_split(other, Split(training=("a", "c"), validation=("b",)))
    assert known_split(tmp_path, None) is None
    write_split(tmp_path / "split.json", own)
    assert known_split(tmp_path, None) == own
    with pytest.raises(ValueError, match="`split` must be that of the run"):
        known_split(tmp_path, other)


def test_bad_subjects_leave_a_split_unless_a_list_would_be_empty() -> None:
    split = Split(training=("a", "b"), validation=("c",))
    assert without(split, {"b", "x"}).training == ("a",)
    with pytest.raises(ValueError, match="must leave subjects in both lists"):
        without(split, {"c"})


def test_each_patient_is_in_one_fold_s_validation() -> None:
    folds = [make_fold(GLIOMAS, k, 4) for k in range(4)]
    validated = [name for split in folds for name in split.validation]
    assert sorted(validated) == sorted(GLIOMAS)
    for split in folds:
        check_patients(split)
        assert sorted([*split.training, *split.validation]) == sorted(GLIOMAS)
        assert len(split.validation) in (4, 6)  # 10 patients of two scans
    with pytest.raises(ValueError, match="at most the number of patients, 10, got 11"):
        make_fold(GLIOMAS, 0, 11)


def test_folds_are_those_of_nnu_net() -> None:
    # KFold(5, shuffle=True, random_state=12345) of scikit-learn, with 10 names.
    names = [f"s{k}" for k in range(10)]
    folds = [make_fold(names, k, 5).validation for k in range(5)]
    order = np.random.RandomState(12345).permutation(10).tolist()
    pairs = [order[k : k + 2] for k in range(0, 10, 2)]
    assert folds == [tuple(f"s{k}" for k in sorted(pair)) for pair in pairs]


def test_nnu_net_s_file_of_folds_is_read(tmp_path: Path) -> None:
    path = tmp_path / "splits_final.json"
    folds = [{"train": ["a", "b"], "val": ["c"]}, {"train": ["a", "c"], "val": ["b"]}]
    path.write_text(json.dumps(folds))
    assert read_split(path, 1) == Split(training=("a", "c"), validation=("b",))
    for fold in (None, 2):
        with pytest.raises(
            ValueError, match=rf"2 folds of '{path}', from 0, got {fold}"
        ):
            read_split(path, fold)
    path.write_text('{"training": ["a"], "validation": ["b"]}')
    with pytest.raises(ValueError, match=rf"with the one split of '{path}', got 1"):
        read_split(path, 1)
    path.write_text('[{"train": ["a"]}]')
    with pytest.raises(ValueError, match="must list folds with 'train' and 'val' as"):
        read_split(path, 0)
