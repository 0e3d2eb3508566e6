"""Seconds that ops and copies take on a card of the table."""

from lms.machine.hardware import PRESETS, roofline
from tests.graphs import graph_of, make_op

CARD = PRESETS["v100-pcie"]


def test_a_copy_takes_its_launch_and_its_bytes_over_the_link() -> None:
    assert CARD.copy_seconds(12_000_000_000, to_device=True) == 1.00008


def test_each_element_type_has_its_rate() -> None:
    rates = [CARD.rate_of(name) / 1e12 for name in ("float32", "float16")]
    assert rates == [14.0, 112.0]


def test_an_op_without_arithmetic_takes_as_long_as_its_bytes() -> None:
    assert roofline(graph_of(make_op("a", 9 * 10**8)), CARD).of("a") == 0.001
