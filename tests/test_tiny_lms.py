"""The idea in an afternoon: a program that is read, and runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "docs" / "tiny_lms.py"


def test_it_is_short() -> None:
    assert len(PROGRAM.read_text().splitlines()) <= 300


@pytest.mark.tf
@pytest.mark.long
def test_it_trains_in_half_of_the_memory_with_equal_bits() -> None:
    ended = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    _, plenty, plain, tiny, said = ended.stdout.splitlines()
    assert plain.split(maxsplit=2) == ["plain", "72MiB", "out of memory"]
    assert plenty.split()[4:] == tiny.split()[4:]
    assert said == "The bits are equal."
