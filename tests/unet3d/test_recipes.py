"""nnU-Net's recipe: its loss by hand, its levels, its rate, its patches."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

from tests.unet3d.test_validation import settings
from tests.unet3d.tiny import write_knees
from unet3d.patches import draw_patch
from unet3d.prediction import predict
from unet3d.recipes import PolynomialRate, dice_and_cross_entropy
from unet3d.runs import read_configuration, write_configuration
from unet3d.training import build_for, train

# Keras copies variables in a way that NumPy 2 warns of.
COPIES = "ignore:__array__ implementation:DeprecationWarning"
pytestmark = [pytest.mark.tf, pytest.mark.filterwarnings(COPIES)]


def voxels(*values: list[float]) -> np.ndarray:
    """One sample of 1 x 1 x n voxels with a list of channels each."""
    return np.array(values, np.float32)[None, None, None]


def test_the_loss_adds_dice_and_cross_entropy() -> None:
    truth, found = voxels([1, 0], [0, 1]), voxels([0.8, 0.1], [0.4, 0.5])
    dices = [1.6 / 2.2, 1 / 1.6]
    logs = np.log([0.8, 0.9, 0.6, 0.5])
    loss = dice_and_cross_entropy(truth, found)
    np.testing.assert_allclose(loss, [1 - np.mean(dices) - logs.mean()], rtol=1e-4)


def test_labels_that_exclude_each_other_have_the_background_s_cross_entropy() -> None:
    truth, found = voxels([1, 0], [0, 0]), voxels([0.2, 0.7, 0.1], [0.9, 0.1, 0.0])
    dices = [1.4 / 1.8, 0]
    logs = np.log([0.7, 0.9])
    loss = dice_and_cross_entropy(truth, found)
    np.testing.assert_allclose(loss, [1 - np.mean(dices) - logs.mean()], rtol=1e-3)


def test_a_run_from_before_the_background_counted_keeps_its_loss(
    tmp_path: Path,
) -> None:
    begun = settings(write_knees(tmp_path, 1), size=8, background=True)
    write_configuration(tmp_path, begun)
    path = tmp_path / "configuration.json"
    content = json.loads(path.read_text())
    del content["configuration"]["background"]
    path.write_text(json.dumps(content))
    truth = np.zeros((1, 8, 8, 8, 3), np.uint8)
    found = np.full((1, 8, 8, 8, 4), [0.9, 0.1, 0, 0], np.float32)  # none is there
    losses = [
        np.ravel(build_for(run).loss(truth, found))
        for run in (read_configuration(tmp_path), begun)
    ]
    labels, background = 2 / 3, 2 * 0.9 / 1.9  # of three labels one is predicted
    expected = [[1 - labels], [1 - (3 * labels + background) / 4]]
    np.testing.assert_allclose(losses, expected, atol=1e-5)


def test_lower_levels_count_half_and_have_no_weights(tmp_path: Path) -> None:
    chosen = settings(write_knees(tmp_path, 1), size=8, depth=3, recipe="nnunet")
    model, plain = build_for(chosen), build_for(chosen, 8)
    assert model.count_params() == plain.count_params()
    assert model.output_shape == (1, 8**3 + 4**3, 4)  # the voxels of two levels
    assert plain.output_shape == (None, 8, 8, 8, 4)
    truth = np.zeros((1, 8, 8, 8, 3), np.uint8)
    truth[:, :4, ..., 1] = 1
    found = model.predict(np.ones((1, 8, 8, 8, 2), np.float32), verbose=0)
    top = found[:, : 8**3].reshape(1, 8, 8, 8, 4)
    low = found[:, 8**3 :].reshape(1, 4, 4, 4, 4)
    shrunk = truth[:, ::2, ::2, ::2]
    parts = [dice_and_cross_entropy(*pair) for pair in ((truth, top), (shrunk, low))]
    expected = (parts[0] + 0.5 * parts[1]) / 1.5
    np.testing.assert_allclose(model.loss(truth, found), expected, rtol=1e-5)
    np.testing.assert_array_equal(plain.predict(np.ones((1, 8, 8, 8, 2))), top)


def test_the_rate_falls_to_0_by_a_power() -> None:
    rate = keras.Variable(1.0)
    watcher = PolynomialRate(0.01, 10)
    watcher.set_model(SimpleNamespace(optimizer=SimpleNamespace(learning_rate=rate)))
    for epoch, expected in ((0, 0.01), (5, 0.01 * 0.5**0.9)):
        watcher.on_epoch_begin(epoch)
        assert float(rate) == pytest.approx(expected)


def test_a_small_label_is_drawn_as_often_as_a_large_one() -> None:
    regions = np.zeros((12, 12, 12, 2), np.uint8)
    regions[:, :, :4, 0], regions[11, 11, 11, 1] = 1, 1
    images, hits = regions.astype(np.float32), []
    for by_label in (False, True):
        rng = np.random.default_rng(0)
        cut = (
            draw_patch(images, regions, 2, rng, by_label=by_label) for _ in range(600)
        )
        hits.append(sum(bool(labels[..., 1].any()) for _, labels in cut))
    assert hits[0] < 10
    assert 70 < hits[1] < 130  # half of a third


@pytest.mark.slow
def test_a_run_by_the_recipe_goes_on_and_predicts(tmp_path: Path) -> None:
    data = write_knees(tmp_path / "data", 3)
    chosen: dict[str, Any] = {"patch": 8, "depth": 3, "recipe": "nnunet", "epochs": 2}
    folder, cache = tmp_path / "run", tmp_path / "cache"
    outcome = train(settings(data, **chosen), folder, cache=cache)
    assert outcome.epochs == 2
    rows = list(csv.DictReader((folder / "log.csv").read_text().splitlines()))
    rates = [float(row["learning_rate"]) for row in rows]
    assert rates == pytest.approx([0.01, 0.01 * 0.5**0.9])
    done = train(settings(data, **chosen), folder, cache=cache, resume=True)
    assert done.best == outcome.best
    assert predict(folder, data, tmp_path / "p").names == outcome.split.validation
