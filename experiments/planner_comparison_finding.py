"""The finding of `planner_comparison`: sentences, tables, goals, a figure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.charts import Panel, Series, draw_panels
from experiments.ledger import Head, Row, Rows
from experiments.plots import COLOURS, source
from experiments.question import Finding
from lms.units import MIB, format_bytes
from profiling.tables import Table

__all__ = ["EqualPeak", "equal_peaks", "finding", "goals", "plot"]

_FAR_BELOW_RULE = 0.6
_NEAR_THE_BOUND = 1.4
_FEW_BYTES = 0.5

_MARKERS = {
    "as it is": ("o", "the callback"),
    "nothing twice": ("s", "the callback, nothing run twice"),
    "twice where it can": ("^", "the callback, twice where it can"),
    "TensorFlow's order": ("x", "the callback, TensorFlow's order"),
}
_OWN, _TWICE = "as it is", "twice where it can"
_RULE = "IBM's rule"


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualPeak:
    """What moves at one measured peak.

    Args:
        part: The room, over the plain peak.
        budget: The callback's plan in that room.
        rule: The one of IBM's rule, in its default modes, with the fewest bytes
            swapped out of those that measured no higher peak; None if there is none.
    """

    part: float
    budget: Row
    rule: Row | None

    @property
    def ratio(self) -> float | None:
        """Bytes swapped out, over the rule's in its default modes."""
        if self.rule is None:
            return None
        return self.budget["swapped_out_bytes"] / self.rule["swapped_out_bytes"]


def equal_peaks(rows: Rows, *, twice: bool = False) -> list[EqualPeak]:
    """The callback beside the rule, room by room.

    Args:
        rows: All that were measured.
        twice: Take the plans with second runs of ops wherever they can be.
    """
    ran = [row for row in rows if row.get("peak_bytes")]
    moving = [r for r in ran if r["planner"] == "threshold" and r["swapped_out_bytes"]]
    default = [row for row in moving if row["default_modes"]]
    return [
        EqualPeak(
            part=row["settings"]["part"],
            budget=row,
            rule=_fewest(default, row["peak_bytes"]),
        )
        for row in ran
        if row["settings"].get("variant") == (_TWICE if twice else _OWN)
    ]


def _fewest(rows: Rows, peak: int) -> Row | None:
    low = [row for row in rows if row["peak_bytes"] <= peak]
    return min(low, key=lambda row: row["swapped_out_bytes"], default=None)


def finding(head: Head, rows: Rows) -> Finding:
    """The sentences and the tables."""
    least = _least(rows)
    ran = [row for row in rows if row.get("peak_bytes")]
    groups: dict[str, list[Row]] = {}
    for row in ran:
        groups.setdefault(_way(row), []).append(row)
    best = {name: min(g, key=lambda r: r["peak_bytes"]) for name, g in groups.items()}
    body = [
        [
            name,
            str(len(groups[name])),
            format_bytes(row["peak_bytes"]),
            f"{row['peak_bytes'] / least:.2f}",
            format_bytes(row["swapped_out_bytes"]),
            format_bytes(row["swapped_in_bytes"]),
            f"{row['step_seconds']:.2f} s",
        ]
        for name, row in best.items()
    ]
    columns = ["planner", "plans run", "least peak", "over the least possible"]
    columns += ["swapped out", "swapped in", "step"]
    size = head["settings"]["size"]
    first = (f"The plan of the least peak of each planner, {size}^3", columns, body)
    text = " ".join([_of_least_peaks(rows, best), *_of_bytes(rows)])
    return text, first, _in_rooms(rows)


def _of_least_peaks(rows: Rows, best: Mapping[str, Row]) -> str:
    """The callback's beside the rule's, also where the rule's is lower."""
    ran = [row for row in rows if row.get("peak_bytes")]
    budget, rule = _best(ran)
    plain = min(r["peak_bytes"] for r in ran if r["planner"] == "none")
    text = (
        f"The callback's planner comes down to {format_bytes(budget)}, "
        f"{budget / plain:.0%} of plain Keras's peak. IBM's rule comes to "
        f"{format_bytes(rule)} in its default modes"
    )
    slow = best.get(f"{_RULE}, serialised or in sync")
    if slow is None:
        return f"{text}."
    word = "less" if slow["peak_bytes"] < budget else "no less"
    return (
        f"{text}, and with its ops serialised or its copies waited for to "
        f"{format_bytes(slow['peak_bytes'])}, {word} than the callback."
    )


def _of_bytes(rows: Rows) -> Iterator[str]:
    own = [p.ratio for p in equal_peaks(rows) if p.ratio is not None]
    twice = [p.ratio for p in equal_peaks(rows, twice=True) if p.ratio is not None]
    if own and twice:
        yield (
            "Where the rule in its default modes has no higher a peak, the callback's "
            f"plan swaps out {min(own):.2f} to {max(own):.2f} times as many bytes, and "
            f"{min(twice):.2f} to {max(twice):.2f} times as many if ops run twice "
            "wherever they can."
        )


def _in_rooms(rows: Rows) -> Table:
    """Bytes and peaks side by side, room by room."""
    twice = {pair.part: pair.budget for pair in equal_peaks(rows, twice=True)}
    body = [
        [f"{own.part:.0%}", *map(_moved, (own.budget, own.rule, twice.get(own.part)))]
        for own in equal_peaks(rows)
    ]
    columns = ["room", "the callback", "IBM's rule", "twice where it can"]
    return "Swapped out, at which peak, in the same room", columns, body


def _moved(row: Row | None) -> str:
    if row is None:
        return ""
    return (
        f"{format_bytes(row['swapped_out_bytes'])} at {format_bytes(row['peak_bytes'])}"
    )


def _way(row: Row) -> str:
    if row["planner"] == "none":
        return "plain Keras"
    if row["planner"] == "threshold":
        modes = "default modes" if row.get("default_modes") else "serialised or in sync"
        return f"{_RULE}, {modes}"
    variant = row["settings"].get("variant", _OWN)
    return _MARKERS[variant][1]


def _least(rows: Rows) -> int:
    """Bytes that no plan can go below."""
    bounds = next(row for row in rows if row.get("kind") == "bounds")
    return bounds["lower_bound_bytes"] + bounds["persistent_bytes"]


def _best(ran: Rows) -> tuple[int, int]:
    """The least peaks: the callback's, and the rule's in its default modes."""
    budget = min(r["peak_bytes"] for r in ran if r["planner"].startswith("budget"))
    return budget, min(r["peak_bytes"] for r in ran if r.get("default_modes"))


def goals(_: Head, rows: Rows) -> Iterator[tuple[str, bool]]:
    """Judge peaks and bytes."""
    budget, rule = _best([row for row in rows if row.get("peak_bytes")])
    ratios = [pair.ratio or 0 for pair in equal_peaks(rows, twice=True)]
    other = "IBM's rule in its default modes"
    for what, base, ratio, most in (
        ("peak", "what no plan can go below", budget / _least(rows), _NEAR_THE_BOUND),
        ("peak", f"that of {other}", budget / rule, _FAR_BELOW_RULE),
        (
            "bytes swapped out, with ops run twice wherever they can be,",
            f"those of {other} at no higher a peak",
            max(ratios),
            _FEW_BYTES,
        ),
    ):
        said = f"the callback's {what} over {base} is at most {most}: {ratio:.2f}."
        yield said, ratio <= most


def plot(head: Head, rows: Rows, path: Path) -> None:
    """Peak against bytes, and against step time: every plan that ran."""
    least = _least(rows) / MIB
    series = list(_series([row for row in rows if row.get("peak_bytes")]))
    panels = [
        Panel(
            x="peak of the device's allocator, MiB",
            y=label,
            series=[
                Series(
                    points=[(r["peak_bytes"] / MIB, r[key] / unit) for r in ran],
                    **style,
                )
                for ran, style in series
            ],
            limit=(least, "no plan can\ngo below" if unit == MIB else ""),
            xlim=(0, None),
            ylim=(0, None),
        )
        for key, unit, label in (
            ("swapped_out_bytes", MIB, "swapped out in a step, MiB"),
            ("step_seconds", 1, "seconds of a step"),
        )
    ]
    draw_panels(
        [panels],
        path,
        title="Memory, bytes and time of each planner",
        note=f"One step of the 3D U-Net, {head['settings']['size']}^3; every mark is a "
        f"plan that ran; the device is emulated. {source(head)}",
        size=(11, 5.4),
    )


def _series(ran: Rows) -> Iterator[tuple[Sequence[Row], dict[str, Any]]]:
    """Rows and their marks, those in front last."""
    rule = [row for row in ran if row["planner"] == "threshold"]
    for modes, is_default in (("default modes", True), ("others", False)):
        style: dict[str, Any] = {"marker": ".", "alpha": 0.9 if is_default else 0.4}
        style |= {"colour": COLOURS["threshold"], "label": f"{_RULE}, {modes}"}
        yield [row for row in rule if row["default_modes"] is is_default], style
    style = {"marker": "D", "colour": COLOURS["plain"], "label": "plain Keras"}
    yield [row for row in ran if row["planner"] == "none"], style
    mine = [row for row in ran if row["planner"] == "budget"]
    for variant, (marker, label) in reversed(_MARKERS.items()):
        rows = [row for row in mine if row["settings"].get("variant", _OWN) == variant]
        style = {"marker": marker, "colour": COLOURS["budget"], "label": label}
        style |= {"line": "-"} if variant == _OWN else {"hollow": True, "alpha": 0.6}
        yield sorted(rows, key=lambda row: row["peak_bytes"]), style
