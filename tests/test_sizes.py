"""Sizes that only go down: a deletion lowers its limit in the same commit.

`lms/workers` and `lms/emulation` are counted apart: the one is training on several
devices, the other stands for a driver, and no other part of lms may ask whether a
card is emulated.
"""

import ast
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
APART = (ROOT / "lms" / "emulation", ROOT / "lms" / "workers")


def files(folder: str, kind: str = "py") -> list[Path]:
    """Those of a folder, without those that are counted apart."""
    top = ROOT / folder
    found = (file for end in kind.split() for file in top.rglob(f"*.{end}"))
    return [
        file for file in found if top in APART or not set(APART) & set(file.parents)
    ]


def lines(folder: str, kind: str = "py") -> int:
    return sum(len(file.read_text().splitlines()) for file in files(folder, kind))


def nodes(folder: str) -> Iterable[ast.AST]:
    return (
        node for file in files(folder) for node in ast.walk(ast.parse(file.read_text()))
    )


def classes() -> int:
    return sum(isinstance(node, ast.ClassDef) for node in nodes("lms"))


def rooms() -> int:
    """Folders and files at the top of lms."""
    tops = {
        file.relative_to(ROOT / "lms").parts[0] for file in (ROOT / "lms").rglob("*.py")
    }
    return len(tops)


def knobs() -> int:
    from lms.planning.settings import Knobs

    return 1 + len(Knobs.__annotations__)  # and the budget


def first_words() -> int:
    """First lines that say neither what a thing is nor what it does."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    return sum(
        bool(re.match("What|Whether|That", ast.get_docstring(node) or ""))
        for folder in ("lms", "lms/workers", "lms/emulation", "unet3d", "profiling")
        for node in nodes(folder)
        if isinstance(node, documented)
    )


# Each size: its measure, its limit, how far the limit may stand above the truth.
LIMITS: dict[str, tuple[Callable[[], int], int, int]] = {
    "lines of lms": (lambda: lines("lms"), 21_998, 150),
    "lines of lms/workers": (lambda: lines("lms/workers"), 2_700, 150),
    "lines of lms/emulation": (lambda: lines("lms/emulation"), 728, 150),
    "lines of lms/emulation/native": (
        lambda: lines("lms/emulation", "cc h"),
        3_300,
        150,
    ),
    "lines of unet3d": (lambda: lines("unet3d"), 6_300, 150),
    "lines of experiments": (lambda: lines("experiments"), 6_532, 150),
    "lines of profiling": (lambda: lines("profiling"), 3_312, 150),
    "lines of tests": (lambda: lines("tests"), 21_457, 150),
    "files of lms": (lambda: len(files("lms")), 102, 0),
    "files of lms/planning": (lambda: len(files("lms/planning")), 18, 0),
    "rooms of lms": (rooms, 15, 0),
    "classes of lms": (classes, 138, 0),
    "knobs": (knobs, 11, 0),
    "first lines that begin with What, Whether or That": (first_words, 0, 0),
    "lines of README": (
        lambda: len((ROOT / "README.md").read_text().splitlines()),
        150,
        20,
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_size_is_at_most_its_limit_and_the_limit_is_near(name: str) -> None:
    measure, limit, slack = LIMITS[name]
    assert limit - slack <= measure() <= limit


def test_nobody_asks_whether_a_card_is_emulated() -> None:
    asking = [file for file in files("lms") if "is_emulated" in file.read_text()]
    assert asking == []
