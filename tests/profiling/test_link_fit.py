import pytest
from hypothesis import given
from hypothesis import strategies as st

from lms.units import GIB, KIB
from profiling.link_bandwidth import sizes_between
from profiling.link_fit import fit_link

SIZES = sizes_between(4 * KIB, GIB)


@given(latency=st.floats(1e-6, 1e-2), bandwidth=st.floats(1e7, 1e12))
def test_copies_on_a_line_give_that_line_back(latency: float, bandwidth: float) -> None:
    fit = fit_link([(size, latency + size / bandwidth) for size in SIZES])
    assert fit.bandwidth == pytest.approx(bandwidth, rel=1e-3)
    assert fit.latency == pytest.approx(latency, rel=1e-3)
    assert fit.error == pytest.approx(0, abs=1e-6)


@given(disturbed=st.sets(st.sampled_from(SIZES), max_size=6), factor=st.floats(1, 9))
def test_six_disturbed_sizes_of_nineteen_do_not_pull(
    disturbed: set[int], factor: float
) -> None:
    points = [
        (size, (1e-5 + size / 12e9) * (factor if size in disturbed else 1.0))
        for size in SIZES
    ]
    assert fit_link(points).bandwidth == pytest.approx(12e9, rel=0.02)


def test_latency_is_never_negative() -> None:
    assert fit_link([(1000, 0.001), (2000, 0.004)]).latency == 0


def test_one_size_makes_no_line() -> None:
    with pytest.raises(ValueError, match="two sizes at least, got 2 points"):
        fit_link([(1000, 0.001), (1000, 0.002)])
