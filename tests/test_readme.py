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


def _assigned(tree: ast.Module, name: str) -> str:
    """The text of a value at the top of a module; none where there is no such name."""
    nodes = (node for node in tree.body if isinstance(node, ast.Assign))
    values = {ast.unparse(node.targets[0]): node.value for node in nodes}
    return ast.unparse(values[name]) if name in values else ""


def _run_by_make_test(path: Path) -> set[str]:
    """Names of a file's tests that are not all marked `long`."""
    tree, long = ast.parse(path.read_text()), "pytest.mark.long"
    tests = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    short = {t.name for t in tests if long not in map(ast.unparse, t.decorator_list)}
    return set() if long in _assigned(tree, "pytestmark") else short


def test_each_row_of_what_works_names_a_test_or_a_case_that_make_test_runs() -> None:
    text = (ROOT / "docs" / "what_works.md").read_text()
    rows = re.findall(r"\| (test|case) `([^`]+)` \|$", text, re.MULTILINE)
    bits = ast.parse((ROOT / "tests" / "tf" / "test_same_numbers.py").read_text())
    short: dict[str, tuple[str, ...]] = ast.literal_eval(_assigned(bits, "SHORT"))
    files = map(_run_by_make_test, (ROOT / "tests").rglob("test_*.py"))
    known = {"test": set().union(*files), "case": set(short).union(*short.values())}
    assert len(rows) > 20
    assert [name for kind, name in rows if name not in known[kind]] == []
    models = (ROOT / "tests" / "models.py").read_text()
    assert [name for name in known["case"] if f'"{name}": Case(' not in models] == []


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
    assert "XLA is turned off" in done.stderr
    assert "bfc_allocator.cc" not in done.stderr  # its list of chunks
