"""What `half_the_memory` found: a sentence, a table, a figure, and whether it holds."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.finding_console import show_finding
from experiments.lines import read_lines
from experiments.plots import COLOURS, INK, MUTED, calm, new_figure, save, source
from experiments.quiet import quiet, quiet_median
from experiments.report_findings import Finding, Head, Rows
from experiments.shortening import shortened
from lms.units import format_bytes

__all__ = ["draw", "finding"]

_NAMES = {
    "plain": "plain Keras",
    "plain, one by one": "plain, ops one by one",
    "budget": "budget",
    "budget, nothing twice": "budget, nothing run twice",
    "threshold": "TFLMS's rule",
}
_CLAIMED, _CLAIMED_OVER_BOUND = 1.25, 1.11


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contest:
    """Trainings that took turns.

    Args:
        cores: How many the device is: "one" or "all" of the machine's.
        link_rate: Bytes per second each way; None for the speed of the host's memory.
        ratios: Steps over the median step of plain Keras, by entrant.
        bound: The least that the link allows, over that step; None without a link.
        trainings: All, also those that failed.
        idle: First steps, which initialise.
    """

    cores: str
    link_rate: float | None
    ratios: Mapping[str, list[float]]
    bound: float | None
    trainings: Rows
    idle: int

    @property
    def limit(self) -> float:
        """The ratio that is claimed."""
        return _CLAIMED if self.bound is None else _CLAIMED_OVER_BOUND * self.bound

    @property
    def reached(self) -> float | None:
        """The budget planner's ratio."""
        steps = self.ratios.get("budget")
        return statistics.median(steps) if steps else None

    @property
    def is_claimed(self) -> bool:
        """Whether the claims are about it: a device that runs ops one by one."""
        return self.cores == "one"

    @property
    def holds(self) -> bool:
        """Whether the step takes no longer than is claimed."""
        return self.reached is not None and self.reached <= self.limit

    @property
    def place(self) -> str:
        """Where it was, readable."""
        return "On one core" if self.cores == "one" else "On all cores"


def draw(results: Path, path: Path) -> int:
    """Print and draw; 1 if a claim does not hold."""
    head, rows = read_lines(results)
    console = show_finding(finding(head, rows))
    _plot(head, rows, path)
    console.print(f"Drawn: {path}", soft_wrap=True)
    claimed = [contest for contest in _contests(head, rows) if contest.is_claimed]
    if not claimed:
        console.print("Nothing is claimed of all cores at once: --cores one")
    return 0 if claimed and all(contest.holds for contest in claimed) else 1


def finding(head: Head, rows: Rows) -> Finding:
    """The sentence and the table."""
    contests = _contests(head, rows)
    taken = [row["peak_bytes"] for row in rows if row["kind"] == "training"]
    text = (
        f"Plain Keras takes {' or '.join(map(format_bytes, taken))}, the others get "
        f"half of that. {'. '.join(map(_said, contests))}."
    )
    columns = ["cores", "link", "way", "peak", "swapped out", "ops run twice", "step"]
    columns += ["over plain", "predicted", "how it ended"]
    body = [
        _cells(contest, training)
        for contest in contests
        for training in contest.trainings
    ]
    steps = head["settings"]["steps"]
    return text, (f"Medians of {steps} steps of each, made in turns", columns, body)


def _said(contest: _Contest) -> str:
    over = f"{contest.place}, with copies at the speed of the host's memory"
    if contest.link_rate is not None:
        over = f"{contest.place}, over {contest.link_rate / 1e9:.2f} GB/s each way"
    if contest.reached is None:
        return f"{over}, the budget planner's step did not train"
    rule = contest.ratios.get("threshold")
    parts = [f"{over}, a step takes {contest.reached:.2f} times plain Keras's"]
    if contest.bound is not None:
        parts.append(
            f"{contest.reached / contest.bound:.2f} times what the link allows"
        )
    ordered = contest.ratios.get("plain, one by one")
    if ordered and contest.cores != "one":
        parts.append(
            f"{contest.reached / statistics.median(ordered):.2f} times plain Keras's "
            "with ops one by one"
        )
    words = ", ".join(parts)
    return words + (
        f" (TFLMS's rule: {statistics.median(rule):.2f} times plain Keras's)"
        if rule
        else " (by TFLMS's rule it does not train)"
    )


def _cells(contest: _Contest, training: Mapping[str, Any]) -> list[str]:
    rate = contest.link_rate
    words = [contest.cores, "none" if rate is None else f"{rate / 1e9:.3f} GB/s"]
    name = _NAMES[training["entrant"]]
    if training["entrant"] == "threshold":
        name += f", for {training['share']:.0%}"
    if training["error"]:
        return [*words, name, *[""] * 6, shortened(training["error"])]
    report = training.get("report")
    ratio = statistics.median(contest.ratios[training["entrant"]])
    step = quiet_median(training, skipped=contest.idle)
    return [
        *words,
        name,
        format_bytes(training["peak_bytes"]),
        format_bytes(report["swapped_out_bytes"]) if report else "-",
        str(report["recomputed_ops"]) if report else "-",
        f"{step:.3f} s",
        f"{ratio:.2f}",
        f"{report['predicted_seconds']:.3f} s" if report else "-",
        f"planned anew {report['replans']} times"
        if report and report["replans"]
        else "trained",
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


def _contest(row: Mapping[str, Any], idle: int, forward: float) -> _Contest:
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
        bound=bound,
        trainings=row["trainings"],
        idle=idle,
    )


def _plot(head: Head, rows: Rows, path: Path) -> None:
    contests = _contests(head, rows)
    size = head["settings"]["size"]
    groups = [
        [contest for contest in contests if contest.cores == cores]
        for cores in dict.fromkeys(contest.cores for contest in contests)
    ]
    figure = new_figure(
        11,
        1.4 + 3.2 * len(groups),
        title="A step in half of the memory, over one in enough of it",
        note=(
            f"3D U-Net, {size}^3; device and link are emulated; boxes: quartiles, "
            f"whiskers: 5 to 95 %. {source(head)}"
        ),
    )
    count = max(map(len, groups))
    panels: Any = figure.subplots(
        len(groups), count, squeeze=False, sharex=True, sharey=True
    )
    figure.subplots_adjust(
        left=0.19,
        right=0.98,
        top=1 - 0.5 / len(groups) / 2.2,
        bottom=0.24 / len(groups),
        wspace=0.06,
        hspace=0.26,
    )
    names = list(dict.fromkeys(n for contest in contests for n in contest.ratios))
    for row, group in zip(panels, groups, strict=True):
        for axes, contest in zip(row, group, strict=True):
            _panel(axes, contest, names)
        row[0].set_yticks(range(len(names)), [_NAMES[name] for name in names])
    for axes in panels[-1]:
        axes.set_xlabel("step over plain Keras's median", fontsize=11, color=INK)
    save(figure, path)


def _panel(axes: Any, contest: _Contest, names: list[str]) -> None:
    calm(axes)
    axes.axvline(1.0, color=INK, linewidth=1, linestyle=(0, (6, 3)))
    if contest.bound is not None:
        axes.axvline(contest.bound, color=MUTED, linewidth=1.4, linestyle=":")
        axes.annotate(
            "what the link allows",
            (contest.bound, len(names) - 0.45),
            xytext=(4, 0),
            textcoords="offset points",
            color=MUTED,
            fontsize=9,
            va="center",
        )
    for place, name in enumerate(names):
        steps = contest.ratios.get(name)
        if not steps:
            axes.text(
                0.98,
                place,
                "did not train",
                transform=axes.get_yaxis_transform(),
                ha="right",
                va="center",
                color=MUTED,
                fontsize=9,
            )
            continue
        colour = COLOURS[name.partition(",")[0]]
        axes.boxplot(
            [steps],
            positions=[place],
            orientation="horizontal",
            widths=0.5,
            whis=(5, 95),
            showfliers=False,
            patch_artist=True,
            boxprops={"facecolor": colour, "edgecolor": colour, "alpha": 0.75},
            medianprops={"color": INK, "linewidth": 1.6},
            whiskerprops={"color": colour},
            capprops={"color": colour},
            manage_ticks=False,
        )
        axes.text(
            statistics.median(steps),
            place - 0.42,
            f"{statistics.median(steps):.2f}",
            ha="center",
            fontsize=10,
            color=INK,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )
    axes.set_ylim(len(names) - 0.2, -0.8)
    rate = contest.link_rate
    title = f"{contest.place}, copies at the speed of the host's memory"
    if rate is not None:
        title = f"{contest.place}, a link of {rate / 1e9:.2f} GB/s each way"
    axes.set_title(title, loc="left", fontsize=11, color=INK)
