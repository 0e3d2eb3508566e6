"""Trainings with state on the host that are killed or interrupted, and go on."""

import random
from pathlib import Path

import pytest

from lms.units import MIB
from tests.tf.worker import Worker, WorkerError

pytestmark = pytest.mark.tf

TRIALS = "tests.tf.state_endings"
ENOUGH, LIMIT = "256MiB", 6 * MIB
WRITES = 72  # of a step


def drawn(step: int) -> int:
    """A write in the middle of a step."""
    return step * WRITES + random.Random(step).randrange(1, WRITES)


@pytest.mark.parametrize(
    "writes",
    [drawn(2), *(pytest.param(drawn(k), marks=pytest.mark.long) for k in (0, 3, 5))],
)
def test_after_ctrl_c_state_is_that_of_a_steps_end(
    worker: Worker, tmp_path: Path, writes: int
) -> None:
    trial, folder = f"{TRIALS}:interrupted", str(tmp_path)
    options = {"memory": ENOUGH, "writes": 0, "folder": folder}
    plain = worker.ask(trial, **options, on_host=False)["steps"]
    options = {"memory": LIMIT, "writes": writes, "folder": folder}
    found = worker.ask(trial, **options, on_host=True)
    assert found["ended"] == writes // WRITES + 1
    assert found["then"] == found["saved"] == plain[found["ended"] - 1]
    assert found["steps"] == plain


@pytest.mark.long
@pytest.mark.parametrize("kind", ["backup", "whole"])
def test_a_training_that_was_killed_resumes_with_equal_bits(
    worker: Worker, tmp_path: Path, kind: str
) -> None:
    def ask(memory: str | int, **options: object) -> str:
        trial = f"{TRIALS}:resumed"
        return worker.ask(trial, memory=memory, kind=kind, **options)

    plain = ask(ENOUGH, folder=str(tmp_path / "plain"), on_host=False)
    folder = str(tmp_path / "killed")
    for writes in (drawn(1), drawn(2), drawn(0)):
        with pytest.raises(WorkerError, match="status 9"):
            ask(LIMIT, folder=folder, on_host=True, killed=writes)
    assert ask(LIMIT, folder=folder, on_host=True) == plain


@pytest.mark.long
def test_what_has_no_room_on_the_device_stays_on_the_host(worker: Worker) -> None:
    found = worker.ask(f"{TRIALS}:refused", memory=12 * MIB)
    assert " variables on the host must find room on the device, " in found["error"]
    assert found["held"] == [24, 24]
    assert found["as_before"]
