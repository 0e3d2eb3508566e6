"""How far down does each planner get?

One training step of the case study's U-Net is traced once. Then each plan is built
into it, run, and the peak of the device's allocator is measured:

    none          TensorFlow's own order, nothing swapped
    threshold     IBM's rule at every setting of a grid; the best measured counts
    budget        at the least budget that it does not refuse; then in rooms from there
                  to the plain peak: as it is, without second runs of ops, with second
                  runs wherever they can be, and in the order in which TensorFlow lists
                  the ops instead of its own schedule

The grid: all combinations of `swapout_threshold`, `swapin_ahead` and `swapin_groupby`
as TFLMS runs them by default (no sync, no serialization), all measured. Then, for sync
mode "both" and for serialization of all levels, every combination is simulated, and
the best few of each are measured, as are the best few of the default measurements.

Three claims: the budget planner's peak is at most 1.4 times what no plan can go below
(the largest op's working set and persistent bytes), and at most 0.6 times the best
peak that IBM's rule reaches as TFLMS runs it by default; and in each of the rooms it
swaps out, with second runs wherever they can be, at most half the bytes of any of the
rule's settings in those modes whose measured peak is no higher. `draw` says which of
them hold. The second was set when the rule's best peak was higher: it has come so near
to what no plan can go below that 0.6 times it cannot be reached by anyone, and comes
nearer with every level serialised; both are shown.

Peaks are the allocator's, persistent bytes included. The first step is not counted: it
initialises. The device is the CPU behind the allocator of GPUs (`lms.machine.emulate`),
with a limit that nothing comes near.

Known weakness: without serialization TensorFlow starts any ready op, so the threshold
planner's peaks wander from run to run. Step times are of copies within host memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.charts import Panel, Series, draw_panels
from experiments.ledger import Head, Row, Rows
from experiments.plots import COLOURS, source
from experiments.question import DEVICE, Answer, Finding
from lms.units import MIB, format_bytes

__all__ = ["ANSWER", "EqualPeak", "equal_peaks", "main"]

_FAR_BELOW_THRESHOLD = 0.6
_NEAR_THE_BOUND = 1.4
_FEW_BYTES = 0.5

_MARKERS = {
    "as it is": ("o", "budget"),
    "nothing twice": ("s", "budget, nothing run twice"),
    "twice where it can": ("^", "budget, twice wherever it can"),
    "TensorFlow's order": ("x", "budget, in TensorFlow's order"),
}
_OWN, _TWICE = "as it is", "twice where it can"


def _add_settings(parser: Any) -> None:
    parser.add_argument("--memory", default="512MiB", help="of the emulated device")
    parser.add_argument("--size", type=int, default=48, help="voxels along an axis")
    parser.add_argument("--filters", type=int, default=8, help="of the top level")
    parser.add_argument("--depth", type=int, default=4, help="levels of the network")
    numbers = {"type": int, "nargs": "+"}
    thresholds = [1, 2, 5, 10, 20, 50, 100, 200, 400]
    parser.add_argument("--thresholds", default=thresholds, **numbers)
    parser.add_argument("--aheads", default=[1, 3, 10], **numbers)
    parser.add_argument("--groupbys", default=[0, 5], **numbers)
    parts = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    text = "rooms between, in parts of the plain peak"
    parser.add_argument("--parts", default=parts, type=float, nargs="*", help=text)
    parser.add_argument(
        "--few", type=int, default=3, help="how many best to go on with"
    )


def _run(options: Any) -> None:
    """Only this needs TensorFlow; what is drawn does not."""
    from experiments.planner_trials import run

    run(options)


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualPeak:
    """What moves at one measured peak.

    Args:
        part: The room, over the plain peak.
        budget: The budget planner's plan in that room.
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
    """The budget planner beside the rule, room by room.

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


def _finding(head: Head, rows: Rows) -> Finding:
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
    columns = ["planner", "plans run", "least peak", "over what no plan can go below"]
    columns += ["swapped out", "swapped in", "step"]
    budget, rule = _best(ran)
    plain = min(r["peak_bytes"] for r in ran if r["planner"] == "none")
    text = (
        f"The least peak of the budget planner is {format_bytes(budget)}: "
        f"{budget / plain:.0%} of the peak without a plan, {budget / rule:.0%} of the "
        "best that IBM's rule reaches in its default modes, and "
        f"{budget / least:.2f} times what no plan can go below."
    )
    own = [p.ratio for p in equal_peaks(rows) if p.ratio is not None]
    twice = [p.ratio for p in equal_peaks(rows, twice=True) if p.ratio is not None]
    if own and twice:
        text += (
            " Compared with that setting of the rule which moves least at no higher a "
            f"peak, it swaps out {min(own):.2f} to {max(own):.2f} times as many bytes, "
            f"or {min(twice):.2f} to {max(twice):.2f} times as many if it runs ops "
            "twice wherever it can."
        )
    size = head["settings"]["size"]
    return text, (f"The least peak of each planner, {size}^3", columns, body)


def _way(row: Row) -> str:
    if row["planner"] == "none":
        return "no plan"
    if row["planner"] == "threshold":
        modes = "default modes" if row.get("default_modes") else "serialised or in sync"
        return f"IBM's rule, {modes}"
    variant = row["settings"].get("variant", "as it is")
    return row["planner"] + ("" if variant == "as it is" else f", {variant}")


def _least(rows: Rows) -> int:
    """Bytes that no plan can go below."""
    bounds = next(row for row in rows if row.get("kind") == "bounds")
    return bounds["lower_bound_bytes"] + bounds["persistent_bytes"]


def _best(ran: Rows) -> tuple[int, int]:
    """The least peaks: by budget, and by the rule in its default modes."""
    budget = min(r["peak_bytes"] for r in ran if r["planner"].startswith("budget"))
    return budget, min(r["peak_bytes"] for r in ran if r.get("default_modes"))


def _claims(_: Head, rows: Rows) -> Iterator[tuple[str, bool]]:
    budget, rule = _best([row for row in rows if row.get("peak_bytes")])
    ratios = [pair.ratio or 0 for pair in equal_peaks(rows, twice=True)]
    other = "IBM's rule in its default modes"
    twice = ", with second runs wherever they can be"
    for text, ratio, most in (
        ("peak over what no plan can go below", budget / _least(rows), _NEAR_THE_BOUND),
        (f"peak over the best of {other}", budget / rule, _FAR_BELOW_THRESHOLD),
        (f"bytes over {other} at no higher a peak{twice}", max(ratios), _FEW_BYTES),
    ):
        said = f"the budget planner's {text}: {ratio:.2f}, claimed are at most {most}."
        yield said, ratio <= most


def _plot(head: Head, rows: Rows, path: Path) -> None:
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
        style |= {"colour": COLOURS["threshold"], "label": f"IBM's rule, {modes}"}
        yield [row for row in rule if row["default_modes"] is is_default], style
    style = {"marker": "D", "colour": COLOURS["plain"], "label": "no plan"}
    yield [row for row in ran if row["planner"] == "none"], style
    mine = [row for row in ran if row["planner"] == "budget"]
    for variant, (marker, label) in reversed(_MARKERS.items()):
        rows = [row for row in mine if row["settings"].get("variant", _OWN) == variant]
        style = {"marker": marker, "colour": COLOURS["budget"], "label": label}
        style |= {"line": "-"} if variant == _OWN else {"hollow": True, "alpha": 0.6}
        yield sorted(rows, key=lambda row: row["peak_bytes"]), style


ANSWER = Answer(
    name="planner_comparison",
    title="Memory, bytes and time of each planner",
    emulated=DEVICE,
    about=__doc__,
    add_settings=_add_settings,
    run=_run,
    finding=_finding,
    plot=_plot,
    claims=_claims,
    in_device=True,
)
main = ANSWER.main

if __name__ == "__main__":
    raise SystemExit(main())
