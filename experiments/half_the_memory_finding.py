"""The finding of `half_the_memory`: sentences, a table, goals, a figure."""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from experiments.charts import Box, Panel, draw_panels
from experiments.intervals import holds, ratio_interval, spanned, undecided
from experiments.ledger import Head, Row, Rows
from experiments.plots import COLOURS, source
from experiments.question import Finding, how_it_ended, part_of, shortened
from experiments.quiet import quiet, quiet_median
from lms.units import format_bytes

__all__ = ["finding", "goals", "plot"]

_NAMES = {
    "plain": "plain Keras",
    "plain, one by one": "plain Keras, ops one by one",  # of older rows
    "budget": "the callback",
    "budget, nothing twice": "the callback, nothing run twice",
    "threshold": "IBM's rule",
}
_MOST, _MOST_OVER_BOUND = 1.25, 1.11


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contest:
    """Trainings that took turns.

    Args:
        cores: How many the device is: "one" or "all" of the machine's.
        link_rate: Bytes per second each way; None for the speed of the host's memory.
        ratios: Steps over the median step of plain Keras, by entrant.
        interval: That holds the callback's median over plain Keras's; None if it did
            not train.
        bound: The least that the link allows, over that step, with nothing run twice;
            None without a link.
        trainings: All, also those that failed.
        idle: First steps, which initialise.
    """

    cores: str
    link_rate: float | None
    ratios: Mapping[str, list[float]]
    interval: tuple[float, float] | None
    bound: float | None
    trainings: Rows
    idle: int

    @property
    def limit(self) -> float:
        """The ratio that is the goal."""
        return _MOST if self.bound is None else _MOST_OVER_BOUND * self.bound

    @property
    def reached(self) -> float | None:
        """The callback's ratio."""
        return self.median("budget")

    def median(self, entrant: str) -> float | None:
        """The ratio of an entrant; None if it did not train."""
        steps = self.ratios.get(entrant)
        return statistics.median(steps) if steps else None

    @property
    def has_goal(self) -> bool:
        """True where goals apply: on a device that runs ops one by one."""
        return self.cores == "one"

    @property
    def is_met(self) -> bool | None:
        """True if the step takes no longer than that; None if that is not decided."""
        return self.interval is not None and holds(self.interval, self.limit)

    @property
    def where(self) -> str:
        """Device and link, readable."""
        place = "On one core" if self.cores == "one" else "On all cores"
        if self.link_rate is None:
            return f"{place}, without a link"
        return f"{place}, over a link of {self.link_rate / 1e9:.2f} GB/s"


def finding(head: Head, rows: Rows) -> Finding:
    """The sentences and the table."""
    contests = _contests(head, rows)
    taken = [row["peak_bytes"] for row in rows if row["kind"] == "training"]
    text = (
        f"Plain Keras takes {' or '.join(map(format_bytes, taken))}, the others get "
        f"half of that. {' '.join(_said(each) for each in contests)}"
    )
    columns = ["cores", "link", "way", "device", "peak", "swapped out", "run twice"]
    columns += ["step", "over plain Keras", "quartiles", "predicted", "how it ended"]
    body = [
        _cells(contest, training)
        for contest in contests
        for training in contest.trainings
    ]
    settings = head["settings"]
    title = f"3D U-Net, {settings['size']}^3: medians of {settings['steps']} steps"
    return text, (f"{title} of each, made in turns", columns, body)


def _said(contest: _Contest) -> str:
    if contest.reached is None:
        return f"{contest.where}, the callback's step did not train."
    rule = contest.median("threshold")
    said = f"{contest.where}, the callback's step takes {contest.reached:.2f} times "
    said += "plain Keras's"
    if contest.has_goal and contest.interval:
        said += undecided(contest.interval, contest.limit)
    if rule is None:
        return f"{said}; by IBM's rule it does not train."
    return f"{said}; by IBM's rule it takes {rule:.2f} times."


def _cells(contest: _Contest, training: Row) -> list[str]:
    rate = contest.link_rate
    words = [contest.cores, "none" if rate is None else f"{rate / 1e9:.3f} GB/s"]
    name = _NAMES[training["entrant"]] + part_of(training["share"])
    words += [name, format_bytes(training["memory_bytes"])]
    if training["error"]:
        return [*words, *[""] * 7, shortened(training["error"])]
    report = training.get("report")
    ratio = statistics.median(contest.ratios[training["entrant"]])
    step = quiet_median(training, skipped=contest.idle)
    return [
        *words,
        format_bytes(training["peak_bytes"]),
        format_bytes(report["swapped_out_bytes"]) if report else "-",
        str(report["recomputed_ops"]) if report else "-",
        f"{step:.3f} s",
        f"{ratio:.2f}",
        spanned(contest.ratios[training["entrant"]]),
        f"{report['predicted_seconds']:.3f} s" if report else "-",
        how_it_ended(report["replans"], report.get("chosen", ""))
        if report
        else how_it_ended(None),
    ]


def _contests(head: Head, rows: Rows) -> list[_Contest]:
    forward = {
        row["on"]: row["forward_seconds"]
        / (row["forward_seconds"] + row["backward_seconds"])
        for row in rows
        if row["kind"] == "prediction"
    }
    return [
        _contest(row, head["settings"]["idle"], forward[row["on"]])
        for row in rows
        if row["kind"] == "turns"
    ]


def _contest(row: Row, idle: int, forward: float) -> _Contest:
    """One set of turns; `forward` is the forward pass's part of a step."""
    ended = [one for one in row["trainings"] if not one["error"]]
    seconds = {
        one["entrant"]: quiet(one["step_seconds"][idle:], one["stolen_seconds"][idle:])
        for one in ended
    }
    plain = statistics.median(seconds["plain"])
    rate = row["link_rate"]
    bound = None
    if rate is not None:
        moved = [one["report"] for one in ended if "report" in one]
        fewest = min(report["swapped_out_bytes"] for report in moved) / rate / plain
        bound = max(forward, fewest) + max(1 - forward, fewest)
    return _Contest(
        cores=row["on"],
        link_rate=rate,
        ratios={name: [s / plain for s in steps] for name, steps in seconds.items()},
        interval=ratio_interval(seconds["budget"], seconds["plain"])
        if "budget" in seconds
        else None,
        bound=bound,
        trainings=row["trainings"],
        idle=idle,
    )


def goals(head: Head, rows: Rows) -> Iterator[tuple[str, bool | None]]:
    """Judge the goals, core by core and link by link."""
    found = [each for each in _contests(head, rows) if each.has_goal]
    for each in found:
        got = "it did not train"
        if each.interval:
            low, high = each.interval
            got = f"{each.reached:.2f}, which is {low:.2f} to {high:.2f}"
        text = f"a step takes at most {each.limit:.2f} times plain Keras's"
        yield f"{each.where[0].lower()}{each.where[1:]}, {text}: {got}.", each.is_met
    if not found:
        yield "there is none for all cores at once: --cores one", False


def plot(head: Head, rows: Rows, path: Path) -> None:
    """A box of steps for each way, a panel for each contest."""
    contests = _contests(head, rows)
    names = list(dict.fromkeys(name for each in contests for name in each.ratios))
    groups = [
        [_panel(each, names) for each in contests if each.cores == cores]
        for cores in dict.fromkeys(each.cores for each in contests)
    ]
    draw_panels(
        groups,
        path,
        title="A step in half of the memory, over one in enough of it",
        note=f"3D U-Net, {head['settings']['size']}^3; device and link are emulated; "
        f"boxes: quartiles, whiskers: 5 to 95 %. {source(head)}",
        size=(11, 1.4 + 3.2 * len(groups)),
        share=True,
    )


def _panel(contest: _Contest, names: list[str]) -> Panel:
    return Panel(
        title=contest.where,
        x="step, over plain Keras's median; not from 0",
        boxes=[
            Box(
                label=_NAMES[name],
                values=contest.ratios.get(name, []),
                colour=COLOURS[name.partition(",")[0]],
            )
            for name in names
        ],
        level=1.0,
    )
