"""Sections of `docs/results.md`: question, finding, goals, tables, circumstances.

What was asked and how it was measured stands in the docstring of each experiment's
module, the rest in its `ANSWER`. Nothing is measured and nothing is drawn.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from experiments.ledger import read_lines
from experiments.question import RESULTS, Answer
from profiling.tables import Table

__all__ = ["QUESTIONS", "RESULTS", "Section", "section_of"]

# In the order of the page.
QUESTIONS = (
    "virtual_cards",
    "true_size",
    "largest_volume",
    "zoo",
    "step_time_overhead",
    "half_the_memory",
    "moved_or_recomputed",
    "language_model_plans",
    "scaling",
    "dice_vs_volume",
    "unet3d_sizes",
    "sum_error",
    "planner_comparison",
    "optimality",
    "simulator_accuracy",
    "overhead_when_it_fits",
    "first_step",
    "planning_scale",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One experiment of the page.

    Args:
        name: Of its module; unique.
        title: Its headline.
        question: What was asked, in a sentence.
        finding: What was found, in a few sentences; empty if nothing is there yet.
        method: How it was measured: paragraphs parted by empty lines.
        facts: What is to be known of the run, such as the machine, by name.
        tables: The numbers.
        goals: What was to be reached, and whether it was met; None if that is not
            decided.
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
    goals: tuple[tuple[str, bool | None], ...] = ()
    command: str = ""
    problem: str | None = None


def section_of(name: str, results: Path) -> Section:
    """An experiment's section; its `problem` says why it is empty.

    Args:
        name: One of `QUESTIONS`.
        results: Folder of result files.
    """
    answer: Answer = import_module(f"experiments.{name}").ANSWER
    question, _, method = (answer.about or "").strip().partition("\n\n")
    path = results / f"{name}.jsonl"
    section = Section(
        name=name,
        title=answer.title,
        question=question.replace("\n", " "),
        method=method,
        command=answer.command,
    )
    if not path.exists():
        problem = f"No result yet. `{answer.command}` makes it."
        return replace(section, problem=problem)
    try:
        head, rows = read_lines(path)
        said, *tables = answer.finding(head, rows)
        goals = tuple(answer.goals(head, rows))
        facts = (*_circumstantial(head), ("emulated", answer.emulated))
    except Exception as error:  # one bad result must not hide the others
        problem = f"`{path.name}` could not be shown: {type(error).__name__}: {error}"
        return replace(section, problem=problem)
    return replace(
        section, finding=said, tables=tuple(tables), goals=goals, facts=facts
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
