"""How long does the first step wait: cold, and with what an earlier run has kept?

From the moment Keras tells its callbacks that training begins until the first batch's
loss is a number: tracing, and with the callback all that is measured and planned.
Each model trains in rounds, every training in a process of its own: plain Keras, the
callback in a card of 0.8 of plain Keras's peak with an empty cache, and once more
with what that has kept. Ratios are within a round.

Known weakness: on an emulated card ops are measured at the pace of this machine's
cores, which takes longer than a card would.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from experiments.bits import keras_hub
from experiments.charts import COLOURS, Bar, Panel
from experiments.names import OF_KERAS_HUB, SMALL_NAMES, TITLES
from experiments.question import Answer, sentences
from experiments.runner import Book, Rows, Trial, trained
from experiments.stats import Estimate, estimate, said
from experiments.subjects import in_mib
from lms.units import GIB

__all__ = ["TITLE", "add_settings", "answer", "units"]

TITLE = "The wait for the first step"
_MODELS = ("resnet50", "efficientnetb0", "densenet121", "unet", "gpt2", "bert", "vit")
_MODELS += ("gru", "diffusion")
_SHARE = 0.8
_GOALS = {"cold": 1.5, "warm": 1.05}


def add_settings(parser: Any) -> None:
    """Which models, how often."""
    known = [*TITLES, *(n for n in SMALL_NAMES if n not in TITLES)]
    parser.add_argument("--models", nargs="+", choices=known, default=_MODELS)
    parser.add_argument("--repeats", type=int, default=3, help="rounds of each")


def units(options: Any) -> Iterable[Callable[[Book], None]]:
    """A unit for each model."""
    for model in options.models:
        if model not in OF_KERAS_HUB or keras_hub():
            yield lambda book, model=model: _model(book, model, options.repeats)


def _model(book: Book, model: str, repeats: int) -> None:
    for repeat in range(1, repeats + 1):
        key = {"model": model, "repeat": repeat}
        trial = Trial(model=model, memory=8 * GIB, steps=2, deterministic=False)
        plain = book.row({**key, "way": "plain", "kind": "plain"}, trial)
        if not trained(plain):
            return
        folder = book.folder / "caches" / f"{model}-{repeat}"
        for kind in ("cold", "warm"):
            again = Trial(
                model=model,
                way="callback",
                memory=in_mib(_SHARE * plain["peak_bytes"]),
                steps=2,
                deterministic=False,
                cache=str(Path(folder).resolve()),
            )
            book.row({**key, "way": "callback", "kind": kind}, again)


def answer(rows: Rows) -> Answer:
    """Waits over plain Keras's, by model."""
    models = dict.fromkeys(row["model"] for row in rows)
    found = {
        model: {kind: _waits(rows, model, kind) for kind in _GOALS} for model in models
    }
    found = {m: kinds for m, kinds in found.items() if all(kinds.values())}
    verdicts: list[tuple[bool | None, str]] = []
    for kind, goal in _GOALS.items():
        if not found:
            break
        waits = {m: one for m, kinds in found.items() if (one := kinds[kind])}
        worst = max(waits, key=lambda model: waits[model].median)
        value, middle = waits[worst], estimate([w.median for w in waits.values()])
        text = (
            f"first step, {kind}: {middle.median:.2f} times plain Keras's in the "
            f"median model, {value.median:.2f} for {TITLES[worst]}, wanted {goal}"
        )
        verdicts.append((value.median <= goal, text))
    full = [
        [
            TITLES[model],
            *(said(one) for one in kinds.values() if one),
            f"{_plain(rows, model):.1f} s",
        ]
        for model, kinds in found.items()
    ]
    worst_first = sorted(full, key=lambda line: line[1], reverse=True)
    columns = ["model", "cold over plain", "warm over plain", "plain Keras"]
    return Answer(
        finding=sentences(verdicts),
        table=("The slowest to begin", columns, worst_first[:8]),
        more=[("Each model", columns, full)],
        verdicts=verdicts,
        panels=[[_panel(found, kind) for kind in _GOALS]] if found else (),
        headline="Seconds to the first step, over plain Keras's",
    )


def _plain(rows: Rows, model: str) -> float:
    own = [r for r in rows if (r["model"], r["kind"]) == (model, "plain")]
    return estimate([row["first_seconds"] for row in own if trained(row)]).median


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


def _panel(found: dict[str, dict[str, Estimate | None]], kind: str) -> Panel:
    bars = [
        Bar(
            label=TITLES[model],
            length=one.median,
            colour=COLOURS["callback"],
            text=f"{one.median:.2f}",
            span=(one.low, one.high),
        )
        for model, kinds in found.items()
        if (one := kinds[kind])
    ]
    goal = _GOALS[kind]
    title = f"{kind}; dashed: wanted, {goal}"
    return Panel(title=title, x="over plain Keras's", bars=bars, level=goal)
