"""A step that runs out of memory is planned anew; the numbers stay the same."""

from functools import cache
from typing import Any

import pytest

from tests.tf.worker import Worker

pytestmark = [pytest.mark.tf, pytest.mark.slow]

TRAIN = "tests.tf.recovery_trials:train"
LIMIT = "16MiB"  # the plain training takes about 31 MiB


@cache
def plain(worker: Worker) -> dict[str, Any]:
    return worker.ask(TRAIN, memory="2GiB", planned=False)


def test_after_two_failures_training_ends_with_the_same_numbers(worker: Worker) -> None:
    trial = worker.ask(TRAIN, memory=LIMIT, planned=True, failures=2)
    assert trial["replans"] == [2]
    assert trial["said"] == [0, 1, 2]
    assert trial["kept"] > 0, "no variable is written early: nothing is put back"
    assert trial["numbers"] == plain(worker)["numbers"]


def test_training_goes_on_in_less_when_others_take_memory(worker: Worker) -> None:
    trial = worker.ask(TRAIN, memory=LIMIT, planned=True, held=0.15)
    assert trial["replans"] == [1]
    assert min(trial["swaps"]) > 0
    assert trial["numbers"] == plain(worker)["numbers"]
