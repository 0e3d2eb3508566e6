"""The way from `fit` to the search is short, and drawn as it is."""

from pathlib import Path

import pytest

from tests.programs import python

ROOT = Path(__file__).parents[1]
HOPS = 12

pytestmark = [pytest.mark.tf, pytest.mark.long]


@pytest.mark.usefixtures("worker")  # it skips where no card can be emulated
def test_the_page_shows_the_way_that_is_walked() -> None:
    spine = python("docs/spine.py", cwd=ROOT, check=True).stdout
    assert len(spine.splitlines()) <= HOPS
    assert spine in (ROOT / "docs" / "how_it_works.md").read_text()
