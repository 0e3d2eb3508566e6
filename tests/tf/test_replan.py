"""Plans change while a model trains, and its numbers do not."""

from functools import cache
from typing import Any

import pytest

from lms.units import MIB
from tests.tf.worker import Worker

pytestmark = pytest.mark.tf

TRIALS = "tests.tf.replan_trials"
LIMIT = "16MiB"  # the plain training takes about 31 MiB
BATCH = 16 * 64 * 64 * 3 * 4


@cache
def plain(worker: Worker) -> dict[str, Any]:
    return worker.ask(f"{TRIALS}:search_on", memory="2GiB", planned=False)


def test_a_plan_that_is_found_while_training_takes_over(worker: Worker) -> None:
    trial = worker.ask(f"{TRIALS}:search_on", memory=LIMIT, planned=True, percent=0)
    assert trial["plans"] == 2, "one search, one change"
    assert trial["arenas"][0] - trial["arenas"][-1] < BATCH, "its chunk is free again"
    assert trial["replans"] == [0]
    assert trial["numbers"] == plain(worker)["numbers"]


def test_a_plan_that_cannot_be_built_does_not_take_over(worker: Worker) -> None:
    trial = worker.ask(
        f"{TRIALS}:search_on", memory=LIMIT, planned=True, percent=0, fails=True
    )
    assert trial["plans"] == 2, "planned anew, as the old plan cannot be built either"
    assert trial["replans"] == [0]
    assert trial["numbers"] == plain(worker)["numbers"]


def test_a_plan_that_is_no_faster_does_not_take_over(worker: Worker) -> None:
    trial = worker.ask(f"{TRIALS}:search_on", memory=LIMIT, planned=True, percent=10**9)
    assert trial["plans"] == 1
    assert trial["numbers"] == plain(worker)["numbers"]


def test_numbers_are_equal_by_another_plan_in_each_step(worker: Worker) -> None:
    trial = worker.ask(f"{TRIALS}:change_each_step", memory=LIMIT, planned=True)
    assert trial["plans"] >= 2
    assert len(trial["seconds"]) >= 10
    assert trial["replans"] == [0]
    assert trial["numbers"] == plain(worker)["numbers"]


def test_a_budget_that_changes_holds_from_the_next_step(worker: Worker) -> None:
    budgets = [16, 14, 60, 20]  # MiB; training begins by the last one
    trial = worker.ask(
        f"{TRIALS}:change_budgets",
        memory="64MiB",
        budgets=[f"{each}MiB" for each in budgets],
    )
    assert len(trial["reports"]) >= 5
    for i, (size, peak, fits) in enumerate(trial["reports"]):
        asked = budgets[i % len(budgets)] if i else budgets[-1]
        assert size == asked * MIB
        assert fits == (asked == budgets[2])
        assert 0 < peak <= size
    assert trial["numbers"] == plain(worker)["numbers"]


def test_a_step_that_draws_noise_keeps_its_plan(worker: Worker) -> None:
    found = worker.ask(f"{TRIALS}:draw_noise", memory=LIMIT)
    assert found == {"planner": "budget", "draws": True, "searched": False}
