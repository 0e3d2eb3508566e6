"""Labels that exclude each other: trained by softmax, validated as they are written."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unet3d.tiny import write_knees
from unet3d.data import to_labels
from unet3d.losses import dice_coefficient, soft_dice
from unet3d.model import build_unet
from unet3d.prediction import predict
from unet3d.prediction_sets import open_set
from unet3d.report import evaluate
from unet3d.runs import Configuration
from unet3d.schemes import choose_scheme
from unet3d.training import train

# Keras copies variables in a way that NumPy 2 warns of.
COPIES = "ignore:__array__ implementation:DeprecationWarning"
pytestmark = [pytest.mark.tf, pytest.mark.filterwarnings(COPIES)]


def settings(data: Path, **changes: Any) -> Configuration:
    scheme = choose_scheme(None, data)
    assert scheme is not None
    tiny: dict[str, Any] = {"filters": 2, "depth": 2, "epochs": 2, "softmax": True}
    tiny |= {"lms": False, "linear_heads": True, "scheme": scheme} | changes
    return Configuration(data=str(data), label_scheme=scheme.name, **tiny)


@pytest.mark.slow
@pytest.mark.parametrize(("patch", "softmax"), [(8, True), (None, False)])
def test_the_dice_of_the_log_is_that_of_the_written_labels(
    tmp_path: Path, patch: int | None, *, softmax: bool
) -> None:
    data, run = write_knees(tmp_path / "data", 3), tmp_path / "run"
    split = {"training": ["knee_0"], "validation": ["knee_1", "knee_2"]}
    (tmp_path / "split.json").write_text(json.dumps(split))
    chosen = settings(data, size=8, patch=patch, softmax=softmax, steps_per_epoch=9)
    split_file = tmp_path / "split.json"
    best = train(chosen, run, cache=tmp_path / "cache", split=split_file).best
    predict(run, data, tmp_path / "p")
    group = open_set("p", tmp_path / "p", chosen.task)
    scores = evaluate(data, chosen.task, [group]).scores
    assert best == pytest.approx(np.mean([s.dice for s in scores]), abs=1e-6)
    rows = list(csv.DictReader((run / "log.csv").read_text().splitlines()))
    row = max(rows, key=lambda row: float(row["val_dice_coefficient"]))
    for name in ("bone", "cartilage", "lesion"):
        mean = np.mean([score.dice for score in scores if score.region == name])
        assert float(row[f"val_dice_{name}"]) == pytest.approx(mean, abs=1e-6)


def test_labels_that_exclude_each_other_share_a_probability_with_the_background() -> (
    None
):
    model: Any = build_unet(8, filters=2, depth=2, modalities=1, labels=2, softmax=True)
    found = model.predict(np.ones((1, 8, 8, 8, 1), np.float32), verbose=0)
    assert found.shape[-1] == 3
    np.testing.assert_allclose(found.sum(axis=-1), 1, rtol=1e-5)


def test_loss_and_metric_leave_the_background_out() -> None:
    truth = np.array([[1, 0], [0, 1], [0, 0]], np.uint8)[None, None, None]
    guess = np.array([[0.2, 0.5, 0.3], [0.4, 0.3, 0.3], [0.8, 0.1, 0.1]], np.float32)
    guess = guess[None, None, None]
    # 2 * 0.5 / (1 + 0.9) and 2 * 0.3 / (1 + 0.7)
    np.testing.assert_allclose(
        soft_dice(truth, guess), [[1 / 1.9, 0.6 / 1.7]], rtol=1e-4
    )
    # The likeliest: first label, background, background.
    np.testing.assert_allclose(dice_coefficient(truth, guess), [[1, 0]], atol=1e-4)


def test_a_lesion_inside_of_a_likely_organ_is_written(tmp_path: Path) -> None:
    scheme = choose_scheme(None, write_knees(tmp_path, 1))
    assert scheme is not None
    found = np.array([[0.0, 0.0, 0.4, 0.6], [0.5, 0.1, 0.2, 0.2]])
    assert to_labels(found, scheme).tolist() == [3, 0]
