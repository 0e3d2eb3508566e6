"""The README: one page whose commands exist and whose programs run."""

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lms

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()
ABOUT = ("CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md")
PAGES = [ROOT / name for name in ABOUT]
PAGES += sorted((ROOT / "docs").glob("*.md"))
PAGES += sorted((ROOT / "docs" / "decisions").glob("*.md"))
MOST_LINES, WIDEST = 150, 100


def _blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_it_is_one_page() -> None:
    lines = TEXT.splitlines()
    assert len(lines) <= MOST_LINES
    assert [line for line in lines if len(line) > WIDEST] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_measured_numbers_stand_in_generated_text(path: Path) -> None:
    if path.name == "results.md":  # all of it is generated
        return
    text = re.sub(
        r"<!-- results:.*?<!-- /results -->", "", path.read_text(), flags=re.DOTALL
    )
    assert not re.findall(r"\d\.\d+ (?:times|s|MiB|GiB)\b|\d+ ?%", text)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_commands_name_modules_that_exist(path: Path) -> None:
    for block in _blocks(path.read_text(), "sh"):
        for name in re.findall(r"python -m ([\w.]+)", block):
            assert importlib.util.find_spec(name), f"{path.name}: {name}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text()
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if not link.startswith("http"):
            assert (path.parent / link).exists(), f"{path.name}: {link}"


def test_each_row_of_what_works_names_a_test_or_a_case_that_exists() -> None:
    text = (ROOT / "docs" / "what_works.md").read_text()
    rows = re.findall(r"\| (test|case) `([^`]+)` \|$", text, re.MULTILINE)
    known = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    written = {"test": "def {}(", "case": '"{}": Case('}
    assert len(rows) > 20
    assert [n for kind, n in rows if written[kind].format(n) not in known] == []


def test_the_api_page_has_all_public_names() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    assert sorted(re.findall(r"^::: lms\.(\w+)$", text, re.M)) == sorted(lms.__all__)


def test_its_programs_are_python() -> None:
    programs = _blocks(TEXT, "python")
    assert len(programs) >= 4
    for program in programs:
        ast.parse(program)


@pytest.mark.tf
@pytest.mark.slow
def test_its_first_program_swaps_where_it_says(tmp_path: Path) -> None:
    program = next(p for p in _blocks(TEXT, "python") if p.startswith("# train.py"))
    (tmp_path / "train.py").write_text(
        f"{program}assert callback.report[0].swap_count\n"
    )
    line = next(line for line in TEXT.splitlines() if "-m lms emulate" in line)
    words = [sys.executable if w == "python" else w for w in line.split()]
    done = subprocess.run(
        words, check=False, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
