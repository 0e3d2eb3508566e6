"""The finding of `moved_or_recomputed`: a sentence, a table, goals, a figure."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.charts import Box, Panel, draw_panels
from experiments.intervals import holds, median_interval, ratio_interval, spanned
from experiments.ledger import Head, Row, Rows
from experiments.plots import COLOURS, source
from experiments.question import Finding, how_it_ended, shortened
from experiments.quiet import is_quiet, quiet_median
from lms.units import format_bytes

__all__ = ["MODELS", "finding", "first_difference", "goals", "plot"]

# Titles, and the ratios that are to be reached.
MODELS: Mapping[str, tuple[str, float]] = {
    "gpt2": ("GPT-2", 1.2),
    "bert": ("BERT", 1.2),
    "vit": ("ViT", 1.2),
    "unet": ("3D U-Net", 1.1),
    "resnet50": ("ResNet50", 1.1),
}
_WAYS = {
    "plain": "plain Keras",
    "budget": "budget",
    "cheap": "budget, cheap ops twice",
    "threshold": "IBM's rule",
    "by hand": "by hand",
    "remat": "RematScope, listed layers",
    "half floats": "mixed bfloat16",
}
_COLOUR_OF = {"by hand": "by_hand", "half floats": "mixed"}
_OURS = ("budget", "cheap", "threshold")
_FEWEST = 5  # rounds that a median is taken of
_CALM = 1.1  # how far apart quartiles may be on a core that nobody else uses


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contest:
    """Trainings of one model that took turns.

    Args:
        model: Its name.
        idle: First steps, which do not count.
        row: What was measured.
        ratios: Steps over those of plain Keras in the same rounds, by entrant.
        least: The fastest step over plain Keras's fastest, by entrant.
        differing: The first step whose loss is not plain Keras's, from 1; None if
            there is none; by entrant.
    """

    model: str
    idle: int
    row: Row
    ratios: Mapping[str, list[float]]
    least: Mapping[str, float]
    differing: Mapping[str, int | None]

    @property
    def title(self) -> str:
        """Of the model, readable."""
        return MODELS[self.model][0]

    @property
    def limit(self) -> float:
        """The ratio that is to be reached."""
        return MODELS[self.model][1]

    @property
    def ours(self) -> list[str]:
        """Ways with large model support that trained."""
        return [way for way in self.differing if way in _OURS]

    @property
    def spread(self) -> float:
        """Upper over lower quartile of plain Keras's steps: 1 on a core of its own."""
        plain = next(one for one in self.row["trainings"] if one["entrant"] == "plain")
        steps = plain["step_seconds"][self.idle :]
        low, _, high = statistics.quantiles(steps, n=4, method="inclusive")
        return high / low

    def ratio(self, entrant: str) -> float | None:
        """The median; None if it did not train."""
        steps = self.ratios.get(entrant)
        return statistics.median(steps) if steps else None

    def holds(self, most: float, over: str = "") -> bool | None:
        """Whether the callback's ratio is at most so much; None if undecided."""
        steps = self.ratios.get("budget")
        if not steps:
            return False
        other = self.ratios.get(over)
        found = ratio_interval(steps, other) if other else median_interval(steps)
        return holds(found, most)


def first_difference(losses: Sequence[float], plain: Sequence[float]) -> int | None:
    """The first step whose loss differs, from 1; None if there is none.

    Steps that were repeated by a new plan come after those of plain Keras.

    Example:
        >>> first_difference([0.5, 0.25, 0.125], [0.5, 0.25])
        >>> first_difference([0.5, 0.25], [0.5, 0.26])
        2
    """
    pairs = enumerate(zip(losses, plain, strict=False), start=1)
    return next((step for step, (one, other) in pairs if one != other), None)


def _contests(head: Head, rows: Rows) -> list[_Contest]:
    idle = head["settings"]["idle"]
    return [_contest(row, idle) for row in rows if row["kind"] == "turns"]


def _contest(row: Row, idle: int) -> _Contest:
    ended = {one["entrant"]: one for one in row["trainings"] if not one["error"]}
    plain = ended["plain"]
    return _Contest(
        model=row["model"],
        idle=idle,
        row=row,
        ratios={name: _ratios(one, plain, idle) for name, one in ended.items()},
        least={
            name: _least(one, idle) / _least(plain, idle) for name, one in ended.items()
        },
        differing={
            name: first_difference(one["losses"], plain["losses"])
            for name, one in ended.items()
        },
    )


def _ratios(training: Row, plain: Row, idle: int) -> list[float]:
    """Each step over plain Keras's of the same round, where neither was disturbed."""
    ours, theirs = _steps(training, idle), _steps(plain, idle)
    rounds = list(zip(ours, theirs, strict=False))
    calm = [each for each in rounds if all(is_quiet(*step) for step in each)]
    chosen = calm if len(calm) >= _FEWEST else rounds
    return [one / other for (one, _), (other, _) in chosen]


def _steps(training: Row, idle: int) -> list[tuple[float, float]]:
    """Seconds of each step, and how long others had the core meanwhile."""
    seconds, stolen = training["step_seconds"], training["stolen_seconds"]
    delayed = training.get("delayed_seconds", [0.0] * len(seconds))
    steps = zip(seconds, stolen, delayed, strict=True)
    return [(taken, lost + waited) for taken, lost, waited in steps][idle:]


def _least(training: Row, idle: int) -> float:
    return min(training["step_seconds"][idle:])


def finding(head: Head, rows: Rows) -> Finding:
    """The sentence and the table."""
    contests = _contests(head, rows)
    ours = ", ".join(_said(each) for each in contests)
    differing = [each.differing[way] for each in contests for way in each.ours]
    text = (
        "In half of what plain Keras takes, over a link as slow as PCIe 3.0 x16 is for "
        f"a V100, a step with the callback takes so many times plain Keras's: {ours}. "
        f"Losses are plain Keras's, bit for bit, in {differing.count(None)} of "
        f"{len(differing)} trainings with large model support."
        f"{_spread(contests)}{_computed(rows)}"
    )
    columns = ["model", "link", "way", "memory", "peak", "swapped out", "swapped in"]
    columns += ["run twice", "step", "over plain", "quartiles", "fastest"]
    columns += ["predicted", "losses", "how it ended"]
    body = [_cells(each, one) for each in contests for one in each.row["trainings"]]
    steps = head["settings"]["steps"]
    return text, (f"Medians of {steps} steps of each, made in turns", columns, body)


def _spread(contests: Sequence[_Contest]) -> str:
    """A warning, where plain Keras's own steps say that others had the core."""
    most = max((each.spread for each in contests), default=1.0)
    if most <= _CALM:
        return ""
    return (
        f" Others used the core: plain Keras's quartiles of a model's steps are up to "
        f"{most:.2f} times apart, so these ratios of time say little."
    )


def _computed(rows: Rows) -> str:
    """How much of a step on the card its ops take, by prediction."""
    shares = [
        (row["forward_seconds"] + row["backward_seconds"]) / row["predicted_seconds"]
        for row in rows
        if row["kind"] == "prediction"
    ]
    if not shares:
        return ""
    return (
        f" Of the predicted steps on a V100, ops take {min(shares):.0%} to "
        f"{max(shares):.0%}; the rest is waiting for ops to be started, so these links "
        "are faster than those of large models would be."
    )


def _said(contest: _Contest) -> str:
    ours, by_hand = contest.ratio("budget"), contest.ratio("by hand")
    if ours is None:
        return f"{contest.title} does not train"
    words = f"{contest.title} {ours:.2f}"
    if contest.holds(contest.limit) is None:
        words += f" (at most {contest.limit:.1f}: not decided)"
    return words if by_hand is None else f"{words} (by hand {by_hand:.2f})"


def _cells(contest: _Contest, training: Row) -> list[str]:
    name = _WAYS[training["entrant"]]
    if training["share"] is not None:
        name += f", for {training['share']:.0%}"
    words = [contest.title, f"{contest.row['link_rate'] / 1e6:.0f} MB/s", name]
    half = contest.row["memory_bytes"] == training["memory_bytes"]
    words.append(format_bytes(training["memory_bytes"]) if half else "enough")
    if training["error"]:
        return [*words, *[""] * 10, shortened(training["error"])]
    report = training.get("report")
    steps = contest.ratios[training["entrant"]]
    differs = contest.differing[training["entrant"]]
    return [
        *words,
        format_bytes(training["peak_bytes"]),
        format_bytes(report["swapped_out_bytes"]) if report else "-",
        format_bytes(report["swapped_in_bytes"]) if report else "-",
        str(report["recomputed_ops"]) if report else "-",
        f"{quiet_median(training, skipped=contest.idle):.3f} s",
        f"{statistics.median(steps):.2f}",
        spanned(steps),
        f"{contest.least[training['entrant']]:.2f}",
        f"{report['predicted_seconds']:.3f} s" if report else "-",
        "equal" if differs is None else f"differ from step {differs} on",
        how_it_ended(report["replans"], report.get("chosen", ""))
        if report
        else how_it_ended(None),
    ]


def goals(head: Head, rows: Rows) -> Iterator[tuple[str, bool | None]]:
    """Judge the goals, model by model."""
    for each in _contests(head, rows):
        ours, by_hand = each.ratio("budget"), each.ratio("by hand")
        got = "nothing" if ours is None else f"{ours:.2f}"
        text = f"{each.title}: nobody else used the core: plain Keras's quartiles are"
        yield f"{text} {each.spread:.2f} times apart.", each.spread <= _CALM
        text = f"{each.title}: at most {each.limit:.1f} times plain Keras's step"
        yield f"{text}, got {got}.", each.holds(each.limit)
        if by_hand is not None:
            text = f"{each.title}: no slower than by hand, {by_hand:.2f}, got {got}."
            yield text, each.holds(1.0, over="by hand")
        differing = [way for way in each.ours if each.differing[way] is not None]
        text = f"{each.title}: losses equal plain Keras's, but for {differing}."
        yield text.replace(", but for []", ""), not differing and bool(each.ours)


def plot(head: Head, rows: Rows, path: Path) -> None:
    """A box of steps for each way, a panel for each model."""
    contests = _contests(head, rows)
    names = [name for name in _WAYS if any(name in each.ratios for each in contests)]
    draw_panels(
        [[_panel(each, names)] for each in contests],
        path,
        title="A step in half of the memory, over one of plain Keras in enough of it",
        note="By hand: in enough memory. All is emulated. Boxes: quartiles; "
        f"whiskers: 5 to 95 %. {source(head)}",
        size=(9, 1.4 + 1.9 * len(contests)),
        share=True,
    )


def _panel(contest: _Contest, names: Sequence[str]) -> Panel:
    rate = contest.row["link_rate"] / 1e6
    return Panel(
        title=f"{contest.title}, {rate:.0f} MB/s each way",
        x="step over plain Keras's of the same round; the axis does not begin at 0",
        boxes=[
            Box(
                label=_WAYS[name],
                values=contest.ratios.get(name, []),
                colour=COLOURS[_COLOUR_OF.get(name, name)],
            )
            for name in names
        ],
        level=1.0,
        limit=(contest.limit, "goal"),
    )
