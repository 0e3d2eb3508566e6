"""A step that runs out of memory is planned anew; the numbers stay the same."""

from functools import cache
from typing import Any

import pytest

from tests.tf.worker import Worker

pytestmark = pytest.mark.tf

TRAIN = "tests.tf.recovery_trials:train"
LIMIT = "16MiB"  # the plain training takes about 31 MiB


@cache
def plain(worker: Worker, epochs: int = 1) -> dict[str, Any]:
    return worker.ask(TRAIN, memory="2GiB", planned=False, epochs=epochs)


@pytest.mark.long
def test_after_two_failures_training_ends_with_the_same_numbers(worker: Worker) -> None:
    trial = worker.ask(TRAIN, memory=LIMIT, planned=True, failures=2)
    assert trial["replans"] == [2]
    assert trial["said"] == [0, 2], "one line for each plan by which a step ran"
    assert trial["kept"] > 0, "no variable is written early: nothing is put back"
    assert trial["numbers"] == plain(worker)["numbers"]


@pytest.mark.slow
def test_training_goes_on_in_less_when_others_take_memory(worker: Worker) -> None:
    trial = worker.ask(TRAIN, memory=LIMIT, planned=True, held=0.15)
    assert trial["replans"] == [0], "the step is built again before it runs out"
    assert trial["addresses"] == ["planned"], "it is planned into what is left"
    assert min(*trial["changes"], trial["kept"]) > 0
    assert trial["numbers"] == plain(worker)["numbers"]


@pytest.mark.slow
def test_a_step_of_unplanned_addresses_is_planned_anew_before_it_runs_out(
    worker: Worker,
) -> None:
    trial = _grown(worker, epochs=3)
    assert trial["replans"] == [0]
    assert min(*trial["changes"], trial["kept"]) > 0
    assert trial["numbers"] == plain(worker, epochs=3)["numbers"]


@pytest.mark.slow
def test_a_stored_plan_is_given_up_where_others_take_its_memory(worker: Worker) -> None:
    trial = _grown(worker, stored=True)
    assert trial["replans"] == [0]
    assert trial["numbers"] == plain(worker)["numbers"]


def _grown(worker: Worker, **knobs: Any) -> dict[str, Any]:
    growing = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    known = {"planned": True, "budget": LIMIT, "held": 0.15, **knobs}
    trial = worker.ask(TRAIN, memory=LIMIT, environ=growing, **known)
    assert trial["addresses"] == ["not planned: memory grows up to `budget`"]
    return trial


@pytest.mark.slow
def test_a_step_of_unknown_sizes_that_runs_out_is_planned_by_guesses(
    worker: Worker,
) -> None:
    whole = worker.ask(TRAIN, memory="2GiB", planned=False, counted=True)
    trial = worker.ask(TRAIN, memory=LIMIT, planned=True, counted=True)
    assert trial["replans"] == [1]
    assert min(trial["unknown"]) > 0
    assert min(trial["changes"]) > 0
    assert trial["numbers"] == whole["numbers"]


def test_small_early_writes_are_kept_on_the_device(worker: Worker) -> None:
    found = worker.ask("tests.tf.card_trials:kept_variables", memory="256MiB")
    assert found == {
        "is_kept": True,
        "copied": 0,
        "state": 6.0,
        "replans": 1,
        "wrote": True,
    }


def test_large_early_writes_are_copied_by_the_step_and_undone(worker: Worker) -> None:
    trial = "tests.tf.card_trials:copies_in_the_step"
    found = worker.ask(trial, memory="256MiB", by_rows=False)
    assert found == {
        "is_kept_before": False,
        "copied": 0,
        "held": 0,
        "state": [6.0, 6.0],
        "replans": 1,
        "wrote": True,
    }
    found = worker.ask(trial, memory="256MiB", by_rows=True)
    assert found["is_kept_before"], "TensorFlow would copy it on the device to read it"
    assert (found["state"], found["replans"]) == ([6.0, 6.0], 1)
