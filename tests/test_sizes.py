"""Sizes that only go down: a deletion lowers its limit in the same commit.

`lms/emulation` is counted apart: it stands for a driver, and no other part of lms may
ask whether a card is emulated.
"""

from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EMULATION = ROOT / "lms" / "emulation"

LIMITS = {
    "lines of lms": 20_900,
    "lines of experiments": 14_050,
    "lines of profiling": 3_150,
    "lines of tests": 21_150,
    "files of lms": 129,
    "files of lms/planning": 26,
}
# How far a limit may stand above the truth.
SLACK = {"lines": 150, "files": 0}


def python(folder: str) -> Iterable[Path]:
    files = sorted((ROOT / folder).rglob("*.py"))
    return [file for file in files if EMULATION not in file.parents]


def size(name: str) -> int:
    kind, _, folder = name.partition(" of ")
    files = python(folder)
    if kind == "files":
        return len(list(files))
    return sum(len(file.read_text().splitlines()) for file in files)


@pytest.mark.parametrize("name", LIMITS)
def test_a_size_is_at_most_its_limit_and_the_limit_is_near(name: str) -> None:
    limit, slack = LIMITS[name], SLACK[name.partition(" ")[0]]
    assert limit - slack <= size(name) <= limit


def test_nobody_asks_whether_a_card_is_emulated() -> None:
    asking = [file for file in python("lms") if "is_emulated" in file.read_text()]
    assert asking == []
