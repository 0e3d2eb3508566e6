"""Allocations that fail anywhere in a planned step: the same numbers, or a refusal."""

from functools import cache

import pytest

from tests.tf.worker import Worker

# `test_recovery` has steps that run out, and `test_state` one that is repeated.
pytestmark = [pytest.mark.tf, pytest.mark.long]

POINTS = 50
MEMORY = "20MiB"  # the plain training takes about 32 MiB


@cache
def plain(worker: Worker) -> dict[str, str]:
    return worker.ask("tests.tf.fault_trials:plain", memory="2GiB")


@pytest.mark.parametrize("point", range(POINTS))
def test_an_allocation_that_fails_ends_no_training(point: int, worker: Worker) -> None:
    trial = worker.ask("tests.tf.fault_trials:fault", memory=MEMORY, point=point)
    assert trial["taken"] > 0, "nothing failed: the trial says nothing"
    if point > 0 and trial["error"] is not None:
        assert "OutOfMemoryError: a step must" in trial["error"]
        return
    assert trial["numbers"] == plain(worker)
    # Elsewhere what is left to run may write over what is there, or be done in time.
    assert trial["replans"] == [1] or (trial["replans"] == [0] and point > 0)
