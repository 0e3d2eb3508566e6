"""A strategy of two replicas: each card has a plan, and the bits are plain Keras's."""

from pathlib import Path

import pytest

from tests.report.test_page import data_of
from tests.tf.worker import Worker

pytestmark = [pytest.mark.tf, pytest.mark.slow]


def test_each_replica_is_planned_and_a_card_that_runs_out_undoes_the_step_on_all(
    worker: Worker,
) -> None:
    trial = "tests.tf.replica_trials:fit_replicas"
    found = worker.ask(trial, memory="64MiB", card={"cards": 2}, budget="8MiB")
    for name in ("planned", "failing"):
        ours = found[name]
        assert ours["devices"] == ["GPU:0", "GPU:1"]
        assert min(ours["changes"]) > 0
        assert ours["kinds"] == ["predict", "test", "train"]
        for number in ("digest", "losses", "predicted"):
            assert ours[number] == found["plain"][number]
    assert found["planned"]["replans"] == [0, 0]
    assert found["failing"]["replans"] == [1, 1]


def test_a_page_shows_the_card_for_which_there_is_no_plan(
    worker: Worker, tmp_path: Path
) -> None:
    trial, page = "tests.tf.replica_trials:refuse_replicas", tmp_path / "run.html"
    said = worker.ask(
        trial, memory="64MiB", card={"cards": 2}, budget="1MiB", page=str(page)
    )
    assert said.endswith("Planned was GPU:0.")
    (drawn,) = data_of(page.read_text())
    assert drawn["why"] == said


@pytest.mark.long
@pytest.mark.xfail(reason="one card may exceed its budget by about a batch: to mend")
def test_each_replica_stays_in_its_budget(worker: Worker) -> None:
    trial = "tests.tf.replica_trials:fit_replicas"
    found = worker.ask(trial, memory="64MiB", card={"cards": 2}, budget="8MiB")
    assert max(found["planned"]["over"]) <= 0


def test_a_loop_of_one_s_own_runs_its_replicas_by_a_plan_for_each(
    worker: Worker,
) -> None:
    trial = "tests.tf.replica_trials:run_replicas"
    found = worker.ask(trial, memory="64MiB", card={"cards": 2}, budget="4.5MiB")
    assert found["planned"] == found["plain"]
    assert found["devices"] == ["GPU:0", "GPU:1"]
    assert min(found["changes"]) > 0


def test_a_model_over_two_cards_stays_in_the_budget_of_each(worker: Worker) -> None:
    trial = "tests.tf.replica_trials:run_split"
    found = worker.ask(trial, memory="64MiB", card={"cards": 2}, budget="4MiB")
    assert found["planned"] == found["plain"]
    assert min(found["changes"]) > 0
    assert max(found["over"]) <= 0


def test_a_card_without_a_plan_and_one_that_runs_out_end_in_one_error(
    worker: Worker,
) -> None:
    trial = "tests.tf.replica_trials:run_out"
    found = worker.ask(trial, memory="32MiB", card={"cards": 2})
    assert found.startswith("UnsupportedError: Could not plan the step: outputs of op ")
