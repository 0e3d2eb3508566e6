"""Sections of the report from result files: question, finding, table, circumstances.

Nothing is imported for it but the experiment's `finding`, and nothing is drawn.
"""

import ast
from dataclasses import replace
from pathlib import Path

from experiments.lines import read_lines
from experiments.report_catalogue import CATALOGUE, Entry
from experiments.report_page import Section
from experiments.report_profiles import circumstantial

__all__ = ["RESULTS", "entries_of", "not_shown", "section_of"]

RESULTS = Path(__file__).parent / "results"


def entries_of(results: Path) -> list[Entry]:
    """The catalogue, then experiments with results that it does not know."""
    known = {entry.name for entry in CATALOGUE}
    there = Path(__file__).parent
    return [
        *CATALOGUE,
        *(
            Entry(name=path.stem, title=path.stem.replace("_", " "), emulated="")
            for path in sorted(results.glob("*.jsonl"))
            if path.stem not in known and (there / f"{path.stem}.py").exists()
        ),
    ]


def section_of(entry: Entry, results: Path) -> Section:
    """An experiment's section without figures; its `problem` says why it is empty.

    Args:
        entry: The experiment.
        results: Folder of result files.
    """
    question, method = _docstring(entry.name)
    path = results / f"{entry.name}.jsonl"
    section = Section(
        name=entry.name,
        title=entry.title,
        question=question,
        method=method,
        command=entry.command,
    )
    if not path.exists():
        problem = f"No result yet. `{entry.command}` makes it."
        return replace(section, problem=problem)
    try:
        head, rows = read_lines(path)
        said = entry.finding and entry.finding(head, rows)
        facts = tuple(circumstantial(head))
    except Exception as error:  # one bad result must not hide the others
        return not_shown(section, path, error)
    return replace(
        section,
        finding=said[0] if said else "",
        tables=(said[1],) if said else (),
        facts=(*facts, *((("emulated", entry.emulated),) * bool(entry.emulated))),
    )


def not_shown(section: Section, path: Path, error: Exception) -> Section:
    """The section with why its result file cannot be shown."""
    problem = f"`{path.name}` could not be shown: {type(error).__name__}: {error}"
    return replace(section, problem=problem)


def _docstring(name: str) -> tuple[str, str]:
    """A module's question and method, without importing it."""
    source = (Path(__file__).parent / f"{name}.py").read_text()
    text = ast.get_docstring(ast.parse(source)) or ""
    question, _, method = text.partition("\n\n")
    return question.replace("\n", " "), method
