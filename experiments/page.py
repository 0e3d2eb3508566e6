"""The page of results, its tables and figures: from rows alone.

    python -m experiments page             writes docs/results.md, docs/results/*
    python -m experiments page --check     says whether the texts are current

Measures nothing, and imports no TensorFlow. The same rows give the same text. In
README.md, what stands between the markers of a block is replaced.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from experiments import cards, predictions
from experiments.question import Answer, Verdict
from experiments.runner import RESULTS, read_lines
from lms.storage.files import write_text
from profiling.tables import Table, markdown_rows

__all__ = ["QUESTIONS", "STUDIES", "answer_of", "check_or_write", "module_of"]
__all__ += ["page", "print_answer"]

# In the order of the page; each is a module of this package.
QUESTIONS = (
    "capacity",
    "cost",
    "bits",
    "predictions",
    "planners",
    "cards",
    "workers",
    "first_step",
)
STUDIES = ("dice", "sums")
_ROOT = Path(__file__).parents[1]
_DOCS = _ROOT / "docs"
_COMMAND = "python -m experiments page"
_BLOCK = re.compile(r"(<!-- results:(\w+) -->\n).*?(<!-- /results -->)", re.DOTALL)
_MOST_ROWS = 8
_TOP = {False: 4, True: 3, None: 1}  # lines of the first ten, by verdict
_NEVER = (
    "Never tested: a real GPU. No byte has left one; times are of emulated cards.",
    "Never tested: several machines, models above 16 GB, hours of training.",
)
_INTRODUCTION = f"""\
<!-- Written by `{_COMMAND}`: change the results, not this page. -->

# Results

Eight questions; each has a finding, a figure, a small table, and a full table on a
page of its own. All of it is computed from the rows in `experiments/results`."""
_WORDS = """\
**Words.** *Plain Keras* is a training without this library, *the callback* one with
`LMSCallback`, *IBM's rule* one with `LMSCallback(thresholds={})`, tuned as IBM's TFLMS
did; *serialised*: with every copy waited for. A *card* is emulated
([how](emulation.md)): TensorFlow's own GPU runtime and allocator above a driver of host
memory; a *dry* one computes nothing, and a kernel takes what a data sheet says. A
*step* is the median of one process; an interval is over processes. What fewer than
three processes say, or intervals that cross, is *undecided*. In figures what was
promised is hollow, and a cross is what failed."""
_OUTCOME = {True: "Holds", False: "Fails", None: "Undecided"}


def module_of(name: str) -> Any:
    """The module of a question or study."""
    return import_module(f"experiments.{'studies.' * (name in STUDIES)}{name}")


def answer_of(name: str, path: Path | None = None) -> Answer | None:
    """The finding of a question's rows; None where there are none.

    Args:
        name: Of its module.
        path: Of its rows; None for the committed ones.
    """
    module = module_of(name)
    if name == "predictions" and (path is None or not path.exists()):
        rows: Sequence[Any] = predictions.all_rows()
        return module.answer(rows) if rows else None
    path = path or RESULTS / f"{name}.jsonl"
    return module.answer(read_lines(path)[1]) if path.exists() else None


def print_answer(found: Answer) -> int:
    """Print it; 1 if a verdict does not hold."""
    console = Console(width=160, highlight=False, soft_wrap=True)
    for title, columns, body in (found.table, *found.more):
        table = RichTable(title=title, title_justify="left")
        for i, name in enumerate(columns):
            table.add_column(name, justify="left" if i < 2 else "right")
        for line in body:
            table.add_row(*line)
        console.print(table)
    console.print(found.finding, markup=False)
    for holds, text in found.verdicts:
        style = None if holds else "red" if holds is False else "yellow"
        console.print(f"{_OUTCOME[holds]}: {text}", style=style, markup=False)
    return int(any(holds is False for holds, _ in found.verdicts))


def check_or_write(*, check: bool) -> int:
    """Write the texts that are not current, and all figures; or say which are not."""
    answers = {name: answer_of(name) for name in QUESTIONS}
    studies = {name: answer_of(name) for name in STUDIES}
    wanted = {_DOCS / "results.md": page(answers)}
    for name, found in {**answers, **studies}.items():
        if found is not None:
            wanted[_DOCS / "results" / f"{name}.md"] = _full(name, found)
    readme = _ROOT / "README.md"
    wanted[readme] = _filled(readme.read_text())
    old = [path for path, text in wanted.items() if not _says(path, text)]
    for path in old:
        if check:
            sys.stderr.write(f"{path} is not what the rows say. Run `{_COMMAND}`.\n")
        else:
            write_text(path, wanted[path])
    if not check:
        for name, found in {**answers, **studies}.items():
            _draw(name, found)
    return int(check and bool(old))


def _rows(name: str) -> Path:
    return RESULTS / f"{name}.jsonl"


def _says(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


def _draw(name: str, found: Answer | None) -> None:
    if found is not None and found.panels:
        from experiments.drawing import draw_panels

        where = _figure(name)
        headline = found.headline or name
        draw_panels(found.panels, where, title=headline, note=_source(name))


def _figure(name: str) -> Path:
    return _DOCS / "results" / f"{name}.png"


def page(answers: Mapping[str, Answer | None]) -> str:
    """The whole page.

    Args:
        answers: Of all questions; None for those without rows.

    Example:
        >>> found = Answer(finding="Yes.", table=("T", ["a"], [["1"]]))
        >>> "No rows yet: `bits`." in page({"cost": found, "bits": None})
        True
    """
    shown = {name: found for name, found in answers.items() if found}
    missing = [f"`{name}`" for name, found in answers.items() if found is None]
    parts = [_INTRODUCTION, _top(shown), _WORDS]
    if missing:
        parts.append(f"No rows yet: {', '.join(missing)}.")
    parts += [_section(name, found) for name, found in shown.items()]
    parts.append(
        "## Beside them\n\nTwo studies of the case study have rows of their own: "
        "[larger volumes](results/dice.md) and [sums over volumes](results/sums.md)."
    )
    return "\n\n".join(parts) + "\n"


def _top(answers: Mapping[str, Answer]) -> str:
    """Ten lines: what fails, what holds, what was never tested."""
    found: list[tuple[str, Verdict]] = [
        (name, verdict) for name, one in answers.items() for verdict in one.verdicts
    ]
    lines: list[str] = []
    for kind, most in _TOP.items():
        own = [(name, text) for name, (holds, text) in found if holds is kind]
        first = _one_of_each(own)[:most]
        more = len(own) - len(first)
        for i, (name, text) in enumerate(first):
            rest = f" ({more} more below)" if more and i == len(first) - 1 else ""
            lines.append(
                f"- {_OUTCOME[kind]}: {text} ([{name}](#{_anchor(name)})).{rest}"
            )
    lines += [f"- {text}" for text in _NEVER]
    return "\n".join(lines)


def _one_of_each(own: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """One of each question first, then the others."""
    first = dict(reversed(own))
    heads = [(name, first[name]) for name in dict.fromkeys(name for name, _ in own)]
    return heads + [one for one in own if one not in heads]


def _title(name: str) -> str:
    return module_of(name).TITLE


def _anchor(name: str) -> str:
    return re.sub(r"[^\w\- ]", "", _title(name).lower()).replace(" ", "-")


def _question(name: str) -> str:
    about = module_of(name).__doc__ or ""
    return about.strip().partition("\n\n")[0].replace("\n", " ")


def _section(name: str, found: Answer) -> str:
    parts = [f"## {_title(name)}", f"*{_question(name)}*", found.finding]
    if found.panels:
        parts.append(f"![{found.headline}](results/{name}.png)")
    title, columns, body = found.table
    parts.append(f"**{title}**")
    parts.append(markdown_rows(columns, body[:_MOST_ROWS]))
    parts.append(f"{_source(name)} [All rows](results/{name}.md).")
    return "\n\n".join(parts)


def _source(name: str) -> str:
    """Commits and machine of the rows; of a commit with changes, what it came from."""
    if not _rows(name).exists():
        return "Rows of all questions."
    head, rows = read_lines(_rows(name))
    machine = head["machine"]
    real = head["settings"].get("card") == "real"
    device = next((row["device"] for row in rows if row.get("device")), "")
    commits = dict.fromkeys(
        row["commit"].removesuffix("-dirty") for row in rows if row.get("commit")
    )
    first = next(iter(commits), head["commit"])
    more = f" and {len(commits) - 1} more" if len(commits) > 1 else ""
    return (
        f"{len(rows)} rows of commit {first}{more}, on {machine['processor']}, "
        f"{machine['cores']} cores{f', {device}' if real else ''}."
    )


def _full(name: str, found: Answer) -> str:
    parts = [
        f"<!-- Written by `{_COMMAND}`. -->",
        f"# {_title(name)}",
        (module_of(name).__doc__ or "").strip(),
        found.finding,
    ]
    if found.panels:
        parts.append(f"![{found.headline}]({name}.png)")
    for title, columns, body in _tables(found):
        parts += [f"**{title}**", markdown_rows(columns, body)]
    if found.verdicts:
        lines = [f"- {_OUTCOME[holds]}: {text}." for holds, text in found.verdicts]
        parts.append("\n".join(lines))
    return "\n\n".join([*parts, _source(name)]) + "\n"


def _tables(found: Answer) -> Iterator[Table]:
    yield found.table
    yield from found.more


def _filled(readme: str) -> str:
    """The text with its blocks of numbers replaced."""

    def block(match: re.Match[str]) -> str:
        columns = [
            "card",
            "what trains",
            "way",
            "memory",
            "step",
            "step time",
            "promised",
        ]
        path = _rows("cards")
        rows = read_lines(path)[1] if path.exists() else []
        body = list(cards.costs(rows))[:_MOST_ROWS]
        return f"{match.group(1)}{markdown_rows(columns, body)}\n{match.group(3)}"

    return _BLOCK.sub(block, readme)
