"""The table of errors, on volumes so small that all ways are right."""

import numpy as np
import pytest

from experiments.sum_error import worst
from experiments.volume_sums import measure

pytestmark = pytest.mark.tf


def test_small_volumes_are_summed_rightly_in_all_ways() -> None:
    found = measure(8)
    assert list(found)[:4] == ["sum", "loss", "Dice", "variance"]
    for ways in found.values():
        for values in ways[:2]:
            if values is not None:
                np.testing.assert_allclose(values, ways[2], rtol=1e-5)


def test_the_error_is_that_of_the_label_that_is_farthest_off() -> None:
    row = worst(np.array([1.0, 2.2]), np.array([1.5, 2.02]), np.array([1.0, 2.0]))
    assert row == {
        "own_error": pytest.approx(0.1),
        "error": pytest.approx(0.01),
        "value": 2.0,
    }
