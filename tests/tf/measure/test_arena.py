"""The one large free chunk that a sealed step runs in."""

import pytest

from lms.units import KIB
from tests.tf.worker import Worker

pytestmark = pytest.mark.tf

_TRIALS = "tests.tf.arena_trials"


def test_an_arena_has_just_its_bytes_and_the_batch_lies_outside(worker: Worker) -> None:
    found = worker.ask(f"{_TRIALS}:exact_bytes", memory="64MiB")
    assert found.pop("kept")
    assert found == {
        "outside": True,
        "there": [True] * 4 + [False],
        "same": True,
        "fits": True,
        "more": None,
        "left": 0,
    }


def test_an_arena_is_clear_over_steps_until_others_take_memory(worker: Worker) -> None:
    found = worker.ask(f"{_TRIALS}:others", memory="64MiB")
    told = {name for name, is_clear in found.items() if not is_clear}
    assert told == {"large tensor", "moved variable"}


def test_steps_in_turns_make_the_arena_anew_beside_each_other_s_chunks(
    worker: Worker,
) -> None:
    found = worker.ask(f"{_TRIALS}:two_steps", memory="64MiB")
    assert found == {
        "admitted": [True] * 4,
        "clear": [True] * 4,  # one at a time
        "kept": [True] * 4,
        "as before": [True],
        "smaller": [False, False],
    }


def test_fragments_count_in_the_least_budget_of_a_sealed_step(worker: Worker) -> None:
    trial, size = f"{_TRIALS}:least_budget", 12 * KIB
    whole = worker.ask(trial, memory="64MiB", fragments=0, size=size)
    found = worker.ask(trial, memory="64MiB", fragments=2, size=size)
    more = found["least"] - whole["least"]
    assert 2 * size <= more <= 2 * size + found["kept"]
    assert found["addresses"] == whole["addresses"] == "planned"
    assert found["used"] <= found["promised"] <= found["least"]
