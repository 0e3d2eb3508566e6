"""Ops that exceed the card run in parts."""

from functools import cache
from typing import Any

import pytest

from lms.planning.settings import read_settings
from tests.tf.worker import Worker

pytestmark = pytest.mark.tf

_TRIAL = "tests.tf.slice_trials:attention"


@cache
def plain(worker: Worker, **knobs: Any) -> Any:
    return worker.ask(_TRIAL, memory="1GiB", planned=False, **knobs)


def test_scores_that_exceed_the_card_are_made_head_by_head(worker: Worker) -> None:
    found = worker.ask(_TRIAL, memory="8MiB", planned=True)
    whole = plain(worker)
    assert found["losses"] == pytest.approx(whole["losses"], rel=1e-5)
    assert found["cut"][0] > 0
    assert found["peak"] <= 8 << 20 < 0.6 * whole["peak"]
    refused = worker.ask(_TRIAL, memory="8MiB", planned=True, slices="none")
    assert refused["least"] > 8 << 20


def test_parts_have_the_same_bits_where_ops_are_deterministic(worker: Worker) -> None:
    known: dict[str, Any] = {"memory": "32MiB", "planned": True, "exact": True}
    found = worker.ask(_TRIAL, budget="8MiB", **known)
    if "least" in found:  # parts of this processor's products have other bits
        assert 'slices="any"' in found["said"]
        found = worker.ask(_TRIAL, **(known | {"memory": found["least"]}))
    assert found["numbers"] == plain(worker, exact=True)["numbers"]


def test_training_goes_on_in_parts_where_others_take_memory(worker: Worker) -> None:
    found = worker.ask(_TRIAL, memory="16MiB", planned=True, held=8 << 20)
    assert found["replans"][0] == 0, "it is planned anew before it runs out"
    assert found["cut"][0] > 0
    assert found["losses"] == pytest.approx(plain(worker)["losses"], rel=1e-5)


@pytest.mark.slow
def test_parts_of_a_skip_are_written_into_one_memory(worker: Worker) -> None:
    """Parts beside the concatenated tensor of 11.25 MiB would need 22.5 MiB alone."""
    known: dict[str, Any] = {"memory": "512MiB"}
    whole = worker.ask("tests.tf.slice_trials:unet", planned=False, **known)
    found = worker.ask(
        "tests.tf.slice_trials:unet", planned=True, budget="24MiB", **known
    )
    assert found["numbers"] == whole["numbers"]
    assert found["cut"][0] > 0
    assert found["peak"] <= 24 << 20 < 0.65 * whole["peak"]
    assert found["proof"][0].startswith("values, order")


@pytest.mark.long
def test_products_are_cut_by_rows_only_where_that_is_asked_for(worker: Worker) -> None:
    knobs: dict[str, Any] = {"length": 1024, "heads": 1}
    found = worker.ask(_TRIAL, memory="10MiB", planned=True, slices="any", **knobs)
    assert found["losses"] == pytest.approx(plain(worker, **knobs)["losses"], rel=1e-5)
    refused = worker.ask(_TRIAL, memory="10MiB", planned=True, **knobs)
    assert refused["least"] > 10 << 20


def test_a_way_to_cut_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match=r'"any", "none" or None, got "?\'?rows'):
        read_settings(slices="rows")  # pyright: ignore[reportArgumentType]
