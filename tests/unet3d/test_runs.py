"""Settings of a run: kept, compared, refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unet3d.runs import (
    Configuration,
    check_same,
    check_start,
    read_configuration,
    write_configuration,
)

SETTINGS = Configuration(data="somewhere", label_scheme="msd", size=32)


def test_settings_come_back_with_versions_and_those_left_out(tmp_path: Path) -> None:
    write_configuration(tmp_path, SETTINGS, left_out=["s3 is bad"])
    assert read_configuration(tmp_path) == SETTINGS
    content = json.loads((tmp_path / "configuration.json").read_text())
    assert content["left out"] == ["s3 is bad"]
    assert set(content["versions"]) >= {"python", "tensorflow", "keras"}


@pytest.mark.parametrize("resume", [False, True])
def test_a_training_starts_in_no_folder_with_half_a_run(
    tmp_path: Path, *, resume: bool
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    check_start(tmp_path, SETTINGS, resume=resume)
    (tmp_path / "state.npz").write_text("of a run")
    with pytest.raises(ValueError, match=r"with state\.npz and no configuration\.json"):
        check_start(tmp_path, SETTINGS, resume=resume)
    (tmp_path / "state.npz").unlink()
    write_configuration(tmp_path, SETTINGS)
    other = SETTINGS if resume else replace(SETTINGS, epochs=9)
    check_start(tmp_path, other, resume=True)
    with pytest.raises(ValueError, match="Go on with it by --resume"):
        check_start(tmp_path, SETTINGS, resume=False)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="`run` must be the folder of a train"):
        read_configuration(tmp_path)
    (tmp_path / "configuration.json").write_text('{"configuration": {"sizes": 3}}')
    with pytest.raises(ValueError, match="must hold the settings of this version"):
        read_configuration(tmp_path)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"batch_size": 0}, "`batch_size` must be at least 1, got 0"),
        ({"epochs": 0}, "`epochs` must be at least 1, got 0"),
        ({"steps_per_epoch": 0}, "`steps_per_epoch` must be at least 1, got 0"),
        ({"fold": 5}, "`fold` must be from 0 to 4, one of 5 folds, got 5"),
        ({"folds": 1}, "`folds` must be at least 2, got 1"),
        ({"seed": -1}, "`seed` must be at least 0, got -1"),
        ({"group_by": "("}, r"`group by` must be a regular expression or 'none', got"),
        ({"lms": False, "budget": 7}, "`budget` must come with large model support"),
    ],
)
def test_settings_that_cannot_start_are_refused(
    changes: dict[str, Any], rule: str
) -> None:
    with pytest.raises(ValueError, match=rule):
        replace(SETTINGS, **changes)


def test_the_size_of_a_run_on_patches_may_be_repeated_or_left_out(
    tmp_path: Path,
) -> None:
    begun = replace(SETTINGS, patch=16)
    write_configuration(tmp_path, begun)  # without the size
    check_same(tmp_path, begun)
    with pytest.raises(ValueError, match="`patch` must be that of the run"):
        check_same(tmp_path, SETTINGS)
    write_configuration(tmp_path, SETTINGS)
    with pytest.raises(ValueError, match="`size` must be that of the run"):
        check_same(tmp_path, replace(SETTINGS, size=48))


def test_a_run_of_before_there_were_patients_is_gone_on_with(tmp_path: Path) -> None:
    write_configuration(tmp_path, SETTINGS)
    path = tmp_path / "configuration.json"
    content = json.loads(path.read_text())
    for later in ("group_by", "softmax", "background", "fold"):
        del content["configuration"][later]
    path.write_text(json.dumps(content))
    found = read_configuration(tmp_path)
    assert (found.group_by, found.softmax, found.fold) == (None, False, None)
    check_same(tmp_path, SETTINGS)
