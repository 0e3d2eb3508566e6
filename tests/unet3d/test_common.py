"""A common spacing, and windows of CT: found, recorded, and undone when predicting."""

import json
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.unet3d.test_validation import settings
from tests.unet3d.tiny import save, write_knees
from unet3d.__main__ import main
from unet3d.common import find_windows, median_grid
from unet3d.data import Common, normalise, prepare, prepare_images
from unet3d.prediction import Style, predict
from unet3d.reading import read_images, read_subject
from unet3d.runs import read_configuration
from unet3d.schemes import LabelScheme, choose_scheme
from unet3d.subjects import SubjectFiles, find_subjects
from unet3d.training import train

pytestmark = pytest.mark.tf

# Keras copies variables in a way that NumPy 2 warns of.
COPIES = "ignore:__array__ implementation:DeprecationWarning"


def scheme_of(data: Path) -> LabelScheme:
    scheme = choose_scheme(None, data)
    assert scheme is not None
    return scheme


def subjects_of(data: Path) -> tuple[SubjectFiles, ...]:
    return find_subjects(data, scheme_of(data).channels).subjects


def write_ct(data: Path, shapes: Any, spacings: Any) -> Path:
    for number, (shape, sides) in enumerate(zip(shapes, spacings, strict=True)):
        rng = np.random.default_rng(number)
        labels = np.zeros(shape, np.uint8)
        labels[2:6, 2:6, 1:3] = 1
        image = np.where(labels, 60, -100) + rng.integers(-20, 20, shape)
        image[0] = -1000
        affine = np.diag([-sides[0], -sides[1], sides[2], 1])
        path = data / "imagesTr" / f"ct_{number}_0000.nii.gz"
        save(path, image.astype(np.int16), affine)
        save(data / "labelsTr" / f"ct_{number}.nii.gz", labels, affine)
    content = {"channel_names": {"0": "CT"}, "labels": {"background": 0, "liver": 1}}
    (data / "dataset.json").write_text(json.dumps(content))
    return data


def test_the_common_spacing_is_the_median_and_the_shape_that_of_resampled_scans(
    tmp_path: Path,
) -> None:
    spacings = [(0.8, 0.8, 2.0), (0.8, 0.8, 1.0), (1.0, 1.0, 2.0)]
    data = write_ct(tmp_path, [(10, 12, 8)] * 3, spacings)
    # Along (depth, height, width): 8 of 2, 1 and 2 mm; 12, and 10, of 0.8 and 1 mm.
    assert median_grid(subjects_of(data)) == ((8, 12, 10), (2.0, 0.8, 0.8))


def test_of_long_and_few_voxels_the_tenth_percentile_counts(tmp_path: Path) -> None:
    spacings = [(1.0, 1.0, side) for side in (4.0, 5.0, 6.0)]
    data = write_ct(tmp_path, [(20, 20, 5)] * 3, spacings)
    assert median_grid(subjects_of(data))[1] == (4.2, 1.0, 1.0)


def test_axes_in_another_order_have_the_same_spacing(tmp_path: Path) -> None:
    data = write_ct(tmp_path, [(10, 12, 8)] * 2, [(0.8, 0.9, 2.0)] * 2)
    for path in sorted(data.rglob("ct_1*.nii.gz")):
        image: Any = nibabel.load(path)
        voxels = np.asarray(image.dataobj).transpose(2, 0, 1)
        save(path, voxels, image.affine[:, [2, 0, 1, 3]])
    assert median_grid(subjects_of(data)) == ((8, 12, 10), (2.0, 0.9, 0.8))


def test_a_window_is_that_of_labelled_voxels_as_they_were_stored(
    tmp_path: Path,
) -> None:
    data = write_ct(tmp_path, [(10, 12, 8)] * 2, [(1.0, 1.0, 1.0)] * 2)
    (window,) = find_windows(subjects_of(data), scheme_of(data))
    assert window is not None
    low, high, mean, deviation = window
    assert 40 <= low < mean < high < 80
    assert deviation == pytest.approx(np.arange(-20, 20).std(), rel=0.1)
    scan = read_images(subjects_of(data)[0])
    assert scan.shifts == (-1001.0,)  # air lies in four corners only
    images, box = prepare_images(scan, None, Common(windows=(window,)))
    stored = np.clip(scan.images[box] - 1001, low, high)
    np.testing.assert_allclose(images, (stored - mean) / deviation, rtol=1e-4)


def test_a_channel_without_a_window_keeps_its_own_mean() -> None:
    images = np.random.default_rng(0).normal(5, 2, (4, 4, 4, 2)).astype(np.float32)
    brain = np.ones((4, 4, 4), np.bool_)
    window = (0.0, 10.0, 5.0, 2.0)
    both = normalise(images, brain, (None, window), (0.0, 0.0))
    np.testing.assert_array_equal(both[..., 0], normalise(images, brain)[..., 0])
    assert both[..., 1].max() <= 2.5


def test_a_scan_is_resampled_with_its_labels(tmp_path: Path) -> None:
    data = write_ct(tmp_path, [(10, 12, 8)], [(1.0, 1.0, 2.0)])
    subject = read_subject(subjects_of(data)[0], scheme_of(data))
    own = prepare(subject, None, scheme_of(data))
    images, regions = prepare(
        subject, None, scheme_of(data), Common(spacing=(1.0, 1.0, 1.0))
    )
    assert images.shape[0] == regions.shape[0] == 2 * own[0].shape[0]
    assert regions.sum() == 2 * own[1].sum()


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.filterwarnings(COPIES)
def test_a_rotated_anisotropic_scan_gets_the_same_labels_on_its_own_grid(
    tmp_path: Path,
) -> None:
    data, run = write_knees(tmp_path / "data", 3), tmp_path / "run"
    chosen = settings(data, patch=(4, 8, 8), spacing=(1.0, 0.8, 0.8), epochs=1)
    train(chosen, run, cache=tmp_path / "cache")
    plain, turned = tmp_path / "plain", tmp_path / "turned"
    plain.mkdir()
    turned.mkdir()

    def turn(voxels: NDArray[Any]) -> NDArray[Any]:
        return np.flip(voxels.transpose(1, 2, 0), 0)

    for path in sorted((data / "imagesTr").glob("knee_1_*.nii.gz")):
        image: Any = nibabel.load(path)
        voxels = np.asarray(image.dataobj)
        save(plain / path.name, voxels, image.affine)
        affine = image.affine[:, [1, 2, 0, 3]].copy()
        affine[:3, 3] += affine[:3, 0] * (voxels.shape[1] - 1)
        affine[:3, 0] *= -1
        save(turned / path.name, turn(voxels), affine)
    style = Style(kept=True)
    found = {}
    for folder in (plain, turned):
        out = folder.with_suffix(".out")
        predict(run, folder, out, subjects="all", style=style)
        image = nibabel.load(out / "knee_1.nii.gz")
        found[folder.name] = np.asarray(image.dataobj)
    # Spaced 0.8 x 0.8 x 2 mm: twice as long along the axis that is resampled.
    assert found["plain"].shape == (10, 10, 8)
    np.testing.assert_array_equal(turn(found["plain"]), found["turned"])


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.filterwarnings(COPIES)
def test_a_run_records_spacing_and_windows_and_goes_on_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spacings = [(1.0, 1.0, 2.0), (1.0, 1.0, 1.0), (1.0, 1.0, 2.0)]
    data = write_ct(tmp_path / "data", [(12, 12, 8)] * 3, spacings)
    monkeypatch.setattr("tensorflow.config.experimental.enable_op_determinism", int)
    words = ["train", "--data", str(data), "--patch", "4x8x8", "--depth", "2"]
    words += ["--filters", "2", "--no-lms", "--linear-heads"]
    words += ["--cache", str(tmp_path / "cache"), "--output", str(tmp_path / "run")]
    assert main([*words, "--epochs", "1"]) == 0
    kept = read_configuration(tmp_path / "run")
    assert kept.spacing == (2.0, 1.0, 1.0)
    assert kept.patch == (4, 8, 8)
    assert kept.windows[0] is not None
    assert main([*words, "--epochs", "2", "--resume"]) == 0
    assert main(["train", "--resume", str(tmp_path / "run"), "--epochs", "3"]) == 0
    assert read_configuration(tmp_path / "run") != kept
    assert len((tmp_path / "run" / "log.csv").read_text().splitlines()) == 4


def test_a_spacing_without_patches_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_ct(tmp_path / "d", [(10, 12, 8)] * 2, [(1.0, 1.0, 1.0)] * 2)
    words = ["train", "--data", str(data), "--output", str(tmp_path / "run")]
    assert main([*words, "--spacing", "1x1x1"]) == 2
    assert "`spacing` must come with --patch, got" in capsys.readouterr().err
