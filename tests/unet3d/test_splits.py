"""Splits: drawn, kept in files, refused."""

import json
from pathlib import Path

import pytest

from unet3d.splits import (
    Split,
    known_split,
    make_split,
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
