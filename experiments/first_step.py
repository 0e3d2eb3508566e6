"""The wait for the first step: cold, and with the cache of an earlier run.

The wait is from `on_train_begin` until the first batch's loss is a number: tracing, and
with the callback all measuring and planning. Each model trains in rounds, every
training in a process of its own: plain Keras, the callback in a card of 0.8 of plain
Keras's peak with an empty cache, and once more with the filled cache. Ratios are within
a round. In less memory planning takes longer: waits in smaller cards are from the rows
of `bits`, which are cold, too, with op determinism, beside plain Keras's there.

Known weakness: on an emulated card ops are measured at the pace of this machine's
cores, which takes longer than a card would. Waits on real cards are not compared.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from experiments.bits import parts
from experiments.names import TITLES
from experiments.question import COLOURS, Answer, Panel, Series, Verdict, sentences
from experiments.runner import Book, Trial, measured
from experiments.stats import Estimate, Rows, commits, estimate, said, trained
from experiments.subjects import in_mib
from lms.units import GIB

__all__ = ["OTHERS", "SETTINGS", "TITLE", "answer", "measure", "parts"]

TITLE = "The wait for the first step"
_MODELS = ("resnet50", "efficientnetb0", "densenet121", "unet", "gpt2", "bert", "vit")
SETTINGS = {"models": (*_MODELS, "gru", "diffusion"), "repeats": 3}
KNOWN = {"models": tuple(TITLES)}
_SHARE = 0.8
_GOALS = {"cold": 1.5, "warm": 1.05}
OTHERS = ("bits",)  # questions whose rows are read, too
_SMALL = (0.45, 0.3)  # of plain Keras's peak: cards of these rows
_MARKERS = {"cold, in 0.45": "o", "cold, in 0.3": "D"}
_MARKERS |= {"cold, in 0.8": "^", "warm, in 0.8": "s"}


def measure(book: Book, model: str, options: Any) -> None:
    """Train one model in rounds: plain Keras, cold, warm."""
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
                measured(own, book, f"{model}-{repeat}-again")  # fills a lost cache
            book.row(key, own)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wait:
    """Seconds to the first step, plain Keras's, and their ratio over processes."""

    seconds: float
    plain: float
    ratio: Estimate


def answer(rows: Rows) -> Answer:
    """Report waits over plain Keras's, by model."""
    own = [row for row in rows if row.get("question") is None]
    zoo = [r for r in rows if r.get("question") and r["kind"] in ("plain", "training")]
    near = {f"{kind}, in {_SHARE}": _waits(own, kind) for kind in _GOALS}
    less = {f"cold, in {s}": _waits(zoo, "training", s) for s in _SMALL}
    verdicts: list[Verdict] = []
    for name, waits in {**near, **less}.items():
        if not waits:
            continue
        worst = max(waits, key=lambda model: waits[model].ratio.median)
        goal, one = _GOALS[name.partition(",")[0]], waits[worst]
        text = (
            f"first step, {name} of plain's peak: "
            f"{median(w.ratio.median for w in waits.values()):.2f} times plain Keras's "
            f"in the median of {len(waits)} models; at worst {one.ratio.median:.2f} "
            f"({TITLES[worst]}, {one.seconds:.1f} s for {one.plain:.1f} s); goal {goal}"
        )
        verdicts.append((one.ratio.median <= goal, text))
    verdicts.reverse()  # the smallest card first
    peak = "of plain Keras's peak"
    small = " and ".join(map(str, _SMALL))
    known = {f"in {small} {peak}": less, f"in {_SHARE} {peak}": near}
    known = {where: each for where, each in known.items() if any(each.values())}
    full = [
        (f"Seconds to the first step, {where}; empty: no training", *_table(each))
        for where, each in known.items()
    ]
    if less_table := full[: bool(zoo)]:
        cold = near[f"cold, in {_SHARE}"]
        told = {
            TITLES[m]: f"{w.seconds:.1f} s, {w.plain:.1f} s" for m, w in cold.items()
        }
        less_table[0][1].append(f"in {_SHARE}, and plain Keras there")
        for line in less_table[0][2]:
            line.append(told.get(line[0], ""))
    panels = [_panel(where, each) for where, each in known.items()]
    made = f"Rows by commit: {commits(own)}"
    made += f"; in small cards, one process each: {commits(zoo)}." if zoo else "."
    return Answer(
        finding=f"{sentences(verdicts)} {made}",
        drawn=made,
        table=full[0] if full else ("", ["-"], []),
        more=full,
        verdicts=verdicts,
        panels=[panels] if panels else (),
        headline="The wait for the first step, on emulated cards and two cores",
    )


def _waits(rows: Rows, kind: str, share: float | None = None) -> dict[str, _Wait]:
    """Compute waits of a kind by model: over plain waits of the round, or of all."""
    found: dict[str, _Wait] = {}
    for model in dict.fromkeys(row["model"] for row in rows):
        good = [r for r in rows if r["model"] == model and trained(r)]
        plain = {r["repeat"]: r["first_seconds"] for r in good if r["kind"] == "plain"}
        own = [r for r in good if r["kind"] == kind and r.get("share") == share]
        own = [r for r in own if share or r["repeat"] in plain]
        if not plain or not own:
            continue
        base = median(plain.values())
        ratios = [
            r["first_seconds"] / (base if share else plain[r["repeat"]]) for r in own
        ]
        seconds = median(row["first_seconds"] for row in own)
        found[model] = _Wait(seconds=seconds, plain=base, ratio=estimate(ratios))
    return found


def _table(
    waits: Mapping[str, Mapping[str, _Wait]],
) -> tuple[list[str], list[list[str]]]:
    """Make a table of models, the longest wait over plain Keras's first."""
    order: dict[str, float] = {}
    for each in waits.values():
        for model, wait in each.items():
            order[model] = max(order.get(model, 0.0), wait.ratio.median)
    body: list[list[str]] = []
    for model in sorted(order, key=lambda model: -order[model]):
        known = [each.get(model) for each in waits.values()]
        plain = next(f"{wait.plain:.1f} s" for wait in known if wait)
        cells = [f"{w.seconds:.1f} s" if w else "" for w in known]
        cells += [said(w.ratio) if w else "" for w in known]
        body.append([TITLES[model], plain, *cells])
    over = [f"{name}, over plain" for name in waits]
    return ["model", "plain Keras", *waits, *over], body


def _panel(title: str, waits: Mapping[str, Mapping[str, _Wait]]) -> Panel:
    first, *_ = waits.values()
    models = sorted(first, key=lambda model: -first[model].seconds)
    points = [(first[model].plain, i) for i, model in enumerate(models)]
    series = [Series(points=points, colour=COLOURS["plain"], label="plain Keras")]
    for name, each in waits.items():
        own = [(each[m].seconds, i) for i, m in enumerate(models) if m in each]
        label = f"the callback, {name}"
        series.append(Series(points=own, marker=_MARKERS[name], label=label))
    known: dict[str, Any] = {"names": [TITLES[m] for m in models], "log": True}
    return Panel(title=title, x="seconds", series=series, xlim=(1, 1000), **known)
