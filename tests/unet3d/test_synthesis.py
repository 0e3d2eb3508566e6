"""Synthetic subjects: layout on disk, anatomy, repeatability."""

from pathlib import Path

import nibabel
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from unet3d.__main__ import main
from unet3d.phantom import EXTENTS, Phantom
from unet3d.synthesis import AFFINE, GRID, synthesize

MODALITIES = ("flair", "t1", "t1ce", "t2")


def voxels(folder: Path, name: str) -> NDArray[np.integer]:
    image = nibabel.Nifti1Image.from_filename(folder / f"{folder.name}_{name}.nii.gz")
    return np.asarray(image.dataobj)


def tiny_phantom() -> Phantom:
    box = np.arange(1, 25, dtype=np.int16).reshape(2, 3, 4)
    return Phantom(
        images=dict.fromkeys(MODALITIES, box), labels=np.full((2, 3, 4), 4, np.uint8)
    )


def test_files_have_the_grid_types_units_and_affine_of_brats(
    folders: tuple[Path, ...],
) -> None:
    for path in folders[0].iterdir():
        image = nibabel.Nifti1Image.from_filename(path)
        kind = np.uint8 if "_seg" in path.name else np.int16
        assert image.shape == GRID == (240, 240, 155)
        assert image.get_data_dtype() == kind
        assert image.header.get_zooms() == (1, 1, 1)
        assert image.header.get_xyzt_units()[0] == "mm"
        np.testing.assert_array_equal(np.asarray(image.affine), AFFINE)


def test_extents_of_the_brain_stay_in_the_case_study_s_range(
    folders: tuple[Path, ...],
) -> None:
    least, _, greatest = EXTENTS
    for folder in folders:
        brain = voxels(folder, "t1") != 0
        extents = [s.stop - s.start for s in ndimage.find_objects(brain.astype(int))[0]]
        assert all(np.greater_equal(extents, least))
        assert all(np.less_equal(extents, greatest))


def test_the_tumour_has_all_labels_and_lies_in_the_brain(
    folders: tuple[Path, ...],
) -> None:
    for folder in folders:
        labels = voxels(folder, "seg")
        assert np.unique(labels).tolist() == [0, 1, 2, 4]
        assert (voxels(folder, "t1")[labels != 0] != 0).all()
        assert 1e4 < np.count_nonzero(labels) < 4e5


def test_contrasts_are_those_of_the_modalities(folders: tuple[Path, ...]) -> None:
    labels = voxels(folders[0], "seg")
    healthy = (voxels(folders[0], "t1") != 0) & (labels == 0)
    mean = {
        (name, label): voxels(folders[0], name)[where].mean()
        for name in MODALITIES
        for label, where in [(0, healthy), *((k, labels == k) for k in (1, 2, 4))]
    }
    assert mean["t1ce", 4] > 1.3 * mean["t1ce", 0]  # the rim takes up contrast agent
    assert mean["t1ce", 1] < mean["t1ce", 0]
    assert mean["flair", 2] > 1.3 * mean["flair", 0]
    assert mean["t2", 2] > 1.2 * mean["t2", 0]
    assert mean["t1", 2] < mean["t1", 0]


def test_the_same_seed_gives_the_same_voxels_however_many_subjects_are_written(
    folders: tuple[Path, ...], tmp_path: Path
) -> None:
    done: list[Path] = []
    (alone,) = synthesize(tmp_path, subjects=1, seed=5, progress=done.append)
    assert done == [alone]
    for name in (*MODALITIES, "seg"):
        expected = voxels(folders[0], name).tobytes()
        assert voxels(alone, name).tobytes() == expected


@pytest.mark.parametrize(
    ("options", "error", "rule"),
    [
        ({"subjects": 0, "seed": 0}, ValueError, "`subjects` must be at least 1, got"),
        ({"subjects": 1, "seed": -1}, ValueError, "`seed` must be at least 0, got -1"),
        ({"subjects": 1.0, "seed": 0}, TypeError, "`subjects` must be an integer"),
    ],
)
def test_bad_values_are_refused_before_anything_is_written(
    tmp_path: Path, options: dict, error: type[Exception], rule: str
) -> None:
    with pytest.raises(error, match=rule):
        synthesize(tmp_path / "data", **options)
    assert not (tmp_path / "data").exists()


def test_every_seed_and_every_subject_has_its_own_randomness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []

    def draw(rng: np.random.Generator) -> Phantom:
        drawn.append(int(rng.integers(2**60)))
        return tiny_phantom()

    monkeypatch.setattr("unet3d.synthesis.draw_phantom", draw)
    for seed in (5, 6):
        synthesize(tmp_path, subjects=2, seed=seed)
    assert len(set(drawn)) == 4


def test_the_command_explains_a_bad_value_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["synthesize", "--output", str(tmp_path), "--subjects", "0"]) == 2
    assert "`subjects` must be at least 1" in capsys.readouterr().err
