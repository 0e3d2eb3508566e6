"""Lint of the rules of language in CONTRIBUTING.md: `python -m tests.words [PATH ...]`.

First lines of docstrings must not stand on a pronoun; docstrings, comments and pages
must not hold placeholders; subjects of commits must read `area: verb object`.
"""

import ast
import re
import shutil
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHECKED = ("docs", "lms", "unet3d", "experiments", "profiling", "tests", "conftest.py")

# Commits since subjects have a rule, but four; by date, in clones without the first.
RANGES = ("08116dd..HEAD", "--since=2026-11-27T12:06:34Z")
EXEMPT = ("4f3165d", "78ccbdc", "46ea3e6", "7319917")
SUBJECT = re.compile(r"(?=.{,72}$)[\w./, -]+: \S")

# A pronoun that stands alone: "those that", "of these.", but not "these ops".
ALONE = r"(?=[,.:;]|$| (?:a|are|as|at|by|for|in|is|of|on|that|the|to|which|who|with)\b)"
PRONOUN = rf"(?:both|such|that|these|this|those){ALONE}"
WORDS = r"(?:it|they|the same|what|whether|who|whose)\b"
FIRST = re.compile(rf"(?i:{WORDS}|{PRONOUN}|.*\bof (?:it\b|them\b|{PRONOUN}))")
PLACEHOLDER = re.compile(r"(?i:\b(so (many|often)|the same of|those (that|who))\b)")
QUOTED = re.compile(r"(?ms:^```.*?^```$)|`[^`\n]*`|\"[^\"\n]*\"")


def faults(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of each fault of a file."""
    texts = [(1, path.read_text())]
    if path.suffix == ".py":
        texts = list(_texts(path))
        firsts = ((at, text.partition("\n")[0]) for at, text in texts if text[0] != "#")
        yield from ((at, line) for at, line in firsts if FIRST.match(line))
    for at, text in texts:
        unquoted = QUOTED.sub(lambda found: "\n" * found[0].count("\n"), text)
        for number, line in enumerate(unquoted.split("\n"), at):
            if PLACEHOLDER.search(line):
                yield number, line.strip()


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of docstrings and comments; a comment keeps its `#`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node, clean=False)
            yield from [(node.body[0].lineno, text)] if text else []
    with tokenize.open(path) as file:
        for kind, text, (line, _), *_ in tokenize.generate_tokens(file.readline):
            yield from [(line, text)] if kind == tokenize.COMMENT else []


def subjects(ranges: Sequence[str] = RANGES) -> list[str]:
    """Return hash and subject of commits that break the rule; none without git."""
    for chosen in ranges if shutil.which("git") else ():
        log = ["git", "-C", str(ROOT), "log", "--no-merges", "--format=%h %s", chosen]
        done = subprocess.run(log, check=False, capture_output=True, text=True)
        if done.returncode == 0:
            lines = done.stdout.splitlines()
            told = (one for one in lines if one[:7] not in EXEMPT)
            return [one for one in told if not SUBJECT.match(one.partition(" ")[2])]
    return []


def main(names: list[str]) -> int:
    """Print all faults; return 1 if there are any."""
    found = [f"commit {line}" for line in subjects()]
    for top in [*(ROOT / name for name in names or CHECKED), *ROOT.glob("*.md")]:
        for path in [top] if top.is_file() else sorted(top.rglob("*.*")):
            if path.suffix in (".py", ".md"):
                where = path.relative_to(ROOT)
                found += [f"{where}:{at}: {text}" for at, text in faults(path)]
    print(*found, f"{len(found)} faults of language", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
