"""Training on subjects of a few voxels: what it writes, refuses, and goes on with."""

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from rich.console import Console
from rich.progress import Progress

from lms.errors import MissingExtraError
from tests.unet3d.tiny import write_folder
from unet3d.checkpoints import restore_state
from unet3d.runs import Configuration
from unet3d.splits import make_fold, without
from unet3d.training import build_for, train

# Keras copies variables in a way that NumPy 2 warns of.
COPIES = "ignore:__array__ implementation:DeprecationWarning"
pytestmark = [pytest.mark.tf, pytest.mark.filterwarnings(COPIES)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("subjects")
    for name in "abcde":
        write_folder(folder / name)
    return folder


def settings(data: Path, **changes: Any) -> Configuration:
    tiny: dict[str, Any] = {"size": 8, "filters": 1, "depth": 2, "epochs": 1}
    tiny |= {"label_scheme": "brats2017", "lms": False} | changes
    return Configuration(data=str(data), **tiny)


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch."""
    output = tmp_path_factory.mktemp("run")
    train(settings(data), output, cache=output / "cache")
    return output


def state(run: Path) -> dict[str, np.ndarray]:
    with np.load(run / "state.npz") as arrays:
        return {name: arrays[name] for name in arrays.files if name != "rest"}


def log(run: Path) -> list[dict[str, str]]:
    rows = list(csv.DictReader((run / "log.csv").read_text().splitlines()))
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def test_a_run_that_tensorboard_cannot_write_is_refused_before_it_begins(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    run = tmp_path / "run"
    with pytest.raises(MissingExtraError, match="the extra `tensorboard` brings it"):
        train(settings(data), run, cache=tmp_path / "cache", tensorboard=True)
    assert not run.exists()


def test_tensorboard_gets_losses_dice_and_swapped_bytes(
    data: Path, tmp_path: Path
) -> None:
    reading = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = pytest.importorskip(reading).EventAccumulator
    settled = settings(data, epochs=2, lms=True, budget=64 * 2**20)
    train(settled, tmp_path, cache=tmp_path / "cache", tensorboard=True)
    rows, found = log(tmp_path), dict[str, list[float]]()
    for part in ("train", "validation"):
        events = accumulator(str(tmp_path / "tensorboard" / part))
        for tag in events.Reload().Tags()["tensors"]:
            values = [tf.make_ndarray(e.tensor_proto) for e in events.Tensors(tag)]
            found[f"{part}/{tag}"] = [float(value) for value in values]
    for tag, column in (
        ("train/epoch_loss", "loss"),
        ("validation/epoch_dice_coefficient", "val_dice_coefficient"),
    ):
        assert found[tag] == pytest.approx([float(row[column]) for row in rows])
    assert found["train/epoch_lms_swapped"] == [0, 0]
    assert len(found["train/epoch_lms_peak"]) == 2


def test_everything_is_beside_the_weights(run: Path) -> None:
    files = {path.name for path in run.iterdir() if path.is_file()}
    json_files = {f"{name}.json" for name in ("configuration", "memory", "split")}
    others = {"best.weights.h5", "last.weights.h5", "log.csv", "state.npz"}
    assert files == json_files | others
    (row,) = log(run)
    assert row.keys() >= {"epoch", "loss", "val_dice_coefficient", "val_dice_core"}
    split = json.loads((run / "split.json").read_text())
    assert (len(split["training"]), len(split["validation"])) == (4, 1)


def test_a_second_start_needs_resume_and_the_run_s_settings(
    data: Path, run: Path
) -> None:
    before = state(run)
    with pytest.raises(ValueError, match="Go on with it by --resume"):
        train(settings(data), run, cache=run / "cache")
    with pytest.raises(
        ValueError, match=r"`filters` must be that of the run .* 1, got"
    ):
        train(settings(data, filters=2), run, cache=run / "cache", resume=True)
    done = train(settings(data), run, cache=run / "cache", resume=True)
    assert done.epochs == 1  # nothing is left to do
    np.testing.assert_array_equal(before["model0000"], state(run)["model0000"])


def test_a_damaged_state_is_refused_by_what_is_wrong(run: Path, tmp_path: Path) -> None:
    model, path = build_for(settings(run)), tmp_path / "state.npz"
    sound = (run / "state.npz").read_bytes()
    for content in (b"", b"text", sound[:900], sound[:2000] + b"#" + sound[2001:]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="must be a state that training wrote"):
            restore_state(model, tmp_path)
    np.save(tmp_path / "state.npy", np.ones(3))
    (tmp_path / "state.npy").rename(path)
    with pytest.raises(ValueError, match="must be a state that training wrote"):
        restore_state(model, tmp_path)
    for rest in ("[]", "3", '{"epoch": 1, "finished": false, "history": []}'):
        np.savez(path, rest=np.array(rest))
        with pytest.raises(ValueError, match="Restore it from a copy, or remove it"):
            restore_state(model, tmp_path)


def test_a_subject_that_is_gone_in_an_epoch_is_told_as_it_is(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any, **__: Any) -> None:
        raise FileNotFoundError(2, "No such file or directory", "b_t1.nii.gz")

    monkeypatch.setattr("unet3d.training.load_prepared", lost)
    with pytest.raises(FileNotFoundError, match=r"b_t1\.nii\.gz"):
        train(settings(data), tmp_path / "run", cache=tmp_path / "cache")


def test_bad_subjects_stop_the_training_or_are_listed(
    data: Path, tmp_path: Path
) -> None:
    for folder in sorted(data.iterdir()):
        (tmp_path / "data" / folder.name).mkdir(parents=True)
        for path in folder.iterdir():
            (tmp_path / "data" / folder.name / path.name).symlink_to(path)
    bad = tmp_path / "data" / "b" / "b_t1.nii.gz"
    bad.unlink()
    bad.write_bytes(b"scribble")
    with pytest.raises(
        ValueError, match=r"`b_t1\.nii\.gz` of subject b must be .* --skip"
    ):
        train(settings(tmp_path / "data"), tmp_path / "r", cache=tmp_path / "c")
    options: dict[str, Any] = {"cache": tmp_path / "c", "skip_bad": True}
    outcome = train(settings(tmp_path / "data"), tmp_path / "r", **options)
    assert [problem.name for problem in outcome.problems] == ["b"]
    assert "b" not in outcome.split.training + outcome.split.validation
    written = json.loads((tmp_path / "r" / "configuration.json").read_text())
    assert "b_t1.nii.gz" in written["left out"][0]
    for fold in range(2):  # drawn as if no subject were bad
        chosen = settings(tmp_path / "data", fold=fold, folds=2)
        outcome = train(chosen, tmp_path / f"fold{fold}", **options)
        assert outcome.split == without(make_fold("abcde", fold, 2), {"b"})


def test_a_run_goes_on_with_the_dice_that_it_began_with(
    data: Path, tmp_path: Path
) -> None:
    """An earlier version scored patches: its best Dice tells nothing of whole scans."""
    folder, lines = tmp_path / "run", list[str]()
    options: dict[str, Any] = {"label_scheme": "brats2024", "epochs": 2}
    for changes in ({"epochs": 1}, {}):
        chosen = settings(data, **options | changes)
        train(chosen, folder, cache=tmp_path / "c", resume=bool(lines))
        state = dict(np.load(folder / "state.npz"))
        rest = json.loads(str(state["rest"]))
        lines.append(str(rest.pop("written")))
        state["rest"] = np.array(json.dumps(rest))  # as earlier versions wrote it
        np.savez(folder / "state.npz", **state)
    assert lines == ["True", "False"]


def test_scans_that_may_be_of_one_patient_are_named_before_training(
    tmp_path: Path,
) -> None:
    for name in ("P1_Timepoint_1", "P1_Timepoint_2", "P2_Timepoint_1"):
        write_folder(tmp_path / "data" / name)
    bars = Progress(console=Console(file=(text := io.StringIO())))
    chosen = settings(tmp_path / "data")
    train(chosen, tmp_path / "run", cache=tmp_path / "cache", progress=bars)
    warning = "their own: P1_Timepoint_1, P1_Timepoint_2. Say by --group-by how"
    assert warning in text.getvalue()
