"""Steps that run out of memory on a card: undone, planned anew, repeated."""

import pytest

from tests.tf.worker import Worker

pytestmark = pytest.mark.tf


def test_small_early_writes_are_kept_on_the_device(worker: Worker) -> None:
    found = worker.ask("tests.tf.card_trials:kept_variables", memory="256MiB")
    assert found == {
        "is_kept": True,
        "copied": 0,
        "state": 6.0,
        "replans": 1,
        "wrote": True,
    }


@pytest.mark.slow
def test_a_step_that_ran_out_of_memory_goes_on_with_the_same_numbers(
    worker: Worker,
) -> None:
    trial = "tests.tf.card_trials:recovered"
    whole = worker.ask(trial, memory="26MiB", held=0, failures=0)
    for held, failures in ((0.2, 0), (0, 1)):
        found = worker.ask(trial, memory="26MiB", held=held, failures=failures)
        assert found["replans"] == [1]
        assert found["numbers"] == whole["numbers"]
