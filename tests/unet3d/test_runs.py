"""Settings and splits of a run: kept, compared, refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from unet3d.runs import (
    Configuration,
    Split,
    check_same,
    make_split,
    read_configuration,
    read_split,
    write_configuration,
    write_split,
)

SETTINGS = Configuration(data="somewhere", label_scheme="msd", size=32)


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


def test_settings_come_back_with_versions_and_those_left_out(tmp_path: Path) -> None:
    write_configuration(tmp_path, SETTINGS, left_out=["s3 is bad"])
    assert read_configuration(tmp_path) == SETTINGS
    content = json.loads((tmp_path / "configuration.json").read_text())
    assert content["left out"] == ["s3 is bad"]
    assert set(content["versions"]) >= {"python", "tensorflow", "keras"}


def test_a_run_of_other_settings_is_refused_and_memory_may_differ(
    tmp_path: Path,
) -> None:
    write_configuration(tmp_path, SETTINGS)
    check_same(tmp_path, replace(SETTINGS, epochs=9, lms=True, budget=7, data="moved"))
    with pytest.raises(
        ValueError, match=r"`size` must be that of the run .* 32, got 4"
    ):
        check_same(tmp_path, replace(SETTINGS, size=48))


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="`run` must be the folder of a train"):
        read_configuration(tmp_path)
    (tmp_path / "configuration.json").write_text('{"configuration": {"sizes": 3}}')
    with pytest.raises(ValueError, match="must hold the settings of this version"):
        read_configuration(tmp_path)
