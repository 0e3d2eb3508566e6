"""Tensors that come back from the host with other bytes are found in the same step."""

from functools import cache
from typing import Any

import pytest

from tests.tf.worker import Worker

pytestmark = pytest.mark.tf

_TRIALS = "tests.tf.watch_trials"


@cache
def plain(worker: Worker, policy: str, steps: int) -> Any:
    arguments = {"memory": "64MiB", "policy": policy, "steps": steps, "check": None}
    return worker.ask(f"{_TRIALS}:train_watched", **arguments)


@pytest.mark.parametrize(
    ("policy", "count"), [("float32", 100), ("mixed_bfloat16", 10)]
)
def test_each_bit_that_changes_while_a_tensor_is_away_is_found_and_the_step_undone(
    policy: str, count: int, worker: Worker
) -> None:
    found = worker.ask(f"{_TRIALS}:flip", memory="64MiB", count=count, policy=policy)
    assert found["swapped"] > 2
    assert found["proof"] == "values, order, bytes"
    assert found["raised"] == found["kept"] == found["named"] == count
    assert "the plan copies back" in found["words"]
    assert found["numbers"] == plain(worker, policy, count + 1)["numbers"]


def test_a_watched_step_stays_in_its_budget_with_the_same_numbers(
    worker: Worker,
) -> None:
    arguments = {"memory": "64MiB", "policy": "float32", "steps": 5, "check": "moved"}
    found = worker.ask(f"{_TRIALS}:train_watched", **arguments)
    assert found["numbers"] == plain(worker, "float32", 5)["numbers"]
    assert found["peak"] <= found["budget"]
    assert found["compared"] == 5 * found["moved"] > 0


def test_where_writes_have_no_order_all_variables_are_undone(worker: Worker) -> None:
    found = worker.ask(f"{_TRIALS}:flip_by_rule", memory="64MiB", count=12)
    assert found == {"raised": 12, "kept": 12}


def test_tensors_of_odd_and_unknown_sizes_are_watched_within_the_budget(
    worker: Worker,
) -> None:
    own, watched = (
        worker.ask(f"{_TRIALS}:train_odd", memory="64MiB", check=check)
        for check in (None, "moved")
    )
    assert watched["numbers"] == own["numbers"]
    assert watched["peak"] <= watched["budget"]
    assert watched["compared"] > 0


def test_a_second_run_that_differs_is_found_in_its_turn(worker: Worker) -> None:
    found = worker.ask(f"{_TRIALS}:compare_second_runs", memory="64MiB")
    assert found["compared"] == found["steps"]
    assert 0 < found["raised"] < found["steps"] // 2
    assert "(Relu) had other bytes when the plan ran the op again" in found["words"]


def test_a_digest_is_the_sum_of_the_words_of_any_type(worker: Worker) -> None:
    found = worker.ask(f"{_TRIALS}:sum_kinds", memory="64MiB")
    assert len(found) > 8
    assert all(map(all, found.values())), found
