"""Swapped tensors that wait in a file."""

from pathlib import Path

import pytest

from lms.units import MIB
from tests.tf.worker import Worker

pytestmark = [pytest.mark.tf, pytest.mark.slow]

TRIALS = "tests.tf.file_trials"
LIMIT = 24 * MIB


def test_a_host_with_half_the_memory_trains_with_equal_bits(
    worker: Worker, tmp_path: Path
) -> None:
    plain = worker.ask(f"{TRIALS}:train", memory="256MiB")
    whole = worker.ask(f"{TRIALS}:train", memory=LIMIT, budget="24MiB")
    half = whole["host_peak"] // 2
    found = worker.ask(
        f"{TRIALS}:train",
        memory=LIMIT,
        budget="24MiB",
        folder=str(tmp_path),
        host_memory=half,
    )
    assert plain["numbers"] == whole["numbers"] == found["numbers"]
    assert whole["file_bytes"] == 0
    assert found["file_bytes"] >= half
    assert found["host_peak"] <= half
    assert not list(tmp_path.iterdir())


def test_a_read_error_fails_the_step_and_leaves_it_undone(
    worker: Worker, tmp_path: Path
) -> None:
    found = worker.ask(
        f"{TRIALS}:fail", memory=LIMIT, budget="24MiB", folder=str(tmp_path)
    )
    assert found["raised"] == "HostMemoryError"
    assert "must be read from the file in" in found["message"]
    assert "are as before the step" in found["message"]
    assert found["as_before"]
