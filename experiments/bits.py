"""Does any model train, with plain Keras's bits, or is it refused rightly?

Models that others wrote train for six steps with op determinism: plain Keras twice in a
card with room for all; the callback in shares of plain Keras's peak, some of which
are above it; and in 1.05 times the least budget that a refusal names. Losses and
all variables are compared bit for bit (`experiments.judging`). A model that was never
refused is asked for its least budget by a budget of 1 MiB.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from experiments.charts import COLOURS, Bar, Panel
from experiments.judging import SPARE, Outcome, Verdict, judge, least_named
from experiments.names import NAMES, OF_KERAS_HUB, SMALL_NAMES, TITLES, kind_of
from experiments.question import Answer
from experiments.runner import Book, Row, Rows, Trial
from lms.units import MIB, format_bytes

__all__ = ["TITLE", "add_settings", "answer", "device_for", "units"]

TITLE = "Any model, with the same bits"
_ENOUGH = 8192 * MIB
_SHARES = (1.1, 0.8, 0.6, 0.45)
_PLAIN_RUNS = 2
_MARGIN = 32  # one part of so many that the callback keeps
_ASKED = MIB  # nothing trains in it
_DIGITS = 4  # of each variable's digest that are kept
_TOLD = 4  # variables that are named where they differ


def add_settings(parser: Any) -> None:
    """Which models, in which shares of plain Keras's peak, how often."""
    known = [*NAMES, *SMALL_NAMES]
    parser.add_argument("--models", nargs="+", choices=known, default=NAMES)
    parser.add_argument("--shares", nargs="+", type=float, default=_SHARES)
    parser.add_argument("--repeats", type=int, default=3, help="of each training")
    text = "do not ask models that were never refused for their least budget"
    parser.add_argument("--no-ask", action="store_true", help=text)


def units(options: Any) -> Iterable[Callable[[Book], None]]:
    """A unit for each model."""
    hub = keras_hub()
    missing = [name for name in options.models if name in OF_KERAS_HUB and not hub]
    if missing:
        raise SystemExit(
            f"keras-hub must be installed for {', '.join(missing)}. Install it: "
            "pip install -e '.[zoo]', or choose others with --models."
        )
    for model in options.models:
        yield lambda book, model=model: _model(book, model, options)


def keras_hub() -> str | None:
    """Its version, if it is there."""
    try:
        return version("keras-hub")
    except PackageNotFoundError:
        return None


def _model(book: Book, model: str, options: Any) -> None:
    """Train one model in each of its cards."""
    plain = [_row(book, _key(model, "plain", 1.0, i)) for i in _counted(_PLAIN_RUNS)]
    if any(row["error"] for row in plain):
        return
    rows = list(plain)
    for i, share in itertools.product(_counted(options.repeats), options.shares):
        rows.append(_row(book, _key(model, "training", share, i), plain))
    if least_named(rows) is None and not options.no_ask:
        key = _key(model, "asked", min(options.shares), 1)
        rows.append(_row(book, key, plain, budget=_ASKED))
    least = least_named(rows)
    for i in _counted(options.repeats if least else 0):
        key = {"model": model, "kind": "least", "least_bytes": least, "repeat": i}
        _row(book, key, plain)


def _key(model: str, kind: str, share: float, repeat: int) -> dict[str, Any]:
    return {"model": model, "kind": kind, "share": share, "repeat": repeat}


def _counted(count: int) -> range:
    return range(1, count + 1)


def _row(
    book: Book,
    key: dict[str, Any],
    plain: Sequence[Row] = (),
    budget: int | None = None,
) -> Row:
    """The row of a training; plain Keras's keeps a little of each variable's digest."""
    trial = Trial(
        model=key["model"],
        way="callback" if plain else "plain",
        memory=_memory(key, plain),
        budget=budget,
        feed="arrays",
    )

    def told(row: dict[str, Any]) -> dict[str, Any]:
        variables = row.pop("variables", [])
        row["of"] = kind_of(key["model"])
        if not plain:
            digests = [digest[:_DIGITS] for _, digest in variables]
            return row | {"digests": "".join(digests)}
        if budget and row.get("refused"):
            least = device_for(row["refused"]["least_bytes"], plain[0]["batch_bytes"])
            row["refused"] = {**row["refused"], "least_bytes": least}
        return row | {"differing": _differing(variables, plain[0]["digests"])}

    return book.row(key, trial, told=told)


def _memory(key: Row, plain: Sequence[Row]) -> int:
    """Bytes of the card, in whole MiB."""
    if not plain:
        return _ENOUGH
    if key["kind"] == "least":
        return int(SPARE * key["least_bytes"]) // MIB * MIB
    return int(key["share"] * max(row["peak_bytes"] for row in plain)) // MIB * MIB


def device_for(budget: int, batch_bytes: int) -> int:
    """The smallest device of whole MiB whose own budget is at least that many bytes.

    Without a budget of the user's the callback keeps a margin, 1/32 of the device and
    at least 1 MiB, and room for a batch that waits.

    Example:
        >>> device_for(62 * MIB, 2 * MIB) // MIB
        67
    """
    sizes = itertools.count(budget // MIB)
    memory = (size * MIB for size in sizes)
    return next(
        size
        for size in memory
        if size - max(MIB, size // _MARGIN) - batch_bytes >= budget
    )


def _differing(variables: Sequence[Sequence[str]], plain: str) -> dict[str, Any] | None:
    """Which variables are not as plain Keras's; None if all are, or are not known."""
    theirs = [plain[i : i + _DIGITS] for i in range(0, len(plain), _DIGITS)]
    paths = [
        path
        for (path, own), other in zip(variables, theirs, strict=False)
        if own[:_DIGITS] != other
    ]
    if not paths:
        return None
    return {"count": len(paths), "of": len(theirs), "first": paths[:_TOLD]}


def answer(rows: Rows) -> Answer:
    """How each training ended, by model."""
    models = dict.fromkeys(row["model"] for row in rows)
    judged = {
        model: judge([row for row in rows if row["model"] == model]) for model in models
    }
    judged = {model: found for model, found in judged.items() if found}
    ends = Counter(v.outcome for found in judged.values() for v in found)
    sound = [m for m, found in judged.items() if not _defects(found)]
    commits = len({row["commit"] for row in rows if row.get("commit")})
    cells = Counter(
        (row["model"], row["kind"], row.get("share"))
        for row in rows
        if row["kind"] not in ("plain", "asked")
    )
    thrice = sum(count >= 3 for count in cells.values())
    text = (
        f"{sum(ends.values())} trainings of {len(judged)} models: "
        + ", ".join(f"{ends[one]} {one.value}" for one in Outcome if ends[one])
        + f". Without any defect: {len(sound)} models. "
        f"{thrice} of {len(cells)} (model, card) pairs ran three times or more, on "
        f"{commits} {'commit' if commits == 1 else 'commits'}; the others less often."
    )
    body = [_line(kind, judged) for kind in dict.fromkeys(map(kind_of, judged))]
    columns = ["kind", "models", *(one.value for one in Outcome), "least share trained"]
    full = [line for model, found in judged.items() for line in _lines(model, found)]
    names = ["model", "card", "of plain's peak", "run", "outcome", "reason"]
    said = (
        f"{ends[Outcome.TRAINED]} of {sum(ends.values())} trainings have plain "
        f"Keras's bits, {ends[Outcome.REFUSED]} were refused rightly, "
        f"{ends[Outcome.DEFECT]} have a defect"
    )
    return Answer(
        finding=text,
        table=("How trainings ended, by kind of model", columns, body),
        more=[("Each training", names, full)],
        verdicts=[(not ends[Outcome.DEFECT], said)],
        panels=[[_panel(judged)]],
        headline="The least memory in which each model trained with plain Keras's bits",
    )


def _defects(found: Iterable[Verdict]) -> int:
    return sum(v.outcome is Outcome.DEFECT for v in found)


def _share(verdict: Verdict) -> float | None:
    return verdict.row.get("of_peak") or verdict.row.get("share")


def _trained(found: Iterable[Verdict]) -> list[float]:
    good = (Outcome.TRAINED, Outcome.NOT_COMPARED)
    shares = (_share(v) for v in found if v.outcome in good)
    return [share for share in shares if share]


def _line(kind: str, judged: Mapping[str, Sequence[Verdict]]) -> list[str]:
    own = {model: found for model, found in judged.items() if kind_of(model) == kind}
    ends = Counter(v.outcome for found in own.values() for v in found)
    shares = [min(_trained(found), default=1.0) for found in own.values()]
    spread = f"{min(shares):.0%} to {max(shares):.0%}"
    return [kind, str(len(own)), *(str(ends[one]) for one in Outcome), spread]


def _lines(model: str, found: Iterable[Verdict]) -> Iterable[list[str]]:
    for verdict in found:
        row, share = verdict.row, _share(verdict)
        yield [
            TITLES[model],
            format_bytes(row["memory_bytes"]),
            "" if share is None else f"{share:.0%}",
            str(row.get("repeat", "")),
            verdict.outcome.value,
            verdict.reason[:120],
        ]


def _panel(judged: Mapping[str, Sequence[Verdict]]) -> Panel:
    least = {
        model: min(_trained(found), default=0.0) for model, found in judged.items()
    }
    bars = [
        Bar(
            label=TITLES[model],
            length=least[model],
            colour=COLOURS["callback"],
            text=(f"{least[model]:.0%}" if least[model] else "does not train")
            + ", and a defect" * bool(_defects(judged[model])),
        )
        for model in sorted(judged, key=lambda model: least[model])
    ]
    return Panel(
        x="least card tried that trained it, over plain Keras's peak",
        bars=bars,
        level=1.0,
    )
