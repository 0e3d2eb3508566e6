"""Patches of whole volumes, and a task that is not BraTS from files to a report."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.programs import python
from tests.unet3d.tiny import save
from unet3d.__main__ import main
from unet3d.patches import draw_patch, slide, starts

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("extent", range(4, 20))
@pytest.mark.parametrize("size", [3, 4])
def test_patches_cover_an_axis_half_a_patch_apart(extent: int, size: int) -> None:
    found = starts(extent, size)
    assert (found[0], found[-1]) == (0, extent - size)
    assert max(np.diff(found), default=0) <= -(-size // 2)


@pytest.mark.parametrize("shape", [(5, 4, 9), (2, 3, 4), (4, 4, 4)])
def test_a_volume_is_put_together_from_patches_of_one_size(
    shape: tuple[int, int, int],
) -> None:
    volume = np.random.default_rng(0).random((*shape, 2), np.float32)
    seen = set[tuple[int, ...]]()
    whole = slide(volume, 4, lambda patch: seen.add(patch.shape) or patch)
    np.testing.assert_allclose(whole, volume, rtol=1e-5)
    assert seen == {(4, 4, 4, 2)}


def test_where_patches_overlap_the_middle_counts_most() -> None:
    numbers = iter((0.0, 1.0))  # two patches, half a patch apart
    volume = np.zeros((4, 4, 6, 1), np.float32)
    whole = slide(volume, 4, lambda patch: np.full_like(patch, next(numbers)))
    line = whole[0, 0, :, 0]
    assert line[:2].tolist() == [0, 0]
    assert line[4:].tolist() == [1, 1]
    assert 0 < line[2] < 0.5 < line[3] < 1


def test_a_third_of_the_patches_hold_a_label_and_images_go_with_it() -> None:
    images = np.arange(30**3, dtype=np.float32).reshape(30, 30, 30, 1)
    regions = np.zeros((30, 30, 30, 1), np.uint8)
    regions[3, 20, 29] = 1
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(300):
        x, y = draw_patch(images, regions, 4, rng)
        assert x.shape == y.shape == (4, 4, 4, 1)
        assert np.isin(images[3, 20, 29], x) == y.any()
        held += bool(y.any())
    assert 80 < held < 125


@pytest.mark.tf
@pytest.mark.slow
# Keras copies variables in a way that NumPy 2 warns of.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_ct_of_one_channel_and_two_labels_goes_from_files_to_a_report(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    for name in "abcd":
        labels = np.zeros((14, 12, 10), np.uint8)
        labels[3:10, 3:9, 2:8] = 1
        labels[5:8, 5:8, 4:6] = 2
        image = np.where(labels, 40 * labels, -1000) + rng.integers(-9, 9, labels.shape)
        save(tmp_path / f"data/imagesTr/{name}_0000.nii.gz", image.astype(np.int16))
        save(tmp_path / f"data/labelsTr/{name}.nii.gz", labels)
    content = {"channel_names": {"0": "CT"}, "file_ending": ".nii.gz"}
    content |= {"labels": {"background": 0, "liver": [1, 2], "tumour": 2}}
    (tmp_path / "data" / "dataset.json").write_text(json.dumps(content))
    data, run, predicted = (str(tmp_path / n) for n in ("data", "run", "predicted"))
    assert main(["check", "--data", data]) == 0
    flags = "--patch 8 --filters 2 --depth 2 --epochs 1 --no-lms"
    places = ("--output", run, "--cache", str(tmp_path / "cache"))
    # A process of its own: training makes all of TensorFlow's ops deterministic.
    train = ("-m", "unet3d", "train", "--data", data)
    python(*train, *flags.split(), *places, check=True, cwd=ROOT)
    words = ("--run", run, "--data", data, "--subjects", "all", "--output", predicted)
    assert main(["predict", *words]) == 0
    words = ("--predictions", predicted, "--output", str(tmp_path / "report"))
    assert main(["evaluate", "--truth", data, *words]) == 0
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert {s["region"] for s in report["scores"]} == {"liver", "tumour"}
    assert len(report["scores"]) == 4 * 2
