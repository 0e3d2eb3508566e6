"""Every large chunk of a sealed step lies at its planned address in every step."""

from typing import Any

import pytest

from tests.tf.worker import Worker

pytestmark = [pytest.mark.tf, pytest.mark.slow]

_TRIAL = "tests.tf.seal_trials:sealed"

# Models, each with the card's memory, the callback's knobs, and what its plan uses.
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "swaps": ("34MiB", {"recompute": False}, "swaps"),
    "recomputed ops": ("34MiB", {"recompute": True}, "recomputed"),
    "masks by way of the host": ("34MiB", {"recompute": False}, "swaps"),
    "moving averages": ("90MiB", {"recompute": False}, "swaps"),
}


@pytest.mark.parametrize("name", CASES)
def test_each_large_chunk_lies_at_its_planned_address(
    name: str, worker: Worker
) -> None:
    memory, knobs, used = CASES[name]
    plain = worker.ask(_TRIAL, memory="1GiB", name=name, planned=False)
    found = worker.ask(_TRIAL, memory=memory, name=name, planned=True, **knobs)
    assert (found["addresses"], found["replans"]) == ("planned", 0)
    assert found["others"] == [[], []]
    assert min(found["chunks"]) > 0
    assert found[used] > 0
    assert found["measured"] <= found["predicted"]
    assert found["numbers"] == plain["numbers"]
