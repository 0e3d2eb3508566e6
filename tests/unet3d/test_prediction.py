"""Predictions lie on the grid of the source's files, whatever its orientation."""

import json
from pathlib import Path

import nibabel
import numpy as np
import pytest

from tests.unet3d.test_orientation import affine_of
from tests.unet3d.tiny import BRATS2023_ENDS, SHAPE, write_folder
from unet3d.runs import Configuration, write_configuration
from unet3d.splits import Split, write_split

pytestmark = [
    pytest.mark.tf,
    # Keras copies variables in a way that NumPy 2 warns of.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

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
    from unet3d.checkpoints import save_weights
    from unet3d.training import build_for

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
    from unet3d.prediction import predict

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
    from unet3d.prediction import predict

    assert predict(run, data, tmp_path / "p").names == ("RAS",)
    (tmp_path / "names").write_text("SRA\n\n")
    chosen = predict(run, data, tmp_path / "q", subjects=str(tmp_path / "names"))
    assert chosen.names == ("SRA",)
    (tmp_path / "names").write_text("nobody\n")
    with pytest.raises(ValueError, match="got nobody, which is not there"):
        predict(run, data, tmp_path / "q", subjects=str(tmp_path / "names"))
    with pytest.raises(FileNotFoundError, match="'validation', 'all' or a file"):
        predict(run, data, tmp_path / "q", subjects="everyone")


def test_a_run_without_weights_is_refused(
    data: Path, run: Path, tmp_path: Path
) -> None:
    from unet3d.prediction import predict

    for name in ("configuration.json", "split.json"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    with pytest.raises(FileNotFoundError, match="`run` must hold weights"):
        predict(tmp_path, data, tmp_path / "p")
