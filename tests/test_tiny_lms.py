"""The idea in an afternoon: a program that is read, and runs."""

import os
from pathlib import Path

import pytest

from tests.programs import python

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "docs" / "tiny_lms.py"


def test_it_is_short() -> None:
    assert len(PROGRAM.read_text().splitlines()) <= 300


@pytest.mark.tf
@pytest.mark.long
def test_it_trains_in_half_of_the_memory_with_equal_bits() -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = python(str(PROGRAM), env=environ, timeout=240)
    assert ended.returncode == 0, ended.stderr
    _, plenty, plain, tiny, said = ended.stdout.splitlines()
    assert plain.split(maxsplit=2) == ["plain", "72MiB", "out of memory"]
    assert plenty.split()[4:] == tiny.split()[4:]
    assert said == "The bits are equal."
