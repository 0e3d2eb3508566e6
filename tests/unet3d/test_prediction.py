"""Predictions lie on the grid of the source's files, whatever its orientation."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import nibabel
import numpy as np
import pytest

from tests.unet3d.test_orientation import affine_of
from tests.unet3d.tiny import BRATS2023_ENDS, SHAPE, write_folder
from unet3d.checkpoints import load_weights, save_weights
from unet3d.patches import predict_volume
from unet3d.prediction import Style, predict
from unet3d.runs import Configuration, read_configuration, write_configuration
from unet3d.splits import Split, write_split
from unet3d.training import build_for

# Keras copies variables in a way that NumPy 2 warns of.
COPIES = "ignore:__array__ implementation:DeprecationWarning"
pytestmark = [pytest.mark.tf, pytest.mark.filterwarnings(COPIES)]

CODES = ("LPS", "RAS", "SRA")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A subject for each of several oblique orientations, without segmentations."""
    folder = tmp_path_factory.mktemp("data")
    for code in CODES:
        affine = affine_of(code, tilt=0.3)
        subject = write_folder(folder / code, ends=BRATS2023_ENDS, affine=affine)
        (subject / f"{code}-seg.nii.gz").unlink()
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained network of brats2023, saved as a training does."""
    folder = tmp_path_factory.mktemp("run")
    configuration = Configuration(
        data="", label_scheme="brats2023", size=8, filters=1, depth=2, lms=False
    )
    write_configuration(folder, configuration)
    write_split(folder / "split.json", Split(training=("x",), validation=("RAS",)))
    save_weights(build_for(configuration), folder / "best.weights.h5")
    return folder


@pytest.mark.parametrize("size", [None, 12])
def test_shape_affine_and_labels_are_the_source_s_and_the_scheme_s(
    data: Path, run: Path, tmp_path: Path, size: int | None
) -> None:
    predicted = predict(run, data, tmp_path, subjects="all", size=size)
    assert predicted.names == tuple(sorted(CODES))
    for code in CODES:
        source = nibabel.Nifti1Image.from_filename(data / code / f"{code}-t2f.nii.gz")
        image = nibabel.Nifti1Image.from_filename(tmp_path / f"{code}.nii.gz")
        assert image.shape == SHAPE
        np.testing.assert_allclose(np.asarray(image.affine), np.asarray(source.affine))
        assert nibabel.aff2axcodes(np.asarray(image.affine)) == tuple(code)
        assert image.get_data_dtype() == np.uint8
        labels = np.asarray(image.dataobj)
        assert set(np.unique(labels)) <= {0, 1, 2, 3}
        assert labels.any()
        outside = np.asarray(source.dataobj) == 0
        box = labels[1:5, 1:4, 1:3]
        assert labels.sum() == box.sum()  # nothing beyond the brain's box
        assert outside.any()
        with np.load(tmp_path / "cubes" / f"{code}.npz") as cube:
            assert cube["labels"].shape == (size or 8,) * 3
    said = json.loads((tmp_path / "predictions.json").read_text())
    assert said["label scheme"] == "brats2023"
    assert said["size"] == (size or 8)


def test_the_validation_subjects_or_a_file_s_are_taken(
    data: Path, run: Path, tmp_path: Path
) -> None:
    assert predict(run, data, tmp_path / "p").names == ("RAS",)
    (tmp_path / "names").write_text("SRA\n\n")
    chosen = predict(run, data, tmp_path / "q", subjects=str(tmp_path / "names"))
    assert chosen.names == ("SRA",)
    (tmp_path / "names").write_text("nobody\n")
    with pytest.raises(ValueError, match="got nobody, which is not there"):
        predict(run, data, tmp_path / "q", subjects=str(tmp_path / "names"))
    with pytest.raises(ValueError, match=r"got everyone, .* Pass --subjects all"):
        predict(run, data, tmp_path / "q", subjects="everyone")
    (tmp_path / "p" / "predictions.json").write_text('{"run": "another"}')
    with pytest.raises(ValueError, match="with those of 'another'"):
        predict(run, data, tmp_path / "p")


def test_a_run_without_weights_is_refused(
    data: Path, run: Path, tmp_path: Path
) -> None:
    for name in ("configuration.json", "split.json"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    with pytest.raises(FileNotFoundError, match="`run` must hold weights"):
        predict(tmp_path, data, tmp_path / "p")


def cut(content: bytes) -> bytes:
    return content[:-500]


def scribble(content: bytes) -> bytes:
    return content[:600] + b"\xff" * 800 + content[1400:]


def of_another_library(_: bytes) -> bytes:
    file = io.BytesIO()
    with h5py.File(file, "w") as content:
        content.create_dataset("conv/kernel", data=[1.0, 2.0])
    return file.getvalue()


@pytest.mark.parametrize(
    ("damage", "got"),
    [
        (cut, "a damaged or other file"),
        (lambda _: b"", "a damaged or other file"),
        (lambda _: b"text", "a damaged or other file"),
        (scribble, "a damaged or other file"),
        (of_another_library, "weights of another network"),
    ],
)
def test_damaged_and_foreign_weights_are_refused_in_a_line(
    run: Path, tmp_path: Path, damage: Callable[[bytes], bytes], got: str
) -> None:
    path = tmp_path / "best.weights.h5"
    path.write_bytes(damage((run / path.name).read_bytes()))
    rule = rf"`{path}` must hold the weights of its run's net.*, got {got}.*Restore"
    with pytest.raises(ValueError, match=rule) as caught:
        load_weights(build_for(read_configuration(run)), path)
    assert len(str(caught.value)) < 400


def test_weights_of_another_network_are_refused_and_one_s_own_come_back(
    run: Path, tmp_path: Path
) -> None:
    own = read_configuration(run)
    model, path = build_for(own), tmp_path / "best.weights.h5"
    save_weights(build_for(replace(own, filters=2)), path)
    with pytest.raises(ValueError, match="got weights of another network"):
        load_weights(model, path)
    save_weights(other := build_for(replace(own, seed=1)), path)
    load_weights(model, path)
    for mine, theirs in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    model.variables[0].assign(np.full(model.variables[0].shape, np.nan))
    save_weights(model, path)
    with pytest.raises(ValueError, match="got values that are no numbers"):
        load_weights(model, path)


def probabilities(folder: Path, name: str) -> np.ndarray:
    path = folder / "probabilities" / f"{name}.nii.gz"
    return np.asarray(nibabel.Nifti1Image.from_filename(path).dataobj)


@pytest.fixture(scope="module")
def other(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained network of other weights, which validates with another subject."""
    folder = tmp_path_factory.mktemp("other")
    configuration = replace(read_configuration(run), seed=1)
    write_configuration(folder, configuration)
    write_split(folder / "split.json", Split(training=("RAS",), validation=("SRA",)))
    save_weights(build_for(configuration), folder / "best.weights.h5")
    return folder


def test_probabilities_of_several_runs_are_averaged(
    data: Path, run: Path, other: Path, tmp_path: Path
) -> None:
    kept = Style(kept=True)
    for name, runs in {"a": [run], "b": [other], "both": [run, other]}.items():
        predict(runs, data, tmp_path / name, subjects="SRA", style=kept)
    first, second, both = (
        probabilities(tmp_path / n, "SRA") for n in ("a", "b", "both")
    )
    assert both.shape == (*SHAPE, 3)
    assert not np.array_equal(first, second)
    np.testing.assert_allclose(both, (first + second) / 2, rtol=1e-6)
    labels = nibabel.Nifti1Image.from_filename(tmp_path / "both" / "SRA.nii.gz")
    whole = np.asarray(labels.dataobj) > 0
    np.testing.assert_array_equal(whole, both[..., 0] > 0.5)
    with pytest.raises(ValueError, match="without predictions of another run"):
        predict(run, data, tmp_path / "both")


def test_folds_predict_whom_they_did_not_train_with(
    data: Path, run: Path, other: Path, tmp_path: Path
) -> None:
    kept = Style(kept=True)
    both = predict([run, other], data, tmp_path / "both", style=kept)
    assert both.names == ("RAS", "SRA")
    for folder, name in ((run, "RAS"), (other, "SRA")):
        predict(folder, data, tmp_path / name, style=kept)
        alone = probabilities(tmp_path / name, name)
        np.testing.assert_array_equal(probabilities(tmp_path / "both", name), alone)


def test_a_folder_of_known_images_is_predicted_by_folds_alike(
    data: Path, run: Path, other: Path, tmp_path: Path
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for folder in data.iterdir():
        for k, end in enumerate(BRATS2023_ENDS[:4]):
            scan = (folder / f"{folder.name}{end}.nii.gz").read_bytes()
            (images / f"{folder.name}_{k:04d}.nii.gz").write_bytes(scan)
    assert predict(run, images, tmp_path / "one").names == ("RAS",)
    assert predict([run, other], images, tmp_path / "both").names == ("RAS", "SRA")


def test_mirror_images_are_averaged(data: Path, run: Path, tmp_path: Path) -> None:
    configuration = read_configuration(run)
    load_weights(model := build_for(configuration, 8), run / "best.weights.h5")
    cube = np.random.default_rng(0).normal(size=(8, 8, 8, 4)).astype(np.float32)
    once = predict_volume(model, cube, patched=False, mirrored=True)
    flipped = predict_volume(model, np.flip(cube, (0, 2)), patched=False, mirrored=True)
    np.testing.assert_allclose(np.flip(flipped, (0, 2)), once, rtol=1e-5)


def test_runs_of_other_labels_are_not_averaged(
    data: Path, run: Path, tmp_path: Path
) -> None:
    configuration = replace(read_configuration(run), label_scheme="brats2017")
    write_configuration(tmp_path / "run", configuration)
    with pytest.raises(ValueError, match=r"runs of one label scheme, .* one by one"):
        predict([run, tmp_path / "run"], data, tmp_path / "p")
