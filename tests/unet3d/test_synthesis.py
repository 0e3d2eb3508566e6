"""What the synthetic subjects promise: layout on disk, anatomy, repeatability."""

from pathlib import Path

import nibabel
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from unet3d.__main__ import main
from unet3d.phantom import EXTENTS, Phantom
from unet3d.synthesis import AFFINE, GRID, synthesize, write_subject

MODALITIES = ("flair", "t1", "t1ce", "t2")


def voxels(folder: Path, name: str) -> NDArray[np.integer]:
    image = nibabel.Nifti1Image.from_filename(folder / f"{folder.name}_{name}.nii.gz")
    return np.asarray(image.dataobj)


def tiny_phantom() -> Phantom:
    box = np.arange(1, 25, dtype=np.int16).reshape(2, 3, 4)
    return Phantom(
        images=dict.fromkeys(MODALITIES, box), labels=np.full((2, 3, 4), 4, np.uint8)
    )


def test_a_subject_is_a_folder_of_five_files_and_nothing_else(
    folders: tuple[Path, ...],
) -> None:
    for folder, name in zip(folders, ("synthetic_000", "synthetic_001"), strict=True):
        expected = {f"{name}_{kind}.nii.gz" for kind in (*MODALITIES, "seg")}
        assert folder.name == name
        assert {path.name for path in folder.iterdir()} == expected


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


def test_the_first_axis_runs_to_the_left_and_the_second_to_the_back() -> None:
    assert nibabel.aff2axcodes(AFFINE) == ("L", "P", "S")


def test_a_brain_starts_at_the_corner_it_is_given(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    write_subject(folder, tiny_phantom(), corner=(5, 6, 7))
    image = voxels(folder, "t2")
    assert np.count_nonzero(image) == 24
    np.testing.assert_array_equal(
        image[5:7, 6:9, 7:11], np.arange(1, 25).reshape(2, 3, 4)
    )
    assert (voxels(folder, "seg")[5:7, 6:9, 7:11] == 4).all()


def test_extents_of_the_brain_stay_in_the_case_study_s_range(
    folders: tuple[Path, ...],
) -> None:
    least, _, greatest = EXTENTS
    for folder in folders:
        brain = voxels(folder, "t1") != 0
        extents = [s.stop - s.start for s in ndimage.find_objects(brain.astype(int))[0]]
        assert all(np.greater_equal(extents, least))
        assert all(np.less_equal(extents, greatest))


def test_all_modalities_show_the_same_single_brain(folders: tuple[Path, ...]) -> None:
    masks = [voxels(folders[0], name) != 0 for name in MODALITIES]
    assert all((mask == masks[0]).all() for mask in masks)
    (box,) = ndimage.find_objects(masks[0].astype(np.int8))
    assert masks[0][box].mean() > 0.45  # one body, not specks (a ball fills 0.52)
    assert masks[0].sum() == pytest.approx(1.8e6, rel=0.25)  # mm^3


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
        (
            {"subjects": 0, "seed": 0},
            ValueError,
            "`subjects` must be at least 1, got 0",
        ),
        ({"subjects": 1, "seed": -1}, ValueError, "`seed` must be at least 0, got -1"),
        ({"subjects": 1.0, "seed": 0}, TypeError, "`subjects` must be an integer"),
        ({"subjects": 1, "seed": True}, TypeError, "`seed` must be an integer"),
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


def test_the_command_writes_subjects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("unet3d.synthesis.draw_phantom", lambda _: tiny_phantom())
    options = f"--output {tmp_path} --subjects 2 --seed 6"
    assert main(["synthesize", *options.split()]) == 0
    assert (tmp_path / "synthetic_001" / "synthetic_001_seg.nii.gz").is_file()
    assert "Subjects written to" in capsys.readouterr().err


def test_the_command_explains_a_bad_value_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["synthesize", "--output", str(tmp_path), "--subjects", "0"]) == 2
    assert "`subjects` must be at least 1" in capsys.readouterr().err
