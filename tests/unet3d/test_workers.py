"""Several workers train the network: what one draws, and a run that goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import psutil
import pytest

from tests.unet3d.tiny import example, write_folder
from unet3d.batches import training_batches

pytestmark = [pytest.mark.tf, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


def test_the_batches_of_all_workers_are_those_of_one() -> None:
    loads = [lambda seed=seed: example(seed=seed) for seed in range(5)]

    def drawn(batch_size: int, rank: int, workers: int) -> list[np.ndarray]:
        own: Any = {"batch_size": batch_size, "worker": (rank, workers)}
        data = training_batches(loads, (8, 4, 3), steps=2, seed=3, **own)
        return [np.asarray(x) for x, _ in data.take(4)]

    together = drawn(4, 0, 1)
    first, second = drawn(2, 0, 2), drawn(2, 1, 2)
    for joint, one, other in zip(together, first, second, strict=True):
        assert np.array_equal(joint[0::2], one)
        assert np.array_equal(joint[1::2], other)


KILLS = 5


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_that_is_killed_five_times_ends_as_one_that_was_not(
    tmp_path: Path, seed: int
) -> None:
    """At moments that are drawn; the third time a worker is stopped and not ended."""
    for name in "abcde":
        write_folder(tmp_path / "data" / name)
    command = partial(_command, tmp_path)
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    subprocess.run(command("whole"), check=True, cwd=ROOT, env=environ)
    draw = Random(seed)
    for kill in range(KILLS):
        number = signal.SIGSTOP if kill == 2 else signal.SIGKILL
        rank = (kill + seed) % 2
        state = tmp_path / "killed" / "state.npz"
        before = state.stat().st_mtime_ns if state.exists() else 0
        more = ("--resume",) if before else ()
        log = tmp_path / f"log{kill}"
        with (
            log.open("w") as out,
            subprocess.Popen(
                command("killed", *more), cwd=ROOT, env=environ, stdout=out, stderr=out
            ) as started,
        ):
            # After an epoch or within the next ones: the run never ends by itself.
            while not state.exists() or state.stat().st_mtime_ns == before:
                time.sleep(0.01)
                assert started.poll() is None, log.read_text()
            time.sleep(draw.uniform(0, 0.3))
            os.kill(_workers_of(started.pid)[rank], number)
            code = started.wait(timeout=30)
        assert code not in (0, None), log.read_text()
        if number == signal.SIGSTOP:
            said = f"worker {1 - rank} of 2 cannot go on: another worker has ended"
            assert said in log.read_text()
        _whole_files(tmp_path / "killed")
    subprocess.run(command("killed", "--resume"), check=True, cwd=ROOT, env=environ)
    with (
        np.load(tmp_path / "whole" / "state.npz") as one,
        np.load(tmp_path / "killed" / "state.npz") as other,
    ):
        names = [name for name in one.files if name != "rest"]
        assert all(np.array_equal(one[name], other[name]) for name in names)


def _command(folder: Path, run: str, *more: str) -> list[str]:
    flags = "--label-scheme brats2017 --size 8 --filters 1 --depth 2 --epochs 60"
    folders = ["--data", str(folder / "data"), "--cache", str(folder / "cache")]
    train = [sys.executable, "-m", "unet3d", "train", *flags.split(), *folders]
    return [*train, "--output", str(folder / run), "--workers", "2", *more]


def _workers_of(launcher: int) -> list[int]:
    """Processes of the workers, by rank."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    by_rank = {}
    for child in map(int, children):
        task = psutil.Process(child).environ().get("TF_CONFIG")
        if task is not None:
            by_rank[json.loads(task)["task"]["index"]] = child
    return [by_rank[rank] for rank in sorted(by_rank)]


def _whole_files(run: Path) -> None:
    """That all files can be read, and none has its temporary name."""
    with np.load(run / "state.npz") as state:
        assert all(state[name] is not None for name in state.files)
    for path in run.glob("*.json"):
        json.loads(path.read_text())
