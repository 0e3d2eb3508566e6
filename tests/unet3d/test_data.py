"""Reading subjects and preparing them; most on hand-made volumes of a few voxels."""

from pathlib import Path

import nibabel
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.programs import python
from tests.unet3d.test_orientation import affine_of
from tests.unet3d.tiny import LPS
from unet3d.data import (
    MODALITIES,
    Subject,
    as_image,
    brain_box,
    normalise,
    prepare,
    read_subject,
    resize_channels,
    resize_labels,
    resized_labels,
    to_labels,
    to_regions,
)
from unet3d.orientation import from_canonical, to_canonical
from unet3d.schemes import BRATS2017, SCHEMES


def make_subject(images: NDArray, labels: NDArray | None = None) -> Subject:
    if labels is None:
        labels = np.zeros(images.shape[:3], np.uint8)
    return Subject(
        name="made",
        images=images.astype(np.float32),
        labels=labels.astype(np.uint8),
        affine=LPS,
    )


def test_arrays_are_depth_height_width_of_what_is_stored_as_x_y_z(small: Path) -> None:
    subject = read_subject(small)
    assert subject.name == "patient"
    assert subject.images.shape == (4, 5, 6, 4)
    assert subject.images.dtype == np.float32
    assert subject.labels.shape == (4, 5, 6)
    assert subject.labels.dtype == np.uint8
    # Stored at x=4, y=3, z=2: the last of 24 voxels of the third modality.
    assert subject.images[2, 3, 4, MODALITIES.index("t1ce")] == 300 + 23
    assert [subject.labels[1, 1, x] for x in (1, 2, 3)] == [1, 2, 4]


def test_cropping_keeps_the_brain_and_its_labels(small: Path) -> None:
    subject = read_subject(small)
    images, regions = prepare(subject, None)
    assert images.shape == (2, 3, 4, 4)
    expected = to_regions(subject.labels[1:3, 1:4, 1:5], SCHEMES["brats2017"])
    np.testing.assert_array_equal(regions, expected)


def test_a_subject_without_a_brain_cannot_be_prepared() -> None:
    with pytest.raises(ValueError, match="subject made: `images` must show a brain"):
        prepare(make_subject(np.zeros((2, 2, 2, 4))), 8)


def test_images_are_resized_linearly_between_voxel_centres() -> None:
    ramp = np.zeros((2, 2, 2, 1), np.float32)
    ramp[:, :, 1] = 8
    # Two voxels become four: centres at -1/4, 1/4, 3/4, 5/4 of the old ones.
    np.testing.assert_allclose(
        resize_channels(ramp, (4, 4, 4))[0, 0, :, 0], [0, 2, 6, 8]
    )


def test_resizing_to_the_same_size_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    images = rng.random((5, 5, 5, 2), dtype=np.float32)
    np.testing.assert_allclose(resize_channels(images, (5, 5, 5)), images, rtol=1e-6)
    labels = rng.integers(0, 5, (5, 5, 5)).astype(np.uint8)
    np.testing.assert_array_equal(resize_labels(labels, 5), labels)


def test_resized_labels_hold_no_new_values() -> None:
    labels = np.array([0, 1, 4], np.uint8).reshape(1, 1, 3).repeat(3, 0).repeat(3, 1)
    resized = resize_labels(labels, 6)
    assert resized.dtype == np.uint8
    assert resized[0, 0].tolist() == [0, 0, 1, 1, 4, 4]


def test_normalising_gives_mean_0_and_deviation_1_over_the_brain_alone() -> None:
    rng = np.random.default_rng(1)
    images = rng.normal(300, 50, (6, 6, 6, 2)).astype(np.float32)
    brain = rng.random((6, 6, 6)) < 0.5
    result = normalise(images, brain)
    np.testing.assert_allclose(result[brain].mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(result[brain].std(axis=0), 1, atol=1e-6)
    assert (result[~brain] == 0).all()


def test_a_constant_modality_becomes_zero_not_nan() -> None:
    images = np.full((2, 2, 2, 1), 7, np.float32)
    assert (normalise(images, np.ones((2, 2, 2), bool)) == 0).all()


def test_a_prepared_subject_is_a_normalised_cube_with_zero_background() -> None:
    rng = np.random.default_rng(2)
    images = np.zeros((9, 10, 12, 4))
    images[2:8, 1:9, 3:11] = rng.normal(200, 20, (6, 8, 8, 4))
    images[2:4, 1:4, 3:6] = 0  # a corner without brain inside the bounding box
    x, y = prepare(make_subject(images), 8)
    assert x.shape == (8, 8, 8, 4)
    assert y.shape == (8, 8, 8, 3)
    assert (x[:2, :2, :2] == 0).all()
    brain = x[(x != 0).any(axis=-1)]
    np.testing.assert_allclose(brain.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(brain.std(axis=0), 1, atol=1e-5)


def test_a_batch_of_synthetic_subjects_fits_the_network(
    folders: tuple[Path, ...],
) -> None:
    pairs = [prepare(read_subject(folder), 32) for folder in folders]
    x, y = (np.stack(part) for part in zip(*pairs, strict=True))
    assert x.shape == (2, 32, 32, 32, 4)
    assert x.dtype == np.float32
    assert y.shape == (2, 32, 32, 32, 3)
    assert np.isfinite(x).all()
    whole, core, enhancing = (y[..., k].astype(bool) for k in range(3))
    assert (whole | ~core).all()  # each region holds the next
    assert (core | ~enhancing).all()
    assert enhancing.any(axis=(1, 2, 3)).all()


@pytest.mark.parametrize(
    ("scheme", "values"),
    [("brats2017", (1, 2, 4)), ("brats2023", (1, 2, 3)), ("msd", (2, 1, 3))],
)
def test_regions_are_the_same_tissue_under_every_scheme(
    scheme: str, values: tuple[int, int, int]
) -> None:
    core_oedema_enhancing = np.array(values, np.uint8).reshape(1, 1, 3)
    regions = to_regions(core_oedema_enhancing, SCHEMES[scheme])
    assert regions[0, 0].tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 1]]


def test_sizes_are_checked(small: Path) -> None:
    with pytest.raises(ValueError, match="`size` must be at least 1, got 0"):
        prepare(read_subject(small), 0)


def test_importing_the_package_and_its_data_does_not_import_tensorflow() -> None:
    code = "import sys, unet3d.__main__, unet3d.cache, unet3d.batches;"
    code += "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    assert python("-c", code).returncode == 0


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_regions_become_the_labels_they_came_from(name: str) -> None:
    scheme = SCHEMES[name]
    labels = np.array(scheme.values, np.uint8)
    masks = np.stack([np.isin(labels, v) for v in scheme.regions.values()], axis=-1)
    np.testing.assert_array_equal(to_labels(masks.astype(float), scheme), labels)


@pytest.mark.slow
def test_truth_resized_to_144_and_back_scores_above_0_95(
    folders: tuple[Path, ...],
) -> None:
    subject = read_subject(folders[0])
    _, regions = prepare(subject, 144)
    box = brain_box(subject.images)
    shape, back = subject.labels[box].shape, np.zeros_like(subject.labels)
    assert len(shape) == 3
    back[box] = resized_labels(regions.astype(np.float32), shape, BRATS2017)
    whole, truth = back > 0, subject.labels > 0
    assert 2 * (whole & truth).sum() / (whole.sum() + truth.sum()) > 0.95


@pytest.mark.parametrize("code", ["LPS", "RAS", "SRA", "AIL"])
@pytest.mark.parametrize("tilt", [0.0, 0.4])
def test_a_written_segmentation_has_the_source_s_grid(
    tmp_path: Path, code: str, tilt: float
) -> None:
    affine = affine_of(code, tilt=tilt)
    source = nibabel.Nifti1Image(np.zeros((4, 5, 6), np.int16), affine)
    source.header.set_xyzt_units("mm", "sec")
    source.set_qform(affine, code=1)
    source.set_sform(affine, code=2)
    source.header.set_slope_inter(0.5, 3)
    stored = np.random.default_rng(0).integers(0, 4, (4, 5, 6)).astype(np.uint8)
    labels, _ = to_canonical(stored, affine)
    nibabel.save(as_image(labels, source), tmp_path / "x.nii.gz")
    image = nibabel.Nifti1Image.from_filename(tmp_path / "x.nii.gz")
    np.testing.assert_array_equal(np.asarray(image.dataobj), stored)
    np.testing.assert_allclose(np.asarray(image.affine), affine, atol=1e-5)
    assert image.get_data_dtype() == np.uint8
    assert nibabel.aff2axcodes(np.asarray(image.affine)) == tuple(code)
    assert int(image.header["qform_code"]) == 1
    assert int(image.header["sform_code"]) == 2
    assert image.header.get_xyzt_units()[0] == "mm"


def test_a_four_dimensional_source_gives_one_volume() -> None:
    source = nibabel.Nifti1Image(np.zeros((4, 5, 6, 4), np.int16), np.eye(4))
    labels = np.zeros((6, 5, 4), np.uint8)
    image = as_image(labels, source)
    assert image.shape == (4, 5, 6)
    assert from_canonical(labels, np.eye(4)).shape == (4, 5, 6)
