"""What a hypervisor takes is read where Linux counts it."""

import os
from pathlib import Path

import pytest

from lms.machine.stolen import stolen_seconds


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("cpu  5 4 3 2 9 0 5 250 0 0\ncpu0 1 1 1 1 1 1 1 7 0 0\n", 250),
        ("cpu  5 4 3 2\n", 0),  # a kernel that does not count it
        ("", 0),
    ],
)
def test_only_the_first_line_counts(text: str, ticks: int, tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text(text)
    assert stolen_seconds(stat) == ticks / os.sysconf("SC_CLK_TCK")


def test_where_nobody_counts_nothing_was_taken(tmp_path: Path) -> None:
    assert stolen_seconds(tmp_path / "none") == 0
