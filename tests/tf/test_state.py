"""Variables that are not on the device: what they count, and that numbers are equal."""

import pytest

from tests.tf.worker import Worker

pytestmark = pytest.mark.tf

TRIALS = "tests.tf.state_trials"


def test_what_the_host_makes_takes_its_bytes_where_it_arrives(worker: Worker) -> None:
    trial = worker.ask(f"{TRIALS}:read_from_another_device", memory=None)
    assert trial == {"read": [64 * 32 * 4], "moves": [False], "captured": 0}
