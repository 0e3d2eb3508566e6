"""Tests of differences: hand-made examples, and laws of the correction."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unet3d.evaluation import holm, wilcoxon


def test_six_equal_signs_have_p_of_two_in_64() -> None:
    assert wilcoxon(np.arange(1.0, 7)) == pytest.approx(2 / 64)


def test_no_difference_is_1_and_no_pair_no_number() -> None:
    assert wilcoxon(np.zeros(2)) == 1
    assert math.isnan(wilcoxon(np.zeros(0)))


def test_holm_multiplies_by_the_number_of_tests_that_are_left() -> None:
    # 3 * 0.01, then 2 * 0.02, then 1 * 0.5.
    assert holm([0.5, 0.01, 0.02]) == pytest.approx((0.5, 0.03, 0.04))
    corrected = holm([0.01, math.nan, 0.02])  # two tests only
    assert corrected[0] == pytest.approx(0.02)
    assert math.isnan(corrected[1])


@given(st.lists(st.floats(0, 1), max_size=8))
def test_corrected_values_are_larger_keep_their_order_and_stay_below_1(
    values: list[float],
) -> None:
    corrected = holm(values)
    assert all(p <= q <= 1 for p, q in zip(values, corrected, strict=True))
    ranked = sorted(range(len(values)), key=lambda k: values[k])
    assert [corrected[k] for k in ranked] == sorted(corrected)
