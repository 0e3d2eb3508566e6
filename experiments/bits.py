"""Does every model train with exactly Keras's numbers, or get a correct refusal?

Models that others wrote train for six steps with op determinism on emulated cards:
plain Keras twice in a large card; the callback in shares of plain Keras's peak, and in
1.05 times the least budget that a refusal names. Losses and all variables are compared
bit for bit (`experiments.judging`). A model that is never refused is asked for its
least budget by a budget of 1 MiB. That a named budget is the least is not proved.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

from experiments.judging import SPARE, Outcome, Verdict, judge, least_named
from experiments.names import NAMES, TITLES, kind_of
from experiments.question import Answer, Bar, Panel, sentences
from experiments.question import Verdict as Claim
from experiments.runner import OUT_OF_MEMORY, Book, Trial
from experiments.stats import Row, Rows, commits
from experiments.subjects import in_mib
from lms.units import MIB, Seconds, format_bytes

__all__ = ["SETTINGS", "TITLE", "answer", "device_for", "measure", "parts"]
__all__ += ["row_of"]

TITLE = "Any model, with the same bits"
SETTINGS = {"models": NAMES, "shares": (1.0, 0.45, 0.3), "repeats": 3}
SETTINGS |= {"longest": 1200.0}  # seconds of a training
KNOWN = {"models": tuple(TITLES)}
_ENOUGH = 8192 * MIB
_MARGIN = 32  # the callback keeps 1/32 of a card free
_ASKED = MIB  # a budget in which no model trains
_DIGITS = _TOLD = 4  # digits kept of a digest; differing variables named
_OTHER = "other numbers"
_WELL = (*(one.value for one in Outcome if one is not Outcome.DEFECT), _OTHER)
_HUB = ("segmentation, detection", "transformer", "audio")  # kinds of keras-hub


def parts(options: Any) -> Sequence[str]:
    """Return the models; refuse models of keras-hub where it is not installed."""
    missing = [name for name in options.models if kind_of(name) in _HUB]
    if missing and find_spec("keras_hub") is None:
        raise SystemExit(
            f"keras-hub must be installed for {', '.join(missing)}. Install it: "
            "pip install -e '.[zoo]', or choose others with --models."
        )
    return options.models


def measure(book: Book, model: str, options: Any) -> None:
    """Train one model on each of its cards."""

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
    """Return a training's row; plain Keras's keeps `_DIGITS` of a variable's digest."""
    way = "callback" if plain else "plain"
    known: dict[str, Any] = {"memory": memory, "budget": budget, "feed": "arrays"}
    known |= {"longest": longest}

    def told(row: dict[str, Any]) -> dict[str, Any]:
        variables = row.pop("variables", [])
        row["of"] = kind_of(key["model"])
        if not plain:
            return row | {"digests": "".join(one[:_DIGITS] for _, one in variables)}
        if budget and (row.get("refused") or {}).get("least_bytes"):
            least = device_for(row["refused"]["least_bytes"], plain[0]["batch_bytes"])
            row["refused"] = {**row["refused"], "least_bytes": least}
        row["of_peak"] = memory / max(one["peak_bytes"] for one in plain)
        return row | {"differing": _differing(variables, plain[0]["digests"])}

    return book.row(key, Trial(model=key["model"], way=way, **known), told=told)


def device_for(budget: int, batch_bytes: int) -> int:
    """Return the smallest device, in whole MiB, with a default budget of `budget`.

    By default the callback keeps a margin, 1/32 of the device and at least 1 MiB, and
    the bytes of a batch that waits.

    Example:
        >>> device_for(62 * MIB, 2 * MIB) // MIB
        67
    """
    size = budget // MIB * MIB
    while size - max(MIB, size // _MARGIN) - batch_bytes < budget:
        size += MIB
    return size


def _differing(variables: Sequence[Sequence[str]], plain: str) -> dict[str, Any] | None:
    """Count and name variables that differ from plain Keras's; None if none does."""
    theirs = [plain[i : i + _DIGITS] for i in range(0, len(plain), _DIGITS)]
    paths = [
        path
        for (path, own), other in zip(variables, theirs, strict=False)
        if own[:_DIGITS] != other
    ]
    known = {"count": len(paths), "of": len(theirs), "first": paths[:_TOLD]}
    return known if paths else None


def answer(rows: Rows) -> Answer:
    """Report how trainings ended, by kind of model."""
    models = dict.fromkeys(row["model"] for row in rows)
    found = {
        each: judge([row for row in rows if row["model"] == each]) for each in models
    }
    judged = {
        model: [v for v in own if v.row["kind"] != "asked"]
        for model, own in found.items()
        if own
    }
    every = [v for own in judged.values() for v in own]
    ends, why = Counter(v.outcome for v in every), Counter(map(_end, every))
    trained, others = ends[Outcome.TRAINED], why[_OTHER]
    broken = {end: n for end, n in why.items() if end not in _WELL}
    planned = [row for row in rows if row["kind"] not in ("plain", "asked")]
    peaks = [r["peak_bytes"] for r in rows if r["kind"] == "plain" and not r["error"]]
    cells = Counter((r["model"], r["kind"], r.get("share")) for r in planned)
    thrice = sum(count >= 3 for count in cells.values())
    shares = sorted({row["share"] for row in rows if row["kind"] == "training"})
    tried = ", ".join(f"{share:.0%}" for share in shares)
    text = f"{trained} of {trained + others} trainings that ended have plain Keras's "
    verdicts: list[Claim] = [(not others, f"{text}bits, on emulated cards, once each")]
    text = f"{sum(broken.values())} of {len(every)} trainings failed"
    text += ": " * bool(broken) + ", ".join(f"{n} {end}" for end, n in broken.items())
    text += f"; {ends[Outcome.REFUSED]} more were refused, and trained in {SPARE} "
    text += "times the least budget of the refusal"
    verdicts += [(not broken, text), _asked(found)]
    text = (
        f"{sentences(verdicts)} These are {len(every)} trainings of {len(judged)} "
        f"models that take {format_bytes(min(peaks))} to {format_bytes(max(peaks))}, "
        f"in cards of {tried} of plain Keras's peak and in least budgets; "
        f"{thrice} of {len(cells)} pairs of model and card ran three times or more. "
        f"Rows by commit: {commits(rows)}."
    )
    body = [_line(kind, judged) for kind in dict.fromkeys(map(kind_of, judged))]
    columns = ["kind", "models", *(one.value for one in Outcome), "least share trained"]
    full = [line for model, own in found.items() for line in _lines(model, own)]
    names = ["model", "kind", "card", "of plain's peak", "run", "outcome", "reason"]
    return Answer(
        finding=text,
        table=("How trainings ended, by kind of model", columns, body),
        more=[("Each training", names, full)],
        verdicts=verdicts,
        panels=[[_panel(judged)]],
        headline="The least memory in which each model trained, of what was tried",
    )


def _asked(found: Mapping[str, Sequence[Verdict]]) -> Claim:
    """State the claim that never refused models name a least budget that works."""
    kinds = {
        model: {v.row["kind"]: v for v in own}
        for model, own in found.items()
        if own
        and not any(v.row.get("refused") for v in own if v.row["kind"] == "training")
    }
    asked = [own["least"] for own in kinds.values() if {"asked", "least"} <= {*own}]
    failed = sum(verdict.outcome is Outcome.DEFECT for verdict in asked)
    text = (
        f"of {len(kinds)} models that were never refused {len(asked)} were asked for "
    )
    text += f"their least budget; {failed} of these failed in {SPARE} times that budget"
    made = commits([verdict.row for verdict in asked])
    text += f" (rows by commit: {made})" if made else ""
    return not failed and len(asked) == len(kinds), text


def _end(verdict: Verdict) -> str:
    """Describe a training's end in a few words."""
    if verdict.outcome is not Outcome.DEFECT:
        return verdict.outcome.value
    if verdict.row.get("refused"):
        return "refused with least budgets that differ"
    if verdict.reason.startswith("not done"):
        return "timed out"
    if "memory" in verdict.reason or OUT_OF_MEMORY in verdict.reason:
        return "ran out of memory"
    return "ended with an error" if verdict.row["error"] else _OTHER


def _share(verdict: Verdict) -> float | None:
    return verdict.row.get("of_peak") or verdict.row.get("share")


def _least(found: Iterable[Verdict], default: float) -> float:
    """Return the least share of plain Keras's peak in which a model trained."""
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
    bars: list[Bar] = []
    for model, share in sorted(least.items(), key=lambda one: one[1]):
        shares = ((_share(v) or 1.0, _end(v)) for v in judged[model])
        failed = max((one for one in shares if one[0] < (share or 1.0)), default=None)
        text = f"{share:.0%}" if share else "does not train"
        text += (
            f"; {failed[1].partition(' with ')[0]} in {failed[0]:.0%}"
            if failed
            else " or less"
        )
        known: dict[str, Any] = {"length": share, "is_open": failed is None}
        bars.append(Bar(label=TITLES[model], text=text, **known))
    x = "card over plain Keras's peak; open: nothing less was tried; one process each"
    return Panel(x=x, bars=bars, level=1.0)
