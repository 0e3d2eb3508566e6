"""What users do with state on the host: the bits are those of plain Keras."""

from pathlib import Path

import pytest

from lms.units import MIB
from tests.tf.worker import Worker

pytestmark = pytest.mark.tf

TRIALS = "tests.tf.state_uses"
ENOUGH, LIMIT = "256MiB", 6 * MIB


def test_a_variable_larger_than_the_device_is_assigned_and_loaded(
    worker: Worker, tmp_path: Path
) -> None:
    trial, folder = f"{TRIALS}:large_variable", str(tmp_path)
    plain = worker.ask(trial, memory=ENOUGH, folder=folder, on_host=False)
    found = worker.ask(trial, memory=LIMIT, folder=folder, on_host=True)
    assert found == plain


@pytest.mark.long
def test_initial_values_larger_than_the_device_have_equal_bits(worker: Worker) -> None:
    trial = f"{TRIALS}:initial_values"
    plain = worker.ask(trial, memory=ENOUGH, on_host=False)
    assert worker.ask(trial, memory=2 * MIB, on_host=True) == plain


@pytest.mark.long
@pytest.mark.parametrize(
    "way",
    [
        "by a stored plan",
        "cloned",
        "compiled again",
        "in a loop of one's own",
        "in threads",
        "of shared layers",
        "recomputed",
        "two batch sizes",
    ],
)
def test_trainings_have_equal_bits(worker: Worker, way: str) -> None:
    trial = f"{TRIALS}:trained"
    plain = worker.ask(trial, memory=ENOUGH, way=way, on_host=False)
    limit = 2 * LIMIT if way == "in threads" else LIMIT
    assert worker.ask(trial, memory=limit, way=way, on_host=True) == plain
