"""Trainings of any model: with plain Keras's bits, or refused rightly?

Models that others wrote train for six steps with op determinism: plain Keras twice in a
card with room for all; the callback in shares of plain Keras's peak, some of which
may be above it; and in 1.05 times the least budget that a refusal names. Losses and
all variables are compared bit for bit (`experiments.judging`). A model that is never
refused is asked for its least budget by a budget of 1 MiB.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

from experiments.judging import SPARE, Outcome, Verdict, judge, least_named
from experiments.names import NAMES, TITLES, kind_of
from experiments.question import Answer, Bar, Panel
from experiments.runner import Book, Trial
from experiments.stats import Row, Rows
from experiments.subjects import in_mib
from lms.units import MIB, Seconds, format_bytes

__all__ = ["SETTINGS", "TITLE", "answer", "device_for", "measure", "parts"]
__all__ += ["row_of"]

TITLE = "Any model, with the same bits"
SETTINGS = {"models": NAMES, "shares": (1.1, 0.8, 0.6, 0.45), "repeats": 3}
SETTINGS |= {"longest": 1200.0}  # seconds of a training
KNOWN = {"models": tuple(TITLES)}
_ENOUGH = 8192 * MIB
_MARGIN = 32  # one part of so many that the callback keeps
_ASKED = MIB  # nothing trains in it
_DIGITS = _TOLD = 4  # of each variable's digest; variables named where they differ
_HUB = ("segmentation, detection", "transformer", "audio")  # kinds of keras-hub


def parts(options: Any) -> Sequence[str]:
    """The models; without keras-hub some of them cannot be had."""
    missing = [name for name in options.models if kind_of(name) in _HUB]
    if missing and find_spec("keras_hub") is None:
        raise SystemExit(
            f"keras-hub must be installed for {', '.join(missing)}. Install it: "
            "pip install -e '.[zoo]', or choose others with --models."
        )
    return options.models


def measure(book: Book, model: str, options: Any) -> None:
    """Train one model in each of its cards."""

    def key(kind: str, repeat: int, share: float | None) -> dict[str, Any]:
        return {"model": model, "kind": kind, "share": share, "repeat": repeat}

    _row = partial(row_of, longest=options.longest)
    plain = [_row(book, key("plain", i, 1.0), _ENOUGH) for i in (1, 2)]
    if any(row["error"] for row in plain):
        return
    repeats = range(1, options.repeats + 1)
    peak = max(row["peak_bytes"] for row in plain)
    rows = [
        _row(book, key("training", i, share), in_mib(share * peak), plain)
        for i, share in itertools.product(repeats, options.shares)
    ]
    if least_named(rows) is None:
        least = min(options.shares)
        asked = key("asked", 1, least)
        rows.append(_row(book, asked, in_mib(least * peak), plain, _ASKED))
    least = least_named(rows)
    for i in repeats if least else ():
        found = {"model": model, "kind": "least", "least_bytes": least, "repeat": i}
        _row(book, found, in_mib(SPARE * (least or 0)), plain)


def row_of(
    book: Book,
    key: Row,
    memory: int,
    plain: Rows = (),
    budget: int | None = None,
    *,
    longest: Seconds,
) -> Row:
    """The row of a training; plain Keras's keeps a little of each variable's digest."""
    way = "callback" if plain else "plain"
    known: dict[str, Any] = {"memory": memory, "budget": budget, "feed": "arrays"}
    known |= {"longest": longest}

    def told(row: dict[str, Any]) -> dict[str, Any]:
        variables = row.pop("variables", [])
        row["of"] = kind_of(key["model"])
        if not plain:
            return row | {"digests": "".join(one[:_DIGITS] for _, one in variables)}
        if budget and row.get("refused"):
            least = device_for(row["refused"]["least_bytes"], plain[0]["batch_bytes"])
            row["refused"] = {**row["refused"], "least_bytes": least}
        row["of_peak"] = memory / max(one["peak_bytes"] for one in plain)
        return row | {"differing": _differing(variables, plain[0]["digests"])}

    return book.row(key, Trial(model=key["model"], way=way, **known), told=told)


def device_for(budget: int, batch_bytes: int) -> int:
    """The smallest device of whole MiB whose own budget is at least that many bytes.

    Without a budget of the user's the callback keeps a margin, 1/32 of the device and
    at least 1 MiB, and room for a batch that waits.

    Example:
        >>> device_for(62 * MIB, 2 * MIB) // MIB
        67
    """
    size = budget // MIB * MIB
    while size - max(MIB, size // _MARGIN) - batch_bytes < budget:
        size += MIB
    return size


def _differing(variables: Sequence[Sequence[str]], plain: str) -> dict[str, Any] | None:
    """Variables that are not as plain Keras's; None if all are, or are not known."""
    theirs = [plain[i : i + _DIGITS] for i in range(0, len(plain), _DIGITS)]
    paths = [
        path
        for (path, own), other in zip(variables, theirs, strict=False)
        if own[:_DIGITS] != other
    ]
    known = {"count": len(paths), "of": len(theirs), "first": paths[:_TOLD]}
    return known if paths else None


def answer(rows: Rows) -> Answer:
    """Ends of trainings, by model."""
    models = dict.fromkeys(row["model"] for row in rows)
    found = {
        each: judge([row for row in rows if row["model"] == each]) for each in models
    }
    judged = {
        model: [v for v in own if v.row["kind"] != "asked"]
        for model, own in found.items()
        if own
    }
    ends = Counter(v.outcome for own in judged.values() for v in own)
    total, defects = sum(ends.values()), ends[Outcome.DEFECT]
    sound = sum(not _defects(own) for own in found.values() if own)
    commits = len({row["commit"] for row in rows if row.get("commit")})
    planned = [row for row in rows if row["kind"] not in ("plain", "asked")]
    cells = Counter((r["model"], r["kind"], r.get("share")) for r in planned)
    thrice = sum(count >= 3 for count in cells.values())
    shares = sorted({row["share"] for row in rows if row["kind"] == "training"})
    asks = [v for own in found.values() for v in own if v.row["kind"] == "asked"]
    failed = sum(v.outcome is Outcome.DEFECT for v in asks)
    tried = ", ".join(f"{share:.0%}" for share in shares)
    ended = ", ".join(f"{ends[one]} {one.value}" for one in Outcome if ends[one])
    text = (
        f"{total} trainings of {len(judged)} models, in cards of {tried} of plain "
        f"Keras's peak and in least budgets: {ended}. {len(asks)} models were asked "
        f"for their least budget, which for {failed} does not hold. "
        f"Without any defect: {sound} models. {thrice} of {len(cells)} pairs "
        f"of model and card ran three times or more; rows are of {commits} commits."
    )
    body = [_line(kind, judged) for kind in dict.fromkeys(map(kind_of, judged))]
    columns = ["kind", "models", *(one.value for one in Outcome), "least share trained"]
    full = [line for model, own in found.items() for line in _lines(model, own)]
    names = ["model", "kind", "card", "of plain's peak", "run", "outcome", "reason"]
    said = (
        f"{ends[Outcome.TRAINED]} of {total} trainings have plain Keras's bits, "
        f"{ends[Outcome.REFUSED]} were refused rightly, {defects} have a defect"
    )
    return Answer(
        finding=text,
        table=("How trainings ended, by kind of model", columns, body),
        more=[("Each training", names, full)],
        verdicts=[(not defects and not failed, said)],
        panels=[[_panel(judged)]],
        headline="The least memory in which each model trained with plain Keras's bits",
    )


def _defects(found: Iterable[Verdict]) -> int:
    return sum(v.outcome is Outcome.DEFECT for v in found)


def _share(verdict: Verdict) -> float | None:
    return verdict.row.get("of_peak") or verdict.row.get("share")


def _least(found: Iterable[Verdict], default: float) -> float:
    """The least share of plain Keras's peak in which a model trained."""
    good = (Outcome.TRAINED, Outcome.NOT_COMPARED)
    shares = (_share(v) for v in found if v.outcome in good)
    return min((share for share in shares if share), default=default)


def _line(kind: str, judged: Mapping[str, Sequence[Verdict]]) -> list[str]:
    own = [found for model, found in judged.items() if kind_of(model) == kind]
    ends = Counter(v.outcome for found in own for v in found)
    shares = [_least(found, 1.0) for found in own]
    spread = f"{min(shares):.0%} to {max(shares):.0%}"
    return [kind, str(len(own)), *(str(ends[one]) for one in Outcome), spread]


def _lines(model: str, found: Iterable[Verdict]) -> Iterator[list[str]]:
    for verdict in found:
        row, share = verdict.row, _share(verdict)
        told = "" if share is None else f"{share:.0%}"
        start = [TITLES[model], row["kind"], format_bytes(row["memory_bytes"]), told]
        end = [verdict.outcome.value, verdict.reason[:120]]
        yield [*start, str(row.get("repeat", "")), *end]


def _panel(judged: Mapping[str, Sequence[Verdict]]) -> Panel:
    least = {model: _least(found, 0.0) for model, found in judged.items()}
    bars = [
        Bar(
            label=TITLES[model],
            length=share,
            text=(f"{share:.0%}" if share else "does not train")
            + ", and a defect" * bool(_defects(judged[model])),
        )
        for model, share in sorted(least.items(), key=lambda one: one[1])
    ]
    x = "least card tried that trained it, over plain Keras's peak"
    return Panel(x=x, bars=bars, level=1.0)
