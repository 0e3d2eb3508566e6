"""Steps of models are proved, and faults that a machine makes in them are refused.

A fault that is not refused must be harmless: other edges imply the ones that are gone,
or the faulty step runs with equal bits. Docs: `docs/decisions/proof.md`.
"""

from typing import Any

import pytest

from tests.tf.worker import Worker

pytestmark = [pytest.mark.tf, pytest.mark.slow]

CASES = {
    "two inputs and two outputs": 0.4,
    "a residual network with recomputed ops": 0.4,
    "a 3D U-Net": 0.3,
    "mixed_float16 with recomputed ops": 0.6,
    "the largest of equal voxels": 0.3,
    "an unrolled LSTM": 0.65,
    "letters of speech": 0.3,
    "a train_step of its own": 0.6,
}
SHORT = ("two inputs and two outputs",)

# Kinds that no step survives: each changes a value.
DEADLY = {
    "a copy of the wrong tensor",
    "a copy back without its copy out",
    "a transposed tensor shares a copy",
    "a seed changed",
    "a part's axis or place wrong",
    "a write moved before a read",
    "a second run of other inputs",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in SHORT else pytest.mark.long)
        for name in CASES
    ],
)
def test_a_planned_step_is_proved_and_faults_in_it_are_refused(
    name: str, worker: Worker
) -> None:
    asked: Any = {"name": name, "share": CASES[name], "count": 25}
    trial = worker.ask("tests.proof.trials:make_faults", memory="2GiB", **asked)
    assert trial["proof"] == "values, order, bytes"
    outcomes = trial["table"]
    assert sum(sum(each.values()) for each in outcomes.values()) == asked["count"]
    assert trial["missed"] == []
    deadly = [each for kind, each in outcomes.items() if kind in DEADLY]
    assert all(sum(each.values()) == each["refused"] for each in deadly)


def test_a_step_that_is_not_proved_is_refused_by_the_value_that_failed(
    worker: Worker,
) -> None:
    asked: Any = {"count": 9, "budget": "7MiB"}
    trial = worker.ask("tests.proof.trials:run_faulty", memory="1GiB", **asked)
    assert trial["error"].startswith("UnprovedError: Could not prove the planned step")
    assert "makes another value" in trial["error"]


def test_another_plan_takes_the_place_of_one_that_is_not_proved(worker: Worker) -> None:
    asked: Any = {"count": 1, "budget": "7MiB"}
    trial = worker.ask("tests.proof.trials:run_faulty", memory="1GiB", **asked)
    assert trial["proof"].startswith("values, order")
    assert trial["swaps"] > 0
    assert trial["built"] == 2


def test_a_fault_of_the_proof_itself_ends_no_training(worker: Worker) -> None:
    asked: Any = {"count": -1, "budget": "7MiB"}
    trial = worker.ask("tests.proof.trials:run_faulty", memory="1GiB", **asked)
    assert "the proof ended in KeyError" in trial["not_planned"]
    assert trial["swaps"] == 0
