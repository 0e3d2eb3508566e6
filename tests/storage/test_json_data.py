"""Dataclasses from JSON: what is not one is refused, by name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lms.storage.files import as_data, from_json
from profiling.timelines import timeline_from_json
from unet3d.files import read_data
from unet3d.runs import Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A thing with a name and sizes."""

    name: str
    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("`name` must be a text, got none. Name it.")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "truncated"),
        ("[]", "Expected `object`, got `array`"),
        ("{}", "missing required field `name`"),
        ('{"name": 3}', r"Expected `str`, got `int` - at `\$.name`"),
        ('{"name": "a", "sizes": [1, "2"]}', r"got `str` - at `\$.sizes\[1\]`"),
        ('{"name": "a", "size": [1]}', "unknown field `size`"),
        ('{"name": ""}', "`name` must be a text, got none. Name it."),
    ],
)
def test_what_is_wrong_with_a_value_is_said(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        from_json(text, Box)


def test_lists_become_tuples_and_what_is_missing_has_its_default() -> None:
    assert as_data({"name": "a", "sizes": [1]}, Box) == Box(name="a", sizes=(1,))
    assert from_json('{"name": "a"}', Box) == Box(name="a")
    assert as_data({"name": "a", "more": 1}, Box, exact=False) == Box(name="a")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "must be JSON, got a file that is not"),
        ("3", "must hold a box, got: Expected `object`, got `int`. Pack it again."),
        ("{}", "must hold a box, got: .* field 'box'. Pack it again."),
        ('{"box": {"name": 3}}', r"must hold a box, got: .*`\$.name`. Pack it again."),
    ],
)
def test_a_file_is_named_with_rule_value_and_next_step(
    content: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "box.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=words) as caught:
        read_data(path, Box, part="box", rule="hold a box", advice="Pack it again.")
    assert str(caught.value).startswith(f"`{path}` must")


def test_a_part_of_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "box.json"
    path.write_text('{"box": {"name": "a"}, "day": 3}')
    box = read_data(path, Box, part="box", rule="hold a box", advice="Pack it again.")
    assert box == Box(name="a")


@pytest.mark.parametrize(
    "change", [{"stalls": [["a", 0.0]]}, {"requests": [[0.0, "a", 1]]}]
)
def test_rows_that_are_no_timeline_are_refused(change: dict[str, Any]) -> None:
    empty = {"intervals": [], "stalls": [], "requests": [], "host_requests": []}
    assert timeline_from_json(empty).intervals == ()
    with pytest.raises(ValueError, match=r"a timeline must be rows .* Write it again"):
        timeline_from_json(empty | change)


def test_the_settings_of_a_run_are_checked_by_type() -> None:
    with pytest.raises(ValueError, match=r"Expected `int`, got `str` - at `\$.size`"):
        as_data({"data": "", "label_scheme": "msd", "size": "32"}, Configuration)
