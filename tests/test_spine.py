"""The way from `fit` to the search is short, and drawn as it is."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOPS = 12

pytestmark = [pytest.mark.tf, pytest.mark.long]


@pytest.mark.usefixtures("worker")  # it skips where no card can be emulated
def test_the_page_shows_the_way_that_is_walked() -> None:
    command = [sys.executable, "docs/spine.py"]
    spine = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    assert len(spine.splitlines()) <= HOPS
    assert spine in (ROOT / "docs" / "how_it_works.md").read_text()
