"""The page of results in Markdown, and the numbers of README.md: from files alone.

    python -m experiments.results_page             # writes both
    python -m experiments.results_page --check     # says whether they are up to date

Reads `experiments/results/*.jsonl`, measures nothing, and imports no TensorFlow. The
same files give the same text. In README.md, what stands between the markers of a block
is replaced:

    <!-- results:costs -->
    <!-- /results -->
"""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from experiments.question import MET
from experiments.results_costs import costs
from experiments.results_sections import QUESTIONS, RESULTS, Section, section_of
from experiments.results_words import WORDS, explained
from lms.storage.files import write_text
from profiling.tables import Table, markdown_rows

__all__ = ["filled", "main", "results_page"]

_ROOT = Path(__file__).parent.parent
_COMMAND = "python -m experiments.results_page"
_INTRODUCTION = f"""\
<!-- Written by `{_COMMAND}`: change the results, not this page. -->

# Results

Each section answers one question: what was asked, what was found, and how it was
measured. Everything on this page is computed from the files in `experiments/results`.
No GPU was used. MiB and GiB are powers of 2. The machine is shared with other work, so
equal trainings differ. The commands need a checkout of the repository.

Sections whose device is "a CPU with the allocator that TensorFlow uses on GPUs" were
measured on a device that earlier versions emulated, and are to be measured anew."""
_BLOCK = re.compile(r"(<!-- results:(\w+) -->\n).*?(<!-- /results -->)", re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page and fill the README, or check them.

    Args:
        arguments: The words after `python -m experiments.results_page`.

    Returns:
        The exit status: 1 if a result cannot be shown, or a file is not up to date.
    """
    parser = argparse.ArgumentParser(
        prog=_COMMAND,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON lines")
    parser.add_argument("--output", type=Path, default=_ROOT / "docs" / "results.md")
    parser.add_argument("--readme", type=Path, default=_ROOT / "README.md")
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(arguments)
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    sections = [section_of(name, options.results) for name in QUESTIONS]
    bad = [s.problem for s in sections if s.problem and "could not" in s.problem]
    for problem in bad:
        console.print(problem, style="red", markup=False)
    wanted = {
        options.output: results_page(sections, options.output.parent),
        options.readme: filled(options.readme.read_text(), sections),
    }
    old = [path for path, text in wanted.items() if not _says(path, text)]
    for path in old:
        if options.check:
            said = f"{path} is not what the results say. Run `{_COMMAND}`."
            console.print(said, style="red", markup=False)
        else:
            write_text(path, wanted[path])
            console.print(f"written: {path}", markup=False)
    return int(bool(bad) or (options.check and bool(old)))


def _says(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


def filled(readme: str, sections: Sequence[Section]) -> str:
    """The text with its blocks of numbers replaced.

    Raises:
        ValueError: If a block has a name that is not known.

    Example:
        >>> filled("No block.", [])
        'No block.'
    """
    tables = {"costs": costs(sections)}

    def block(match: re.Match[str]) -> str:
        name = match.group(2)
        if name not in tables:
            raise ValueError(
                f"a block of results must be one of {', '.join(tables)}, got {name!r}. "
                "Correct its marker."
            )
        _, columns, rows = tables[name]
        return f"{match.group(1)}{markdown_rows(columns, rows)}\n{match.group(3)}"

    return _BLOCK.sub(block, readme)


def results_page(sections: Sequence[Section], folder: Path) -> str:
    """The whole page.

    Args:
        sections: Of the experiments, in order.
        folder: Where the page and its figures lie.

    Example:
        >>> section = Section(name="a", title="A", question="Why?", problem="None.")
        >>> "No results yet: `a`." in results_page([section], Path())
        True
    """
    shown = [section for section in sections if section.problem is None]
    missing = [f"`{s.name}`" for s in sections if s.problem is not None]
    parts = [_INTRODUCTION, _contents(shown)]
    if missing:
        parts.append(f"No results yet: {', '.join(missing)}.")
    parts += [_words(), *(_section(section, folder) for section in shown)]
    return "\n\n".join(parts) + "\n"


def _contents(sections: Sequence[Section]) -> str:
    return "\n".join(f"- [{s.title}](#{_anchor(s.title)})" for s in sections)


def _anchor(title: str) -> str:
    """The name that GitHub gives a headline.

    Example:
        >>> _anchor("Sizes that train, from files")
        'sizes-that-train-from-files'
    """
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _words() -> str:
    lines = markdown_rows(["word", "meaning"], [list(pair) for pair in WORDS.items()])
    return f"## Words of the tables\n\n{lines}"


def _section(section: Section, folder: Path) -> str:
    figures = sorted(folder.glob(f"{section.name}*.png"))
    parts = [f"## {section.title}", f"*{section.question}*", section.finding]
    parts += [f"![{section.title}]({figure.name})" for figure in figures]
    parts.append(_goals(section))
    parts += [text for table in section.tables for text in _table(section.name, table)]
    parts += [_facts(dict(section.facts), section.command), _method(section)]
    return "\n\n".join(part for part in parts if part)


def _goals(section: Section) -> str:
    lines = [f"- Goal {MET[is_met]}: {text}" for text, is_met in section.goals]
    return "\n".join(lines)


def _table(name: str, table: Table) -> Iterator[str]:
    title, columns, rows = table
    yield f"**{title}**"
    yield markdown_rows(columns, rows)
    yield "\n".join(f"- *{word}*: {text}" for word, text in explained(name, columns))


def _facts(facts: Mapping[str, str], command: str) -> str:
    date = f", {facts['date']}" if "date" in facts else ""
    commit = facts["commit"].strip("`")
    commits = f"commits {commit}" if "," in commit else f"commit {commit}"
    made = f"Made by `{command}` at {commits}{date}, on {facts['machine']}"
    emulated = f"\n\nWhat is emulated: {facts.get('emulated', '')}"
    return f"{made}; {facts['versions']}.{emulated if facts.get('emulated') else ''}"


def _method(section: Section) -> str:
    if not section.method:
        return ""
    return (
        "<details><summary>How it was measured</summary>\n\n"
        f"{section.method}\n\n</details>"
    )


if __name__ == "__main__":
    raise SystemExit(main())
