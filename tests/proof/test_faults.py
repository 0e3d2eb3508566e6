"""Steps of models are proved, and faults that a machine makes in them are refused.

A fault that is not refused is proved to be harmless: values, order and bytes hold in
the faulty graph, too. Most are edges that other edges imply.
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
    "an unrolled LSTM": 0.3,
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
    assert sum(map(sum, trial["table"].values())) == asked["count"]
    survivors = {kind: left for kind, (_, left) in trial["table"].items() if left}
    assert survivors.keys().isdisjoint(DEADLY), trial["harmless"]


def test_the_report_says_that_a_step_is_not_proved(worker: Worker) -> None:
    said = worker.ask("tests.proof.trials:judge_a_faulty_rewriter", memory="1GiB")
    assert said.startswith("not proved: ")
    assert "makes another value" in said
