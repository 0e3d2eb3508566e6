"""Whose function trains on a card once all fits."""

import pytest

from tests.tf.card import on_card

pytestmark = pytest.mark.tf


@pytest.mark.parametrize(
    ("jit", "owner"), [("auto", "FunctionHook"), (False, "NoneType")]
)
def test_xla_never_takes_the_place_of_a_step(jit: str, owner: str) -> None:
    assert on_card("tests.tf.card_trials:whose_steps", jit) == owner
