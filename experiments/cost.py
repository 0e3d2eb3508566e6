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

from collections.abc import Iterator
from typing import Any

from experiments import stats, subjects
from experiments.question import COLOURS, Answer, Panel, Series, Verdict
from experiments.runner import Book
from experiments.stats import Estimate, Row, Rows, estimate, step_of, trained
from experiments.subjects import NAMES, RULES, SUBJECTS, in_mib, named, short
from lms.machine.hardware import PRESETS
from lms.units import format_bytes

__all__ = ["SETTINGS", "TITLE", "answer", "measure"]

TITLE = "The cost of a step"
_WAYS = ("callback", *RULES)
SETTINGS = {"models": tuple(SUBJECTS), "shares": (0.7, 0.45), "ways": ()}
SETTINGS |= {"repeats": 3, "steps": 5, "small": False, "preset": subjects.PRESET}
KNOWN = {"models": tuple(SUBJECTS), "ways": None, "preset": PRESETS}
_LESS = 0.95  # of plain Keras's peak, from which on a way saves memory

_Key = tuple[str, float | None, str | None]  # way, share, and beside whose peak


def measure(book: Book, model: str, options: Any) -> None:
    """Let ways take turns, process by process."""
    subject = SUBJECTS[model]
    ways = options.ways or (*_WAYS, *subjects.LIMITED, *subject.peers)
    wanted = subjects.to_be_had(ways, book.card)
    for repeat in range(1, options.repeats + 1):

        def row(way: str, memory: int | None, **more: Any) -> Row:
            key = {"model": model, "way": way, **more, "repeat": repeat}  # noqa: B023
            known = {"small": options.small, "steps": options.steps}
            known |= {"preset": options.preset}
            return subjects.attempts(
                book, key, subject.trial(way, memory=memory, **known)
            )

        plain = row("plain", None, share=None)
        if not trained(plain):
            return
        for share in options.shares:
            for way in wanted:
                if way not in subject.peers:
                    row(way, in_mib(share * plain["peak_bytes"]), share=share)
        for way in (way for way in wanted if way in subject.peers):
            peer = row(way, None, share=None)
            if trained(peer) and peer["peak_bytes"] < _LESS * plain["peak_bytes"]:
                row("callback", in_mib(peer["peak_bytes"]), beside=way)


class _Cells:
    """Rows of one model, by way and card."""

    def __init__(self, rows: Rows) -> None:
        self.title = SUBJECTS[rows[0]["model"]].title
        self.tries: dict[_Key, list[Row]] = {}
        for row in rows:
            key = row["way"], row.get("share"), row.get("beside")
            self.tries.setdefault(key, []).append(row)
        self.good = {key: [*filter(trained, own)] for key, own in self.tries.items()}
        base = self.good.pop(("plain", None, None), [])
        self.tries.pop(("plain", None, None), None)
        self.peak = max((row["peak_bytes"] for row in base), default=0)
        plain = self.plain = estimate([*map(step_of, base)]) if base else None
        self.costs: dict[_Key, Estimate] = {
            key: stats.ratio(estimate([step_of(row) for row in own]), plain)
            for key, own in self.good.items()
            if own and plain
        }

    def at(self, key: _Key) -> float:
        """Its peak over plain Keras's; the card's size where it never trained."""
        peaks = [row["peak_bytes"] for row in self.good[key]]
        return max(peaks) / self.peak if peaks else float(key[1] or 1.0)

    def promise(self, key: _Key) -> float | None:
        """Its step over plain Keras's as it was promised, or None."""
        plain = self.plain and self.plain.median
        found = [one for row in self.good[key] if (one := stats.promised(row, plain))]
        return estimate(found).median if found else None


def answer(rows: Rows) -> Answer:
    """The frontier of time over memory of each model."""
    models = dict.fromkeys(row["model"] for row in rows)
    cells = [_Cells([row for row in rows if row["model"] == each]) for each in models]
    cells = [one for one in cells if one.peak]
    verdicts = [verdict for one in cells for verdict in _verdicts(one)]
    won = sum(holds is True for holds, _ in verdicts)
    lost = sum(holds is False for holds, _ in verdicts)
    finding = (
        f"Against each other way at its own memory the callback is faster in {won} "
        f"of {len(verdicts)} pairs, slower in {lost}; the rest is undecided. "
        "The table names each further way that no other one beats in both time and "
        "memory. Mixed precision computes other numbers, and so does accumulation "
        "where a batch is normalised."
    )
    columns = ["model", "card", "callback", "IBM's rule", "serialised", "others"]
    names = ["model", "way", "card or peak", "peak", "over plain Keras", "promised"]
    full = [line for one in cells for line in _lines(one)]
    panels = [_panel(one) for one in cells]
    width = min(3, max(1, len(panels)))
    panels += [Panel()] * (-len(panels) % width)  # nothing is drawn
    return Answer(
        finding=finding,
        table=("A step over plain Keras's", columns, [*map(_summary, cells)]),
        more=[("Each way", [*names, "processes", "failed tries"], full)],
        verdicts=sorted(verdicts, key=lambda one: one[0] is not False),
        panels=[panels[i : i + width] for i in range(0, len(panels), width)],
        headline="A step's time over memory, on a V100 with PCIe 3.0",
    )


def _verdicts(cells: _Cells) -> Iterator[Verdict]:
    """The callback against each other way, at the other's memory."""
    for key, other in cells.costs.items():
        way, share, _ = key
        our_key: _Key = ("callback", share, None if share else way)
        if way == "callback" or our_key not in cells.tries:
            continue
        if share is None and cells.at(key) > _LESS:
            continue
        card = f"a card of {share:.0%}" if share else f"the peak of {named(way)}"
        where = f"{cells.title} in {card}"
        own = cells.costs.get(our_key)
        if own is None:
            yield False, f"{where}: {named(way)} trains, the callback does not"
            continue
        text = f"{where}: {own.median:.2f}, peak {cells.at(our_key):.0%}, against "
        text += f"{other.median:.2f}, peak {cells.at(key):.0%}, of {named(way)}"
        yield (own.median < other.median if stats.differ(own, other) else None), text


def _summary(cells: _Cells) -> list[str]:
    """A line for the smallest share that the callback trains in."""
    shares = sorted({key[1] for key in cells.tries if key[1]}, reverse=True)
    good = [s for s in shares if ("callback", s, None) in cells.costs] or shares
    share = good[-1] if good else None
    told = dict.fromkeys(cells.tries, "does not train")
    told |= {key: stats.said(cost) for key, cost in cells.costs.items()}
    texts = [told.get((way, share, None), "not run") for way in _WAYS]
    others = sorted(
        (cells.at(key), one.median, named(key[0]))
        for key, one in cells.costs.items()
        if key[0] not in _WAYS and key[1] in (None, share)
    )
    front = (o for o in others if all(o[1] < one[1] for one in others if one < o))
    named_ = [f"{time:.2f} in {at:.0%}, {name}" for at, time, name in front]
    where = f"{share:.0%} of plain's peak" if share else ""
    return [cells.title, where, *texts, "; ".join(named_)]


def _lines(cells: _Cells) -> Iterator[list[str]]:
    for key, tries in cells.tries.items():
        way, share, beside = key
        good, promise = cells.good[key], cells.promise(key)
        errors = [stats.ending(row)[:80] for row in tries if not trained(row)]
        yield [
            cells.title,
            way,
            f"{share:.0%}" if share else f"peak of {beside}" if beside else "all",
            format_bytes(max(r["peak_bytes"] for r in good)) if good else "",
            stats.said(cells.costs[key]) if good else "did not train",
            f"{promise:.2f}" if promise else "",
            str(len(good)),
            f"{len(errors)}: {errors[-1]}" if errors else "",
        ]


def _panel(cells: _Cells) -> Panel:
    series = [Series(points=[(1, 1)], colour=COLOURS["plain"], label=NAMES["plain"])]
    for way in dict.fromkeys(short(key[0]) for key in cells.tries):
        keys = [key for key in cells.tries if short(key[0]) == way and not key[2]]
        keys.sort(key=cells.at)
        costs = [(cells.at(k), cells.costs[k]) for k in keys if k in cells.costs]
        line = "-" if len(costs) > 1 and way in _WAYS else ""
        spans = [(one.low, one.high) for _, one in costs]
        points = [(at, one.median) for at, one in costs]
        known: Any = {"colour": COLOURS[way]}
        if points:
            label = NAMES[way]
            one = Series(points=points, label=label, line=line, spans=spans, **known)
            series.append(one)
        # Those of other ways lie beside them.
        height = 0.06 * len({one.colour for one in series})
        failed = [(cells.at(key), height) for key in keys if key not in cells.costs]
        label = f"{NAMES[way]}: did not train" if failed else ""
        series.append(Series(points=failed, marker="x", label=label, **known))
        hollow = [(cells.at(k), one) for k in keys if (one := cells.promise(k))]
        if hollow and way == "callback":
            label = "promised before the first step"
            series.append(Series(points=hollow, hollow=True, label=label, **known))
    return Panel(
        title=cells.title,
        x="peak over plain Keras's",
        y="step over plain Keras's",
        series=series,
        level=1.0,
        xlim=(0, 1.1),
    )
