"""Whose function trains on a card once all fits."""

import pytest

from tests.tf.worker import Worker

pytestmark = pytest.mark.tf


@pytest.mark.parametrize(
    ("jit", "owner"), [("auto", "FunctionHook"), (False, "NoneType")]
)
def test_xla_never_takes_the_place_of_a_step(
    jit: str, owner: str, worker: Worker
) -> None:
    found = worker.ask("tests.tf.card_trials:whose_steps", memory="256MiB", jit=jit)
    assert found == owner
