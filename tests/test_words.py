"""The lint of words finds planted faults, and no others."""

import subprocess
from pathlib import Path

import pytest

from tests import words

MODULE = '''"""Good first line."""

LIMIT = 3  # so many chunks of a budget


class Plan:
    """Those of a step that move."""

    def made(self) -> None:
        """Return the plan.

        A plan has "so many" copies, so many of them.
        """


def again() -> None:
    """Run the same of it."""


def chosen() -> None:
    """Choose these ops, those tensors, and `so many` copies of a tensor."""
'''
PAGE = """# A page

It moves so
many tensors, so often.

```python
# so many
```

Those that move are copies.
"""


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [("module.py", MODULE, [3, 7, 12, 17, 17]), ("page.md", PAGE, [4, 10])],
)
def test_planted_faults_are_found(
    name: str, text: str, lines: list[int], tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert sorted(line for line, _ in words.faults(path)) == lines


@pytest.mark.parametrize(
    "line",
    [
        "It runs.",
        "The same of a batch.",
        "Whether an op fits.",
        "A copy of it.",
        "Both.",
    ],
)
def test_first_lines_on_pronouns_are_faults(line: str) -> None:
    assert words.FIRST.match(line)


@pytest.mark.parametrize(
    "line", ["Its size in bytes.", "These rewrites, and one more.", "Run both copies."]
)
def test_first_lines_that_name_things_are_none(line: str) -> None:
    assert not words.FIRST.match(line)


def test_subjects_name_an_area_and_are_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "ROOT", tmp_path)
    assert words.subjects() == []  # no repository
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    git = ["git", "-C", str(tmp_path), *identity]
    subprocess.run([*git, "init", "-q"], check=True)
    subjects = ["wip", f"docs: {'x' * 67}", "docs: name things", "tests, lms/tf: add"]
    for subject in subjects:
        message = ["-m", subject]
        subprocess.run([*git, "commit", "-q", "--allow-empty", *message], check=True)
    found = [line.partition(" ")[2] for line in words.subjects(["HEAD"])]
    assert found == [subjects[1], subjects[0]]
    monkeypatch.setenv("PATH", str(Path("/no/git")))
    assert words.subjects() == []
