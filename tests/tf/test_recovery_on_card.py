"""Steps that run out of memory on a card: undone, planned anew, repeated."""

import pytest

from tests.tf.card import on_card

pytestmark = pytest.mark.tf


def test_small_early_writes_are_kept_on_the_device() -> None:
    found = on_card("tests.tf.card_trials:kept_variables")
    assert found == {
        "is_kept": True,
        "copied": 0,
        "state": 6.0,
        "replans": 1,
        "wrote": True,
    }


@pytest.mark.slow
def test_a_step_that_ran_out_of_memory_goes_on_with_the_same_numbers() -> None:
    trial = "tests.tf.card_trials:recovered"
    whole = on_card(trial, 0, 0, mib=26)
    for held, failures in ((0.2, 0), (0, 1)):
        found = on_card(trial, held, failures, mib=26)
        assert found["replans"] == [1]
        assert found["numbers"] == whole["numbers"]
