"""Words describe an emulated card; wrong words are refused."""

from typing import Any

import pytest

from lms.emulation import counters
from lms.emulation.card import (
    LINKS,
    LinkRates,
    card_variables,
    emulated_memory,
)
from lms.machine.hardware import PRESETS


def test_memory_alone_makes_a_card_without_a_pace() -> None:
    made = card_variables("96MiB")
    assert emulated_memory(made) == 96 << 20
    assert "LMS_CARD_FLOPS" not in made
    assert "LMS_CARD_H2D" not in made


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_gives_memory_rates_link_and_capability(name: str) -> None:
    made, card = card_variables(card=name, dry=True), PRESETS[name]
    assert emulated_memory(made) == card.memory
    assert float(made["LMS_CARD_FLOPS"]) == card.flops
    capability = int(made["LMS_CARD_CAPABILITY"])
    like = "HALF_FLOPS" if capability >= 80 else "FLOPS"  # bfloat16 came with Ampere
    assert made["LMS_CARD_BFLOAT16_FLOPS"] == made[f"LMS_CARD_{like}"]
    assert float(made["LMS_CARD_H2D"]) == card.h2d
    assert capability == card.capability >= 60


def test_a_card_by_its_numbers_has_its_rates_and_its_memory() -> None:
    made = card_variables(card="12GiB,12.7TF,360GB/s,pcie4x8", dry=True)
    named = card_variables(card="RTX_3060", dry=True)
    names = ("FLOPS", "BANDWIDTH", "CAPABILITY")
    assert all(made[f"LMS_CARD_{n}"] == named[f"LMS_CARD_{n}"] for n in names)
    assert float(made["LMS_CARD_H2D"]) * 2 == float(named["LMS_CARD_H2D"])
    found = emulated_memory(made), emulated_memory(named)
    assert found[0] == pytest.approx(found[1], rel=0.01)


def test_memory_and_link_take_the_place_of_the_preset_s() -> None:
    made = card_variables("1GiB", card="v100-pcie", link=LINKS["nvlink2"])
    assert emulated_memory(made) == 1 << 30
    assert float(made["LMS_CARD_D2H"]) == 64e9


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({}, "`memory` must be given without a card"),
        ({"memory": "1KiB"}, "`memory` must be at least 1 MiB"),
        ({"memory": "1GiB", "cards": 0}, "`cards` must be from 1 to 8, got 0"),
        ({"memory": "1GiB", "cards": 9}, "`cards` must be from 1 to 8, got 9"),
        ({"memory": "1GiB", "cards": 2.5}, r"got 2\.5\. Write a whole number"),
        ({"memory": "1GiB", "dry": True}, "`card` must be named"),
        ({"card": "abacus"}, "a card must be one of p100, v100-pcie"),
        ({"memory": "1GiB", "slow_motion": 0.1}, "`slow_motion` must be at least 1"),
    ],
)
def test_what_breaks_a_rule_is_refused(words: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        card_variables(**words)


@pytest.mark.parametrize("rate", [0, -1, float("inf")])
def test_a_link_of_nothing_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="`h2d` must be bytes per second above 0"):
        LinkRates(h2d=rate, d2h=1e9)


def test_another_driver_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "DRIVER", "libc.so.6")
    with pytest.raises(OSError, match="must be an emulated card's, got another"):
        counters._driver.__wrapped__()
