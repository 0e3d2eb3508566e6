"""From the cube back to the source's grid."""

from pathlib import Path

import nibabel
import numpy as np
import pytest

from tests.unet3d.test_orientation import affine_of
from unet3d.data import brain_box, prepare
from unet3d.orientation import from_canonical, to_canonical
from unet3d.reading import read_subject
from unet3d.restoring import as_image, restore, to_labels
from unet3d.schemes import BRATS2017, SCHEMES


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
    shape = subject.labels.shape
    back = restore(regions.astype(np.float32), box, shape, BRATS2017)
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
