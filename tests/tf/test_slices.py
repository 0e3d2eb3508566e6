"""Ops that exceed the card run in parts, with the bits of whole ones."""

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
    knobs: dict[str, Any] = {"length": 512, "heads": 2, "dropout": 0.2}
    found = worker.ask(_TRIAL, memory="8MiB", planned=True, **knobs)
    whole = plain(worker, **knobs)
    assert found["numbers"] == whole["numbers"]
    assert found["cut"][0] > 0
    assert found["peak"] <= 8 << 20 < 0.6 * whole["peak"]
    refused = worker.ask(_TRIAL, memory="8MiB", planned=True, slices="none", **knobs)
    assert refused["least"] > 12 << 20


@pytest.mark.long
def test_products_are_cut_by_rows_only_where_that_is_asked_for(worker: Worker) -> None:
    knobs: dict[str, Any] = {"length": 1024, "heads": 1}
    found = worker.ask(_TRIAL, memory="10MiB", planned=True, slices="any", **knobs)
    losses = [float.fromhex(each) for each in found["numbers"][:-1]]
    whole = plain(worker, **knobs)["numbers"][:-1]
    assert losses == pytest.approx([float.fromhex(each) for each in whole], rel=1e-5)
    refused = worker.ask(_TRIAL, memory="10MiB", planned=True, **knobs)
    assert refused["least"] > 10 << 20


def test_a_way_to_cut_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match=r'"any", "none" or None, got "?\'?rows'):
        read_settings(slices="rows")
