"""The wait for the first step: cold, and with what an earlier run has kept.

From the moment Keras tells its callbacks that training begins until the first batch's
loss is a number: tracing, and with the callback all that is measured and planned.
Each model trains in rounds, every training in a process of its own: plain Keras, the
callback in a card of 0.8 of plain Keras's peak with an empty cache, and once more
with what that has kept. Ratios are within a round.

Known weakness: on an emulated card ops are measured at the pace of this machine's
cores, which takes longer than a card would.
"""

import shutil
from typing import Any

from experiments.bits import parts
from experiments.names import TITLES
from experiments.question import Answer, Bar, Panel, Verdict, sentences
from experiments.runner import Book, Trial, measured
from experiments.stats import Estimate, Rows, estimate, said, trained
from experiments.subjects import in_mib
from lms.units import GIB

__all__ = ["SETTINGS", "TITLE", "answer", "measure", "parts"]

TITLE = "The wait for the first step"
_MODELS = ("resnet50", "efficientnetb0", "densenet121", "unet", "gpt2", "bert", "vit")
SETTINGS = {"models": (*_MODELS, "gru", "diffusion"), "repeats": 3}
KNOWN = {"models": tuple(TITLES)}
_SHARE = 0.8
_GOALS = {"cold": 1.5, "warm": 1.05}


def measure(book: Book, model: str, options: Any) -> None:
    """Train in rounds."""
    for repeat in range(1, options.repeats + 1):
        key = {"model": model, "repeat": repeat}
        known: dict[str, Any] = {"model": model, "steps": 2, "deterministic": False}
        trial = Trial(memory=8 * GIB, **known)
        plain = book.row({**key, "way": "plain", "kind": "plain"}, trial)
        if not trained(plain):
            return
        known |= {"way": "callback", "memory": in_mib(_SHARE * plain["peak_bytes"])}
        cache = (book.folder / "caches" / f"{model}-{repeat}").resolve()
        for kind in _GOALS:
            key |= {"way": "callback", "kind": kind}
            own = Trial(cache=str(cache), **known)
            if kind == "cold" and book.find(key) is None:
                shutil.rmtree(cache, ignore_errors=True)
            elif kind == "warm" and not cache.exists() and book.find(key) is None:
                measured(own, book, f"{model}-{repeat}-again")  # what was kept is gone
            book.row(key, own)


def answer(rows: Rows) -> Answer:
    """Waits over plain Keras's, by model."""
    models = dict.fromkeys(row["model"] for row in rows)
    waits = {
        kind: {m: w for m in models if (w := _waits(rows, m, kind))} for kind in _GOALS
    }
    verdicts: list[Verdict] = []
    for kind, own in waits.items():
        if not own:
            continue
        worst = max(own, key=lambda model: own[model].median)
        value, middle = own[worst].median, estimate([w.median for w in own.values()])
        text = (
            f"first step, {kind}: {middle.median:.2f} times plain Keras's in the "
            f"median model, {value:.2f} for {TITLES[worst]}, wanted {_GOALS[kind]}"
        )
        verdicts.append((value <= _GOALS[kind], text))
    full: list[list[str]] = []
    for model in sorted(waits["cold"], key=lambda m: -waits["cold"][m].median):
        told = [said(own[model]) if model in own else "" for own in waits.values()]
        full.append([TITLES[model], *told, _plain(rows, model)])
    columns = ["model", "cold over plain", "warm over plain", "plain Keras"]
    return Answer(
        finding=sentences(verdicts),
        table=("The slowest to begin", columns, full[:8]),
        more=[("Each model", columns, full)],
        verdicts=verdicts,
        panels=[[_panel(own, kind) for kind, own in waits.items()]] if full else (),
        headline="Seconds to the first step, over plain Keras's",
    )


def _plain(rows: Rows, model: str) -> str:
    own = [r for r in rows if (r["model"], r["kind"]) == (model, "plain")]
    median = estimate([row["first_seconds"] for row in own if trained(row)]).median
    return f"{median:.1f} s"


def _waits(rows: Rows, model: str, kind: str) -> Estimate | None:
    """Ratios of rounds in which both trained."""
    seconds = {
        (row["kind"], row["repeat"]): row["first_seconds"]
        for row in rows
        if row["model"] == model and trained(row)
    }
    ratios = [
        value / seconds["plain", repeat]
        for (which, repeat), value in seconds.items()
        if which == kind and ("plain", repeat) in seconds
    ]
    return estimate(ratios) if ratios else None


def _panel(waits: dict[str, Estimate], kind: str) -> Panel:
    bars = [
        Bar(
            label=TITLES[m],
            length=w.median,
            text=f"{w.median:.2f}",
            span=(w.low, w.high),
        )
        for m, w in waits.items()
    ]
    goal = _GOALS[kind]
    title = f"{kind}; dashed: wanted, {goal}"
    return Panel(title=title, x="over plain Keras's", bars=bars, level=goal)
