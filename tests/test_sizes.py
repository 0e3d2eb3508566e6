"""Sizes that only go down: a deletion lowers its limit in the same commit.

`lms/workers` and `lms/emulation` do not count: the one is training on several devices,
the other stands for a driver, and no other part of lms may ask whether a card is
emulated. `lms/proof` counts by itself: it shares no code with what it proves.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROOF = ROOT / "lms" / "proof"
APART = {ROOT / "lms" / "emulation", ROOT / "lms" / "workers", PROOF}
FILES = [p for p in (ROOT / "lms").rglob("*.py") if not APART & set(p.parents)]


def lines(*paths: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def knobs() -> int:
    from lms.planning.settings import Knobs

    return 1 + len(Knobs.__annotations__)  # and the budget


# Each size: its measure, its limit, how far the limit may stand above the truth.
LIMITS: dict[str, tuple[Callable[[], int], int, int]] = {
    "lines of lms": (lambda: lines(*FILES), 24_990, 150),
    "files of lms": (lambda: len(FILES), 103, 0),
    "lines of lms.proof": (lambda: lines(*PROOF.glob("*.py")), 1_440, 20),
    "lines of unet3d": (lambda: lines(*(ROOT / "unet3d").glob("*.py")), 8_368, 50),
    "knobs": (knobs, 10, 0),
    "lines of README": (lambda: lines(ROOT / "README.md"), 150, 20),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_size_is_at_most_its_limit_and_the_limit_is_near(name: str) -> None:
    measure, limit, slack = LIMITS[name]
    assert limit - slack <= measure() <= limit


def test_nobody_asks_whether_a_card_is_emulated() -> None:
    assert [file for file in FILES if "is_emulated" in file.read_text()] == []
