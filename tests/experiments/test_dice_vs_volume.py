"""Coarse subjects, and the comparison that is drawn from scores alone."""

from pathlib import Path

import numpy as np
import pytest

from experiments.coarse_subjects import coarsen
from experiments.dice_vs_volume import main
from experiments.ledger import write_lines
from unet3d.schemes import REGIONS


def test_an_image_is_averaged_and_a_label_is_not() -> None:
    volume = np.zeros((5, 4, 4), dtype=np.int16)
    volume[:4] = 8
    volume[2, 2, 2] = 72
    assert coarsen(volume, 4, labels=False).tolist() == [[[9]], [[0]]]
    assert coarsen(volume, 4, labels=True).tolist() == [[[72]], [[0]]]


def test_a_gain_is_said_with_its_test(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = [
        {"set": name, "subject": f"s{i}", "region": region, "dice": dice + 0.01 * i}
        for name, dice in (("28^3", 0.7), ("36^3", 0.8))
        for region in REGIONS
        for i in range(3)
    ]
    tests = [
        {"region": region, "median_difference": 0.1, "p": 0.01, "corrected_p": p}
        for region, p in zip(REGIONS, (0.03, 0.06, 0.5), strict=True)
    ]
    row = {"kind": "comparison", "pair": [28, 36], "scores": scores, "tests": tests}
    results, figure = tmp_path / "rows.jsonl", tmp_path / "dice_vs_volume.png"
    write_lines(results, {"unseen": 3, "models": 2, "voxel_mm": 4}, [row])
    assert main(["draw", "--results", str(results), "--figure", str(figure)]) == 0
    assert (tmp_path / "dice_vs_volume_28_36.png").exists()
    said = capsys.readouterr().out
    assert f"{REGIONS[0]} +0.100, {REGIONS[1]} +0.100 (not significant)" in said
    assert "2.13" in said
