"""The cost of a step over plain Keras's, in less memory, by each way there is.

Five models of true size train on a dry V100 of PCIe 3.0, whose time is its data
sheet's. Plain Keras has all of the card. The callback and IBM's rule have cards of
shares of plain Keras's peak; the rule is tuned for 0.9 of the card, as IBM did, and
where it dies for 0.8, 0.7, 0.6 and 0.5; TensorFlow's own swapping, its recomputation
and unified memory have the same cards. Other ways run with all of the card, and the
callback once more in a card of their peak: at equal memory. Each runs in processes of
its own.

Known weakness: kernels of a dry card do not slow down for copies; a real card's do.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from experiments.charts import COLOURS, Panel, Series
from experiments.question import Answer, Verdict
from experiments.runner import Book, Row, Rows, trained
from experiments.stats import Estimate, differ, estimate, ratio, said
from experiments.subjects import RULES, SUBJECTS, attempts, in_mib, step_of, to_be_had
from lms.units import format_bytes

__all__ = ["NAMES", "TITLE", "add_settings", "answer", "short", "units"]

TITLE = "The cost of a step"
_WAYS = ("callback", *RULES)
_LIMITED = ("swapping", "grappler", "unified")  # of TensorFlow and the driver
_SHARES = (0.7, 0.45)
_LESS = 0.95  # of plain Keras's peak, from which on a way saves memory

NAMES = {
    "plain": "plain Keras",
    "callback": "the callback",
    "rule": "IBM's rule",
    "serialised": "IBM's rule, serialised",
    "by_hand": "blocks by hand",
    "remat": "RematScope",
    "mixed": "mixed precision",
    "accumulate": "accumulation",
    "swapping": "Grappler's swapping",
    "grappler": "Grappler's recomputation",
    "unified": "unified memory",
}


def add_settings(parser: Any) -> None:
    """Which models and shares, how often."""
    names, ways = list(SUBJECTS), [*_WAYS, *_LIMITED]
    parser.add_argument("--models", nargs="+", choices=names, default=names)
    parser.add_argument("--shares", nargs="*", type=float, default=_SHARES)
    parser.add_argument("--ways", nargs="+", choices=ways, default=ways)
    parser.add_argument("--peers", nargs="*", help="instead of each model's")
    parser.add_argument("--repeats", type=int, default=3, help="of each training")
    parser.add_argument("--steps", type=int, default=5, help="of each training")
    parser.add_argument("--small", action="store_true", help="sizes for a rehearsal")


def units(options: Any) -> Iterable[Callable[[Book], None]]:
    """A unit for each model: ways take turns, process by process."""
    for model in options.models:
        yield lambda book, model=model: _model(book, model, options)


def _model(book: Book, model: str, options: Any) -> None:
    subject = SUBJECTS[model]
    known = {"small": options.small, "steps": options.steps}
    for repeat in range(1, options.repeats + 1):

        def row(way: str, share: float | None, memory: int | None) -> Row:
            key = {"model": model, "way": way, "share": share, "repeat": repeat}  # noqa: B023
            return attempts(book, key, subject.trial(way, memory=memory, **known))

        plain = row("plain", None, None)
        if not trained(plain):
            return
        for share in options.shares:
            for way in to_be_had(options.ways, book.card):
                row(way, share, in_mib(share * plain["peak_bytes"]))
        for way in options.peers if options.peers is not None else subject.peers:
            peer = row(way, None, None)
            if trained(peer) and peer["peak_bytes"] < _LESS * plain["peak_bytes"]:
                memory = in_mib(peer["peak_bytes"])
                key = {"model": model, "way": "callback", "beside": way}
                key |= {"repeat": repeat}
                book.row(key, subject.trial("callback", memory=memory, **known))


def short(way: str) -> str:
    """A way without its mode.

    Example:
        >>> short("remat:activations")
        'remat'
    """
    return way.partition(":")[0]


class _Cells:
    """Rows of one model, by way and card."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        base = [row for row in rows if row["way"] == "plain" and trained(row)]
        self.base = estimate([step_of(row) for row in base]) if base else None
        self.peak = max((row["peak_bytes"] for row in base), default=0)

    def kinds(self) -> list[tuple[str, float | None, str | None]]:
        """Way, share, and beside whose peak: in the order of rows."""
        found = ((r["way"], r.get("share"), r.get("beside")) for r in self._rows)
        return [key for key in dict.fromkeys(found) if key[0] != "plain"]

    def tries(self, key: tuple[str, float | None, str | None]) -> list[Row]:
        """All rows of a cell."""
        return [
            row
            for row in self._rows
            if (row["way"], row.get("share"), row.get("beside")) == key
        ]

    def cost(self, key: tuple[str, float | None, str | None]) -> Estimate | None:
        """The step over plain Keras's; None where it never trained."""
        steps = [step_of(row) for row in self.tries(key) if trained(row)]
        if not steps or self.base is None:
            return None
        return ratio(estimate(steps), self.base)

    def at(self, key: tuple[str, float | None, str | None]) -> float:
        """Its peak over plain Keras's; the card's size where it never trained."""
        good = [row["peak_bytes"] for row in self.tries(key) if trained(row)]
        return max(good) / self.peak if good else float(key[1] or 1.0)


def answer(rows: Rows) -> Answer:
    """The frontier of time over memory of each model."""
    cells = {
        model: _Cells([row for row in rows if row["model"] == model])
        for model in dict.fromkeys(row["model"] for row in rows)
    }
    cells = {model: one for model, one in cells.items() if one.base}
    verdicts = [v for model, one in cells.items() for v in _verdicts(model, one)]
    body = [line for model, one in cells.items() for line in _summary(model, one)]
    full = [line for model, one in cells.items() for line in _lines(model, one)]
    won = sum(holds is True for holds, _ in verdicts)
    lost = sum(holds is False for holds, _ in verdicts)
    finding = (
        f"Against each other way at its own memory the callback is faster in {won} "
        f"of {len(verdicts)} pairs, slower in {lost}; the rest is undecided. "
        "Where a way is faster, the table says so. Mixed precision computes other "
        "numbers, all else the same up to the order of sums."
    )
    columns = ["model", "memory", "callback", "IBM's rule", "serialised", "best other"]
    names = ["model", "way", "card or peak", "peak", "over plain Keras", "promised"]
    return Answer(
        finding=finding,
        table=("A step over plain Keras's", columns, body[:8]),
        more=[("Each way", [*names, "processes", "failed tries"], full)],
        verdicts=_weightiest(verdicts),
        panels=_panels(cells),
        headline="A step's time over memory, on a V100 with PCIe 3.0",
    )


def _weightiest(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts in another order: claims that fail come first."""
    return sorted(verdicts, key=lambda one: one[0] is not False)


def _verdicts(model: str, cells: _Cells) -> Iterable[Verdict]:
    """The callback against each other way, at the other's memory."""
    title = SUBJECTS[model].title
    for key in cells.kinds():
        way, share, beside = key
        if way == "callback":
            continue
        own = cells.cost(("callback", share, None if share else way))
        other = cells.cost(key)
        if (
            other is None
            or beside
            or (
                own is None
                and not cells.tries(("callback", share, None if share else way))
            )
        ):
            continue
        if share is None and cells.at(key) > _LESS:
            continue
        where = f"{title} in {cells.at(key):.0%}"
        if own is None:
            yield False, f"{where}: {NAMES[short(way)]} trains, the callback does not"
            continue
        text = f"{where}: {own.median:.2f} against {other.median:.2f} of "
        text += NAMES[short(way)]
        yield (own.median < other.median if differ(own, other) else None), text


def _summary(model: str, cells: _Cells) -> Iterable[list[str]]:
    """A line for the smallest share that the callback trains in, and one beside."""
    shares = sorted({key[1] for key in cells.kinds() if key[1]}, reverse=True)
    good = [s for s in shares if cells.cost(("callback", s, None))] or shares
    for share in good[-1:]:
        costs = [cells.cost((way, share, None)) for way in _WAYS]
        others = [
            (
                one.median,
                f"{one.median:.2f}, {NAMES[short(key[0])]} in {cells.at(key):.0%}",
            )
            for key in cells.kinds()
            if key[0] not in _WAYS
            and key[1] in (None, share)
            and (one := cells.cost(key))
        ]
        best = min(others, default=(0.0, ""))[1]
        texts = ["does not train" if one is None else said(one) for one in costs]
        yield [SUBJECTS[model].title, f"{share:.0%} of plain's", *texts, best]


def _lines(model: str, cells: _Cells) -> Iterable[list[str]]:
    for key in cells.kinds():
        way, share, beside = key
        tries, cost = cells.tries(key), cells.cost(key)
        good = [row for row in tries if trained(row)]
        place = f"{share:.0%}" if share else f"peak of {beside}" if beside else "all"
        promised = _promised(good)
        errors = [_why(row) for row in tries if not trained(row)]
        yield [
            SUBJECTS[model].title,
            way,
            place,
            format_bytes(max(r["peak_bytes"] for r in good)) if good else "",
            said(cost) if cost else "did not train",
            f"{promised:.2f}" if promised else "",
            str(len(good)),
            f"{len(errors)}: {errors[-1]}" if errors else "",
        ]


def _why(row: Row) -> str:
    return (row["error"] or (row.get("refused") or {}).get("error") or "")[:80]


def _promised(rows: Rows) -> float | None:
    """The predicted step over the predicted one with room for all."""
    reports = [row["report"] for row in rows if row.get("report")]
    found = [
        report["predicted_seconds"] / report["unplanned_seconds"]
        for report in reports
        if report.get("predicted_seconds") and report.get("unplanned_seconds")
    ]
    return estimate(found).median if found else None


def _panels(cells: dict[str, _Cells]) -> list[list[Panel]]:
    panels = [_panel(model, one) for model, one in cells.items()]
    width = 3 if len(panels) > 2 else max(1, len(panels))
    rows = [panels[i : i + width] for i in range(0, len(panels), width)]
    return [row + [Panel()] * (width - len(row)) for row in rows]


def _panel(model: str, cells: _Cells) -> Panel:
    keys = [key for key in cells.kinds() if not key[2]]
    series = [Series(points=[(1, 1)], colour=COLOURS["plain"], label=NAMES["plain"])]
    for way in dict.fromkeys(short(key[0]) for key in keys):
        own = [key for key in keys if short(key[0]) == way]
        costs = {key: cells.cost(key) for key in own}
        good = sorted((k for k in own if costs[k]), key=cells.at)
        known = [one for key in good if (one := costs[key])]
        colour = COLOURS[way]
        points = [
            (cells.at(key), one.median) for key, one in zip(good, known, strict=True)
        ]
        if points:
            series.append(
                Series(
                    points=points,
                    colour=colour,
                    label=NAMES[way],
                    line="-" if len(points) > 1 and way in _WAYS else "",
                    spans=[(one.low, one.high) for one in known],
                )
            )
        failed = [(cells.at(key), 0.04) for key in own if not costs[key]]
        series.append(Series(points=failed, colour=colour, marker="x"))
        promised = [
            (cells.at(key), value)
            for key in good
            if (value := _promised([r for r in cells.tries(key) if trained(r)]))
        ]
        if promised and way == "callback":
            label = "promised before the first step"
            series.append(
                Series(points=promised, colour=colour, hollow=True, label=label)
            )
    return Panel(
        title=SUBJECTS[model].title,
        x="peak over plain Keras's",
        y="step over plain Keras's",
        series=series,
        level=1.0,
        xlim=(0, 1.1),
    )
