"""The case study's claim, scaled down: 2.37 times the voxels in the same memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import python
from tests.unet3d.tiny import write_folder

MEMORY = "24MiB"


def train(folder: Path, size: int, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["-m", "lms", "emulate", "--memory", MEMORY, "--"]
    command += [sys.executable, "-m", "unet3d", "train", "--data", str(folder / "data")]
    command += ["--label-scheme", "brats2017", "--filters", "8", "--depth", "3"]
    command += ["--epochs", "1", "--steps-per-epoch", "2", "--size", str(size)]
    command += ["--cache", str(folder / "cache"), "--output"]
    command += [str(folder / f"{size}{''.join(words)}"), *words]
    return python(*command)


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.long
def test_a_size_that_runs_out_of_memory_trains_by_itself_with_support(
    tmp_path: Path,
) -> None:
    for name in "ab":
        write_folder(tmp_path / "data" / name)
    assert train(tmp_path, 24, "--no-lms").returncode == 0
    # Some convolutions do not survive running out of memory: then there is no message.
    assert train(tmp_path, 32, "--no-lms").returncode != 0
    done = train(tmp_path, 32)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "predicted to take" in done.stderr
    assert "MiB swapped in each step" in done.stderr
    report = json.loads((tmp_path / "32" / "memory.json").read_text())
    step = next(step for step in report["steps"] if step["kind"] == "train")
    assert step["swapped_out_bytes"] > 0
    assert report["device peak bytes"] <= 24 * 2**20
    assert "lms_peak" not in (tmp_path / "32" / "log.csv").read_text()


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.long
def test_a_dry_training_keeps_no_weights_and_claims_no_dice(tmp_path: Path) -> None:
    for name in "ab":
        write_folder(tmp_path / "data" / name)
    command = ["-m", "lms", "emulate", "--dry", "--card", "rtx-3090", "--"]
    command += [sys.executable, "-m", "unet3d", "train", "--epochs", "1"]
    command += ["--data", str(tmp_path / "data"), "--label-scheme", "brats2017"]
    command += ["--size", "16", "--filters", "2", "--depth", "2"]
    command += ["--cache", str(tmp_path / "cache"), "--output", str(tmp_path / "run")]
    done = python(*command)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Epoch 1 of 1: nothing was computed" in done.stderr
    assert "a card that computes nothing: no Dice, and no weights" in done.stderr
    assert "Dice 1.0" not in done.stderr
    kept = {path.name for path in (tmp_path / "run").iterdir()} - {"plan.json"}
    assert kept == {"configuration.json", "split.json", "memory.json"}
