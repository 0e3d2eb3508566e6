"""Sections of the page of results: question, finding, table, circumstances.

Nothing is imported for it but the experiment's `finding`, and nothing is drawn.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.lines import read_lines
from experiments.report_catalogue import CATALOGUE, Entry
from profiling.tables import Table

__all__ = ["RESULTS", "Section", "entries_of", "section_of"]

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One experiment of the page.

    Args:
        name: Of its module; unique.
        title: Its headline.
        question: What was asked, in a sentence.
        finding: What was found, in a sentence or two; empty if nothing is there yet.
        method: How it was measured: paragraphs parted by empty lines.
        facts: What is to be known of the run, such as the machine, by name.
        tables: The numbers.
        command: What makes the result, or made it.
        problem: Why there is nothing to show; None if there is.
    """

    name: str
    title: str
    question: str
    finding: str = ""
    method: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    tables: tuple[Table, ...] = ()
    command: str = ""
    problem: str | None = None


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
        facts = tuple(_circumstantial(head))
    except Exception as error:  # one bad result must not hide the others
        problem = f"`{path.name}` could not be shown: {type(error).__name__}: {error}"
        return replace(section, problem=problem)
    return replace(
        section,
        finding=said[0] if said else "",
        tables=(said[1],) if said else (),
        facts=(*facts, *((("emulated", entry.emulated),) * bool(entry.emulated))),
    )


def _circumstantial(head: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Where and how a result came about, from its first line."""
    machine, versions = head["machine"], head["versions"]
    memory = str(machine["memory"]).removesuffix(" kB")
    size = f"{int(memory) / 2**20:.0f} GiB" if memory.isdigit() else memory
    cores = f"{machine['cores']} cores"
    yield "machine", f"{machine['processor']}, {cores}, {size}, {machine['system']}"
    yield "versions", ", ".join(f"{k} {v}" for k, v in versions.items() if v)
    yield "commit", f"`{head['commit']}`"
    if head.get("date"):
        yield "date", str(head["date"])


def _docstring(name: str) -> tuple[str, str]:
    """A module's question and method, without importing it."""
    source = (Path(__file__).parent / f"{name}.py").read_text()
    text = ast.get_docstring(ast.parse(source)) or ""
    question, _, method = text.partition("\n\n")
    return question.replace("\n", " "), method
