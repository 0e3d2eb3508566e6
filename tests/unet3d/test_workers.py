"""Several workers train the network: what one draws, and a run that goes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.unet3d.tiny import example, write_folder
from unet3d.batches import training_batches

pytestmark = [pytest.mark.tf, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


def test_the_batches_of_all_workers_are_those_of_one() -> None:
    loads = [lambda seed=seed: example(seed=seed) for seed in range(5)]

    def drawn(batch_size: int, rank: int, workers: int) -> list[np.ndarray]:
        data = training_batches(
            loads,
            8,
            steps=2,
            seed=3,
            batch_size=batch_size,
            worker=(rank, workers),
        )
        return [np.asarray(x) for x, _ in data.take(4)]

    together = drawn(4, 0, 1)
    first, second = drawn(2, 0, 2), drawn(2, 1, 2)
    for joint, one, other in zip(together, first, second, strict=True):
        assert np.array_equal(joint[0::2], one)
        assert np.array_equal(joint[1::2], other)


@pytest.mark.long
def test_a_run_whose_worker_was_killed_ends_as_one_that_was_not(tmp_path: Path) -> None:
    for name in "abcde":
        write_folder(tmp_path / "data" / name)

    def command(run: str, *more: str) -> list[str]:
        flags = "--label-scheme brats2017 --size 8 --filters 1 --depth 2 --epochs 3"
        folders = ["--data", str(tmp_path / "data"), "--cache", str(tmp_path / "cache")]
        train = [sys.executable, "-m", "unet3d", "train", *flags.split(), *folders]
        return [*train, "--output", str(tmp_path / run), "--workers", "2", *more]

    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    subprocess.run(command("whole"), check=True, cwd=ROOT, env=environ)
    with subprocess.Popen(command("killed"), cwd=ROOT, env=environ) as started:
        while not (tmp_path / "killed" / "state.npz").exists():
            time.sleep(0.05)
            assert started.poll() is None
        children = Path(f"/proc/{started.pid}/task/{started.pid}/children")
        os.kill(int(children.read_text().split()[-1]), signal.SIGKILL)
        assert started.wait(timeout=60) == 128 + signal.SIGKILL
    subprocess.run(command("killed", "--resume"), check=True, cwd=ROOT, env=environ)
    with (
        np.load(tmp_path / "whole" / "state.npz") as one,
        np.load(tmp_path / "killed" / "state.npz") as other,
    ):
        names = [name for name in one.files if name != "rest"]
        assert all(np.array_equal(one[name], other[name]) for name in names)
