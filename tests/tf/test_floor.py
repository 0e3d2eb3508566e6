"""A budget below what one op needs in any form is refused before a plan is tried."""

import pytest

from tests.tf.worker import Worker

pytestmark = [pytest.mark.tf, pytest.mark.slow]

LONG = pytest.mark.long

NAMES = ("a 3D U-Net", "two inputs and two outputs", "two optimizers")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == NAMES[0] else LONG) for n in NAMES]
)
def test_a_hopeless_budget_gets_a_bound_that_no_plan_is_below(
    name: str, worker: Worker
) -> None:
    trial = worker.ask("tests.tf.floor_trials:hopeless", memory="2GiB", name=name)
    far, near = trial["far"], trial["near"]
    assert (far["plans"], far["least"]) == (0, None)
    assert "This is a lower bound: the least budget was not" in far["said"]
    assert near["plans"] > 0
    assert trial["floor"] <= near["least"], "a plan was found below the bound"
