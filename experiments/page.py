"""Writes the page of results, its tables and figures, from rows alone.

    python -m experiments page             writes docs/results.md, docs/results/*
    python -m experiments page --check     tells whether the texts are current

Measures nothing, and imports no TensorFlow. Equal rows give equal texts. In README.md
the text between the markers of a block is replaced.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from textwrap import fill
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from experiments import cards, cost, predictions, real_cards
from experiments.question import Answer, sentences
from experiments.runner import RESULTS, read_lines
from experiments.stats import commits
from lms.storage.files import write_text
from profiling.tables import markdown_rows

__all__ = ["QUESTIONS", "STUDIES", "answer_of", "check_or_write", "module_of"]
__all__ += ["page", "print_answer"]

# In the order of the page; each is a module of this package.
QUESTIONS = ("capacity", "cost", "bits", "predictions", "planners", "cards")
QUESTIONS += ("workers", "first_step")
STUDIES = ("dice", "sums")
_ROOT = Path(__file__).parents[1]
_DOCS = _ROOT / "docs"
_COMMAND = "python -m experiments page"
_BLOCK = re.compile(r"(<!-- results:(\w+) -->\n).*?(<!-- /results -->)", re.DOTALL)
_MOST_ROWS = 8
_TOP = {False: 5, True: 2, None: 1}  # most lines at the page's top, by verdict
_WIDEST = 100  # characters of a line of the README
_INTRODUCTION = f"""\
<!-- Written by `{_COMMAND}`: change the results, not this page. -->

# Results

Eight questions; each with rows has a finding, a figure, a small table, and a full
table on a page of its own. All numbers are computed from `experiments/results`."""
_NEVER = """\
- Never tested: a real GPU. All times are of emulated cards, without XLA.
- Never tested: several machines, hours of training."""
_WORDS = """\
**Words.** *Plain Keras* is Keras with `jit_compile=False`, without this library; XLA,
Keras's default on a GPU, was not run on emulated cards. *The callback* is a training
with `LMSCallback`, *IBM's rule* one with `LMSCallback(thresholds={})`, tuned as IBM's
TFLMS did; *serialised*: with every copy waited for. A *card* is emulated
([how](emulation.md)): TensorFlow's own GPU runtime and allocator above a driver of host
memory; a *dry* card computes nothing, and its kernels take times by a data sheet. A
*step* is the median of one process; an interval is over processes. A loss counts from
one process on; a win of fewer than three, or whose intervals cross, is *undecided*. The
numbers behind commits count rows. In figures hollow points are predictions, and crosses
are failures.

**Times of an emulated card leave out:**

- cuDNN's workspace and choice of algorithm: convolutions need no memory of their own
  and run at the data sheet's rate, so sizes are upper bounds and steps lower ones;
- XLA: with it plain Keras may take less time and less memory;
- launches: a kernel takes at least 3 µs, and the host's work is divided by a slow
  motion of 10 to 40, where `lms plan --hardware` counts 10 µs for an op;
- contention: copies slow down no kernels, and no other card shares the link;
- pinning of host memory, NUMA, and clocks that fall under load."""
_BESIDE = """\
## Two studies

The case study has two studies with rows of their own: \
[larger volumes](results/dice.md) and [sums over volumes](results/sums.md)."""
_OUTCOME = {True: "Holds", False: "Fails", None: "Undecided"}
_REAL = (
    "On the one step that was published, IBM's plain 144^3 by TensorFlow 1.8, the real "
    "V100 took {} times the emulated one's time."
)


def module_of(name: str) -> Any:
    """Import the module of a question or study."""
    return import_module(f"experiments.{'studies.' * (name in STUDIES)}{name}")


def answer_of(name: str, path: Path | None = None) -> Answer | None:
    """Answer a question by a file's or the committed rows; None without rows."""
    path = path or RESULTS / f"{name}.jsonl"
    if name == "predictions" and not path.exists():
        rows: Sequence[Any] = predictions.all_rows()
    else:
        rows = read_lines(path)[1] if path.exists() else []
    others = getattr(module_of(name), "OTHERS", ()) if path.parent == RESULTS else ()
    for other in others:
        rows = [*rows, *({**row, "question": other} for row in _rows(other))]
    return module_of(name).answer(rows) if rows else None


def print_answer(found: Answer) -> int:
    """Print an answer; return 1 if a verdict does not hold."""
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
    """Write stale texts and all figures; with `check` only name the stale texts."""
    if mixed := cost.strangers(_rows("cost")):
        told = "; ".join(mixed)
        sys.stderr.write(f"cost: a step and its base must be of one commit: {told}.\n")
        return 1
    answers = {name: answer_of(name) for name in QUESTIONS}
    known = {**answers, **{name: answer_of(name) for name in STUDIES}}
    found = {name: one for name, one in known.items() if one}
    readme = _ROOT / "README.md"
    text = _filled(readme.read_text(), answers["cost"])
    wanted = {_DOCS / "results.md": page(answers), readme: text}
    wanted |= {_DOCS / "results" / f"{n}.md": _full(n, one) for n, one in found.items()}
    wanted |= {_DOCS / "results" / f"{n}.md": text for n, text in real_cards.pages()}
    old = [p for p, text in wanted.items() if not p.exists() or p.read_text() != text]
    if check:
        for path in old:
            sys.stderr.write(f"{path} is stale. Run `{_COMMAND}`.\n")
        return int(bool(old))
    for path in old:
        write_text(path, wanted[path])
    for name, one in found.items():
        if one.panels:
            from experiments.drawing import draw_panels

            path, note = _DOCS / "results" / f"{name}.png", one.drawn or _source(name)
            draw_panels(one.panels, path, title=one.headline or name, note=note)
    return 0


def page(answers: Mapping[str, Answer | None]) -> str:
    """Compose the page of all questions' answers; an answer without rows is None.

    Example:
        >>> found = Answer(finding="Yes.", table=("T", ["a"], [["1"]]))
        >>> "No rows yet: `bits`." in page({"cost": found, "bits": None})
        True
    """
    shown = {name: found for name, found in answers.items() if found}
    missing = [f"`{name}`" for name, found in answers.items() if found is None]
    parts = [_INTRODUCTION, _top(shown), _WORDS]
    parts += [f"No rows yet: {', '.join(missing)}."] if missing else []
    parts += real_cards.sections()
    parts += [_section(name, found) for name, found in shown.items()]
    return "\n\n".join([*parts, _BESIDE]) + "\n"


def _top(answers: Mapping[str, Answer]) -> str:
    """Compose ten lines: claims that fail, claims that hold, untested conditions."""
    found = [(name, v) for name, one in answers.items() for v in one.verdicts]
    lines: list[str] = []
    for kind, most in _TOP.items():
        own = [(name, text) for name, (holds, text) in found if holds is kind]
        first = dict(reversed(own))  # one of each question first, then the others
        heads = [(name, first[name]) for name in dict.fromkeys(name for name, _ in own)]
        told = (heads + [one for one in own if one not in heads])[:most]
        for name, text in told:
            title = re.sub(r"[^\w\- ]", "", module_of(name).TITLE.lower())
            anchor = title.replace(" ", "-")
            lines.append(f"- {_OUTCOME[kind]}: {text} ([{name}](#{anchor})).")
        if len(own) > len(told):
            lines[-1] += f" ({len(own) - len(told)} more below)"
    never = _NEVER.splitlines()[bool(real_cards.names()) :]  # the first: no real card
    return "\n".join([*lines, *never])


def _section(name: str, found: Answer) -> str:
    module = module_of(name)
    question = module.__doc__.strip().partition("\n\n")[0].replace("\n", " ")
    title, columns, body = found.table
    return "\n\n".join(
        [
            f"## {module.TITLE}",
            f"*{question}*",
            found.finding,
            *_figure(found, f"results/{name}.png"),
            f"**{title}**",
            markdown_rows(columns, body[:_MOST_ROWS]),
            f"{_source(name)} [All rows](results/{name}.md).",
        ]
    )


def _figure(found: Answer, path: str) -> list[str]:
    return [f"![{found.headline}]({path})"] if found.panels else []


def _source(name: str) -> str:
    """Describe commits and machine of the rows."""
    path = RESULTS / f"{name}.jsonl"
    if not path.exists():
        return "Rows of all questions."
    head, rows = read_lines(path)
    machine, real = head["machine"], head["settings"].get("card") == "real"
    device = next((row["device"] for row in rows if row.get("device")), "")
    return (
        f"{len(rows)} rows, by commit: {commits(rows)}; on {machine['processor']}, "
        f"{machine['cores']} cores{f', {device}' if real else ''}."
    )


def _full(name: str, found: Answer) -> str:
    module = module_of(name)
    parts = [f"<!-- Written by `{_COMMAND}`. -->", f"# {module.TITLE}"]
    parts += [module.__doc__.strip(), found.finding, *_figure(found, f"{name}.png")]
    for title, columns, body in (found.table, *found.more):
        parts += [f"**{title}**", markdown_rows(columns, body)]
    lines = [f"- {_OUTCOME[holds]}: {text}." for holds, text in found.verdicts]
    parts += ["\n".join(lines)] if lines else []
    return "\n\n".join([*parts, _source(name)]) + "\n"


def _filled(readme: str, found: Answer | None) -> str:
    """Replace the blocks of numbers in the README's text."""
    _, columns, lines = cost.costs(_rows("cost"))
    table = markdown_rows(columns, lines)
    words = [sentences(found.verdicts)] if found else []
    words += [_REAL.format(" and ".join(cards.real_over_emulated(_rows("cards"))))]
    told = fill(" ".join(words), _WIDEST)
    return _BLOCK.sub(lambda block: f"{block[1]}{table}\n\n{told}\n{block[3]}", readme)


def _rows(name: str) -> Sequence[Any]:
    path = RESULTS / f"{name}.jsonl"
    return read_lines(path)[1] if path.exists() else []
