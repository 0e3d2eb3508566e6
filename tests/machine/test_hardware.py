"""Seconds that ops and copies take on a card of the table."""

import re

import pytest

from lms.machine.hardware import PRESETS, find_hardware, roofline
from lms.units import GIB, MIB
from tests.graphs import graph_of, make_op

CARD = PRESETS["v100-pcie"]


def test_a_copy_takes_its_launch_and_its_bytes_over_the_link() -> None:
    assert CARD.copy_seconds(12_000_000_000, to_device=True) == 1.00008


def test_each_element_type_has_its_rate() -> None:
    rates = [CARD.rate_of(name) / 1e12 for name in ("float32", "float16")]
    assert rates == [14.0, 112.0]


def test_an_op_without_arithmetic_takes_as_long_as_its_bytes() -> None:
    assert roofline(graph_of(make_op("a", 9 * 10**8)), CARD).of("a") == 0.001


@pytest.mark.parametrize("text", ["T4", " t4 ", "t-4"])
def test_a_name_is_known_in_any_case(text: str) -> None:
    assert find_hardware(text) is PRESETS["t4"]


def test_numbers_describe_a_card_in_any_order() -> None:
    found = find_hardware("pcie3x8, 480GB/s, 22.1TFLOPS, 44.2TF, 8.9, 16GiB")
    assert (found.flops, found.memory_bandwidth, found.h2d) == (22.1e12, 480e9, 6e9)
    assert found.rate_of("float16") == found.rate_of("bfloat16") == 44.2e12
    assert found.capability == 89
    kept = 16 * GIB // 50 + (1536 + 450) * MIB  # driver, TensorFlow and CUDA
    assert found.memory == 16 * GIB - kept


def test_a_card_without_bfloat16_has_no_rate_of_it() -> None:
    found = find_hardware("16GB,8.1TF,65TF,320GB/s,pcie3,7.5")
    assert found.rate_of("bfloat16") == found.flops < found.rate_of("float16")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rtx4060", "Did you mean rtx-4060-ti or rtx-4060-laptop?"),
        ("a100-80", "Did you mean a100-80-pcie4 or a100-80-sxm?"),
        ("rtx 3061", "Did you mean rtx-3060"),
        ("abacus", "got 'abacus'. Describe any other card by its numbers: '12GiB,"),
        ("", "got ''. Describe"),
        ("12GiB,360GB/s,pcie4", "must have memory, TFLOP/s, GB/s and a link (pcie3,"),
        ("12GiB,1TF,2TF,3TF,360GB/s,pcie4", "must have memory, TFLOP/s"),
        ("12GiB,0TF,360GB/s,pcie4", "`flops` must be positive, got 0.0"),
        ("12GiB,12TF,360GB/s,rope", "`memory of a card` must be a size"),
        ("12GiB,12TF,360GB/s,pcie4,5.2", "compute capability must be of 6, 7, 8, 9"),
        ("1GiB,12TF,360GB/s,pcie4", "must exceed the 1986 MiB that TensorFlow and"),
        ("lots,12TF,360GB/s,pcie4", "`memory of a card` must be a size"),
        ("12GiB,1.2.3TF,360GB/s,pcie4", "`memory of a card` must be a size"),
    ],
)
def test_another_card_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        find_hardware(text)


def test_what_tensorflow_lacks_is_said_of_blackwell_alone() -> None:
    lacking = {name for name, card in PRESETS.items() if card.support}
    assert lacking == {"rtx-5080", "rtx-5090"}
    assert "compute capability 12.0" in PRESETS["rtx-5080"].support
