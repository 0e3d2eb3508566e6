"""Step time over plain Keras's, in less memory, by each way that was run.

Five models of real size train on a dry V100 with PCIe 3.0, in times of its data sheet.
Plain Keras has all of the card, which each model fits. The callback and IBM's rule have
cards of shares of plain Keras's peak. The rule is tuned for 0.9 of the card, as by IBM;
after an out of memory for 0.8, 0.7, 0.6 and 0.5. TensorFlow's own swapping and its
recomputation have the same cards. Other ways run with all of the card, and the callback
once more in a card of their peak: at equal memory. Each runs in processes of its own,
without XLA. Mixed precision computes other numbers, and so does accumulation where a
batch is normalised. The table of all rows lists the runs of each model.

A step, measured or predicted, is divided by plain Keras's measured step of the same
commit; `page --check` fails where commits differ. A way whose peak is plain Keras's
within half a percent did nothing, and is left out. An error other than an out of memory
is this program's failure, not the way's.

Known weaknesses: kernels of a dry card do not slow down for copies, a real card's do;
nothing shows whether Grappler swapped anything before it ran out of memory.
"""

import math
from collections.abc import Iterator
from typing import Any

from experiments import stats, subjects
from experiments.question import COLOURS, Answer, Panel, Series, sentences
from experiments.runner import OUT_OF_MEMORY, Book
from experiments.stats import Estimate, Row, Rows, estimate, step_of, trained
from experiments.subjects import NAMES, RULES, SUBJECTS, in_mib, named, short
from lms.machine.hardware import PRESETS
from lms.units import format_bytes
from profiling.tables import Table

__all__ = ["SETTINGS", "TITLE", "answer", "costs", "measure", "strangers"]

TITLE = "The cost of a step"
_WAYS = ("callback", *RULES)
SETTINGS = {"models": tuple(SUBJECTS), "shares": (0.7, 0.45), "ways": ()}
SETTINGS |= {"repeats": 3, "steps": 5, "small": False, "preset": subjects.PRESET}
KNOWN = {"models": tuple(SUBJECTS), "ways": None, "preset": PRESETS}
_LESS = 0.95  # of plain Keras's peak: a way below it saves memory
_SAME = 0.005  # of plain Keras's peak: a way this near did nothing
_OTHER_NUMBERS = (NAMES["mixed"], NAMES["accumulate"])
_END = {True: "out of memory", False: "could not be run"}

_Key = tuple[str, float | None, str | None]  # way, share, way of equal memory
_HAND: _Key = ("by_hand", None, None)
_BESIDE_HAND: _Key = ("callback", None, "by_hand")
_COLUMNS = ["what trains", "plain Keras", "callback", "by hand"]
_COLUMNS += ["callback in as much", "commit, processes"]


def measure(book: Book, model: str, options: Any) -> None:
    """Run every way once per repeat, each in a process of its own."""
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
        subject = SUBJECTS[rows[0]["model"]]
        self.title, self.rows = subject.title, rows
        size = subject.shape[subject.knob]
        self.size = f"{size}^3" if subject.knob == "size" else f"batch {size}"
        base = [row for row in rows if row["way"] == "plain" and trained(row)]
        self.peak = max((row["peak_bytes"] for row in base), default=0)
        self.plain = estimate([*map(step_of, base)] or [math.nan])
        self.tries: dict[_Key, list[Row]] = {}
        for row in rows:
            key = row["way"], row.get("share"), row.get("beside")
            off = abs((row.get("peak_bytes") or 0) / (self.peak or 1) - 1)
            if row["way"] != "plain" and (off > _SAME or key[1] or key[2]):
                self.tries.setdefault(key, []).append(row)
        self.good = {key: [*filter(trained, own)] for key, own in self.tries.items()}
        self.costs: dict[_Key, Estimate] = {
            key: stats.ratio(estimate([*map(step_of, own)]), self.plain)
            for key, own in self.good.items()
            if own
        }

    def at(self, key: _Key) -> float:
        """Return a way's peak over plain Keras's; its card's where it never trained."""
        peaks = [row["peak_bytes"] for row in self.good[key]]
        return max(peaks) / self.peak if peaks else float(key[1] or 1.0)

    def died(self, key: _Key) -> bool:
        """Tell whether a way ran out of memory."""
        last = stats.ending(self.tries[key][-1])
        return key not in self.costs and ("memory" in last or OUT_OF_MEMORY in last)

    def least(self) -> int:
        """Return the least number of processes behind a cost."""
        return min((one.processes for one in self.costs.values()), default=0)

    def promise(self, key: _Key) -> float | None:
        """Return a way's predicted step over plain Keras's, or None."""
        plain = self.plain.median
        found = [one for row in self.good[key] if (one := stats.promised(row, plain))]
        return estimate(found).median if found else None


def _cells(rows: Rows) -> list[_Cells]:
    models = dict.fromkeys(row["model"] for row in rows)
    each = (_Cells([row for row in rows if row["model"] == one]) for one in models)
    return [one for one in each if one.peak]


def _told(processes: int) -> str:
    return "one process each" if processes == 1 else f"{processes} processes each"


def strangers(rows: Rows) -> list[str]:
    """Name the models whose rows are of several commits."""
    each = ((one.title, [*filter(trained, one.rows)]) for one in _cells(rows))
    told = [f"{title}: {stats.commits(own)}" for title, own in each]
    return [one for one in told if "," in one]


def costs(rows: Rows) -> Table:
    """Make the README's table: each model by the callback, and by hand."""
    lines = [_summary(one)[: len(_COLUMNS)] for one in _cells(rows)]
    return "Over plain Keras's step", _COLUMNS, lines


def answer(rows: Rows) -> Answer:
    """Report the frontier of time over memory of each model."""
    cells = _cells(rows)
    pairs = sorted((p for one in cells for p in _pairs(one)), key=lambda p: -p[0])
    lost = [line for ratio, line in pairs if ratio > 1]
    sure = sum(line[-1] == "yes" for _, line in pairs)
    ways: dict[str, list[str]] = {}
    for line in lost:
        pair = f"{line[0]} {line[2]} against {line[4]}"
        ways.setdefault(line[1], []).append(pair)
    runs = _told(min((one.least() for one in cells), default=0))
    text = f"at equal memory the callback is slower in {len(lost)} of {len(pairs)} "
    text += f"pairs, faster in {len(pairs) - len(lost)} (medians, {runs})"
    for way, own in sorted(ways.items(), key=lambda one: one[0] in _OTHER_NUMBERS):
        other = ", of other numbers" * (way in _OTHER_NUMBERS)
        text += f"; slower than {way}{other}: {', '.join(own)}"
    holds = False if lost else True if sure == len(pairs) else None
    finding = sentences([(holds, text)])
    finding += " All steps are without XLA. Plain Keras fits the card, too."
    columns = [*_COLUMNS, "callback moves out, ops run twice"]
    columns += ["IBM's rule, better form", "others"]
    names = ["model", "way", "card or peak", "peak", "over plain Keras", "predicted"]
    names += ["moved out", "ops run twice", "processes", "failed tries"]
    beside = ["model", "at the memory of", "callback", "peak", "other way", "peak"]
    beside += ["by medians", "decided by three processes of each"]
    full = [line for one in cells for line in _lines(one)]
    panels = [_panel(one) for one in cells]
    width = min(3, max(1, len(panels)))
    panels += [Panel()] * (-len(panels) % width)  # fill the last row
    return Answer(
        finding=finding,
        table=("Over plain Keras's step", columns, [*map(_summary, cells)]),
        more=[
            ("At equal memory, losses first", beside, [line for _, line in pairs]),
            ("Each way", names, full),
        ],
        verdicts=[(holds, text)] if pairs else [],
        panels=[panels[i : i + width] for i in range(0, len(panels), width)],
        headline="Step time over peak memory, on an emulated V100 with PCIe 3.0",
    )


def _pairs(cells: _Cells) -> Iterator[tuple[float, list[str]]]:
    """Yield the callback's step over each other way's at equal memory, and a line."""
    for key, other in cells.costs.items():
        way, share, _ = key
        our_key: _Key = ("callback", share, None if share else way)
        if way == "callback" or our_key not in cells.tries:
            continue
        if share is None and cells.at(key) > _LESS:
            continue
        own = cells.costs.get(our_key)
        ratio = own.median / other.median if own else math.inf
        where = f"{named(way)}, card of {share:.0%}" if share else named(way)
        line = [cells.title, where, f"{own.median:.2f}" if own else "nothing trained"]
        line += [f"{cells.at(our_key):.0%}", f"{other.median:.2f}"]
        line += [f"{cells.at(key):.0%}", "slower" if ratio > 1 else "faster"]
        yield ratio, [*line, "yes" if own and stats.differ(own, other) else "no"]


def _summary(cells: _Cells) -> list[str]:
    """Write a line of the smallest share that the callback trains in, and of others."""
    told = {key: f"{cost.median:.2f}" for key, cost in cells.costs.items()}
    share = min((key[1] for key in told if key[0] == "callback" and key[1]), default=0)
    own: _Key = ("callback", share, None)
    report = next((row["report"] for row in cells.good.get(own, ())), None) or {}
    moved = format_bytes(report.get("swapped_out_bytes", 0))
    plain = f"{cells.plain.median * 1e3:.0f} ms in {format_bytes(cells.peak)}"
    hand = format_bytes(round(cells.at(_HAND) * cells.peak)) if _HAND in told else ""
    others = sorted(
        (cells.at(key), one.median, named(key[0]))
        for key, one in cells.costs.items()
        if key[0] not in _WAYS and key[1] in (None, share)
    )
    front = (o for o in others if all(o[1] < one[1] for one in others if one < o))
    rule = (told[key] for way in RULES if (key := (way, share, None)) in told)
    return [
        f"{cells.title}, {cells.size}",
        plain,
        f"{told[own]} in {share:.0%}" if share else "did not train",
        f"{told[_HAND]} in {hand}" if _HAND in told else "not trained",
        told.get(_BESIDE_HAND, "not trained"),
        f"{(cells.rows[0].get('commit') or '')[:7]}, {cells.plain.processes}",
        f"{moved}, {report.get('recomputed_ops', 0)}" if share else "",
        min(rule, key=float, default="not run"),
        "; ".join(f"{time:.2f} in {at:.0%}, {name}" for at, time, name in front),
    ]


def _lines(cells: _Cells) -> Iterator[list[str]]:
    for key, tries in cells.tries.items():
        way, share, beside = key
        good, promise = cells.good[key], cells.promise(key)
        errors = [stats.ending(row)[:80] for row in tries if not trained(row)]
        report = (good[-1].get("report") if good else None) or {}
        moved, twice = report.get("swapped_out_bytes"), report.get("recomputed_ops")
        yield [
            cells.title,
            way,
            f"{share:.0%}" if share else f"peak of {beside}" if beside else "all",
            format_bytes(max(r["peak_bytes"] for r in good)) if good else "",
            stats.said(cells.costs[key]) if good else _END[cells.died(key)],
            f"{promise:.2f}" if promise else "",
            "" if moved is None else format_bytes(moved),
            "" if twice is None else str(twice),
            str(len(good)),
            f"{len(errors)}: {errors[-1]}" if errors else "",
        ]


def _panel(cells: _Cells) -> Panel:
    series = [Series(points=[(1, 1)], colour=COLOURS["plain"], label=NAMES["plain"])]
    dead = 0
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
        failed = [(cells.at(key), dead) for key in keys if cells.died(key)]
        label = f"{NAMES[way]}: out of memory" if failed else ""
        series.append(Series(points=failed, marker="x", label=label, **known))
        dead += bool(failed)
        hollow = [(cells.at(k), one) for k in keys if (one := cells.promise(k))]
        if hollow and way == "callback":
            label = "predicted before the first step"
            series.append(Series(points=hollow, hollow=True, label=label, **known))
    label = "the callback in as much memory as the way it is joined with"
    for key in (key for key in cells.costs if key[2]):
        known = {"colour": COLOURS["callback"], "line": ":", "label": label}
        pair = [key, (key[2], None, None)]
        ends = [(cells.at(k), cells.costs[k].median) for k in pair if k in cells.costs]
        series.append(Series(points=ends[:1], marker="D", **known))
        series.append(Series(points=ends, marker="", **(known | {"label": ""})))
    return Panel(
        title=f"{cells.title}, {_told(cells.least())}",
        x="peak over plain Keras's",
        y="step over plain Keras's",
        series=series,
        level=1.0,
        xlim=(0, 1.5),
        ylim=(0.25, 10),
        log=True,
    )
