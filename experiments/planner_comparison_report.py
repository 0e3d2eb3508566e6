"""The tables, the figure and the verdict of `experiments.planner_comparison`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.lines import read_lines
from experiments.plots import COLOURS, INK, MUTED, calm, new_figure, save, source
from lms.units import MIB, format_bytes

__all__ = ["EqualPeak", "draw", "equal_peaks"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualPeak:
    """What moves at one measured peak.

    Args:
        part: The room, over the plain peak.
        budget: The budget planner's plan in that room.
        rule: The one of TFLMS's rule, in its default modes, with the fewest bytes
            swapped out of those that measured no higher peak; None if there is none.
        any_mode: The same in all modes.
    """

    part: float
    budget: Mapping[str, Any]
    rule: Mapping[str, Any] | None
    any_mode: Mapping[str, Any] | None

    @property
    def ratio(self) -> float | None:
        """Bytes swapped out, over the rule's in its default modes."""
        if self.rule is None:
            return None
        return self.budget["swapped_out_bytes"] / self.rule["swapped_out_bytes"]


def equal_peaks(
    rows: Sequence[Mapping[str, Any]], *, twice: bool = False
) -> list[EqualPeak]:
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
            any_mode=_fewest(moving, row["peak_bytes"]),
        )
        for row in ran
        if row["settings"].get("variant") == (_TWICE if twice else _OWN)
    ]


def _fewest(rows: Sequence[Mapping[str, Any]], peak: int) -> Mapping[str, Any] | None:
    low = [row for row in rows if row["peak_bytes"] <= peak]
    return min(low, key=lambda row: row["swapped_out_bytes"], default=None)


def draw(results: Path, figure: Path) -> int:
    """Print the grid and the tables, draw the figure, and judge the claims.

    Args:
        results: The file that `run` wrote.
        figure: Where the figure goes.

    Returns:
        The exit status: 1 if a claim does not hold.
    """
    head, (bounds, *rows) = read_lines(results)
    console = Console(soft_wrap=True)
    ran = [row for row in rows if row["peak_bytes"] is not None]
    chosen = {
        "no plan": _least(row for row in ran if row["planner"] == "none"),
        "threshold, TFLMS's\ndefault modes": _least(
            row for row in ran if row.get("default_modes")
        ),
        "threshold,\nany modes": _least(
            row for row in ran if row["planner"] == "threshold"
        ),
        "budget, the\nleast feasible": _least(
            row for row in ran if row["planner"] == "budget"
        ),
    }
    least = bounds["lower_bound_bytes"] + bounds["persistent_bytes"]
    _print_grid(bounds, rows, console)
    _print_table(chosen, least, console)
    console.print(
        f"No plan can go below {format_bytes(least)}: the largest op's working set, "
        f"{format_bytes(bounds['lower_bound_bytes'])}, and "
        f"{format_bytes(bounds['persistent_bytes'])} of persistent bytes."
    )
    _print_frontier(rows, console)
    _plot(head, ran, least, figure)
    console.print(f"Drawn: {figure}")
    _, default, threshold, budget = (row["peak_bytes"] for row in chosen.values())
    console.print(
        f"With every level serialised it is {budget / threshold:.2f} times the "
        f"threshold planner's best peak, which is {threshold / least:.2f} times what "
        "no plan can go below."
    )
    console.print(
        "Over the best peak of TFLMS's rule in its default modes no plan can have less "
        f"than {least / default:.2f} times."
    )
    ratios = [pair.ratio or 0 for pair in equal_peaks(rows, twice=True)]
    return _judge(budget / least, budget / default, max(ratios, default=0), console)


def _least(rows: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    return min(rows, key=lambda row: row["peak_bytes"])


def _print_grid(
    bounds: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], console: Console
) -> None:
    """What was searched, and the ten best settings."""
    tried = [row for row in rows if row["planner"] == "threshold"]
    console.print("Thresholds searched, every combination of")
    for knob, values in bounds["grid"].items():
        console.print(f"    {knob:18} {', '.join(map(str, values))}")
    console.print(
        f"{sum(row['default_modes'] for row in tried)} settings measured in TFLMS's "
        "default modes (sync_mode off, nothing serialised), and in each other mode "
        "the best of those and of all simulated combinations, "
        f"{len(tried)} in all. The best ten:"
    )
    ran = sorted(
        (row for row in tried if row["peak_bytes"] is not None),
        key=lambda row: row["peak_bytes"],
    )
    table = Table()
    for column in (*ran[0]["settings"], "peak", "step"):
        table.add_column(column.replace("_", "\n"), justify="right")
    for row in ran[:10]:
        table.add_row(
            *(_word(value) for value in row["settings"].values()),
            format_bytes(row["peak_bytes"]),
            f"{row['step_seconds']:.2f} s",
        )
    console.print(table)
    failed = len(tried) - len(ran)
    if failed:
        console.print(f"{failed} settings made ops wait for each other and cannot run.")


def _word(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _print_table(
    chosen: Mapping[str, Mapping[str, Any]], least: int, console: Console
) -> None:
    table = Table(title="One training step, measured", title_justify="left")
    table.add_column("")
    for name in chosen:
        table.add_column(name, justify="right")
    lines: list[tuple[str, Callable[[Mapping[str, Any]], str]]] = [
        ("peak", lambda row: format_bytes(row["peak_bytes"])),
        ("over what no plan can go below", lambda row: _ratio(row, least)),
        ("swapped out", lambda row: format_bytes(row["swapped_out_bytes"])),
        ("swapped in", lambda row: format_bytes(row["swapped_in_bytes"])),
        ("tensors swapped", lambda row: str(row["swap_count"])),
        ("step time", lambda row: f"{row['step_seconds']:.2f} s"),
    ]
    for label, cell in lines:
        table.add_row(label, *(cell(row) for row in chosen.values()))
    console.print(table)


def _ratio(row: Mapping[str, Any], least: int) -> str:
    return f"{row['peak_bytes'] / least:.2f}"


def _judge(
    to_bound: float, to_threshold: float, bytes_ratio: float, console: Console
) -> int:
    """Say whether the claims hold; the exit status."""
    status = 0
    rule = "TFLMS's rule in its default modes"
    twice = ", with second runs wherever they can be"
    for text, ratio, most in (
        ("its peak over what no plan can go below", to_bound, _NEAR_THE_BOUND),
        (f"its peak over the best of {rule}", to_threshold, _FAR_BELOW_THRESHOLD),
        (f"its bytes over {rule} at no higher a peak{twice}", bytes_ratio, _FEW_BYTES),
    ):
        holds = ratio <= most
        status |= not holds
        console.print(
            f"{'Holds' if holds else 'Failed'}: the budget planner, {text}: "
            f"{ratio:.2f}, claimed are at most {most}.",
            style=None if holds else "red",
        )
    return int(status)


def _print_frontier(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """The budget planner's variants, room by room."""
    table = Table(
        title="Swapped out and step time in rooms between, measured",
        title_justify="left",
    )
    table.add_column("room")
    for name in ("budget", "nothing\ntwice", "twice\nwherever", "TensorFlow's\norder"):
        table.add_column(name, justify="right")
    table.add_column("TFLMS's rule,\ndefault modes", justify="right")
    table.add_column("any\nmode", justify="right")
    for pair in equal_peaks(rows):
        mine = [
            next(
                row
                for row in rows
                if row["settings"].get("part") == pair.part
                and row["settings"].get("variant") == variant
            )
            for variant in _MARKERS
        ]
        cells = [*map(_moved, mine), _moved(pair.rule), _moved(pair.any_mode)]
        table.add_row(f"{pair.part:.0%}", *cells)
    console.print(table)


def _moved(row: Mapping[str, Any] | None) -> str:
    if row is None or row["peak_bytes"] is None:
        return "-"
    moved = row["swapped_out_bytes"] / MIB
    return f"{moved:.1f} MiB\n{row['step_seconds']:.2f} s"


def _plot(
    head: Mapping[str, Any],
    ran: Sequence[Mapping[str, Any]],
    least: int,
    path: Path,
) -> None:
    """Peak against bytes, and against step time: every plan that ran."""
    size = head["settings"]["size"]
    figure = new_figure(
        11,
        5.2,
        title="Memory, bytes and time of each planner",
        note=(
            f"One step of the 3D U-Net, {size}^3; every mark is a plan that ran; the "
            f"device is emulated. {source(head)}"
        ),
    )
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.07, right=0.98, top=0.78, bottom=0.18, wspace=0.2)
    for axes, value in ((left, _out_mib), (right, _seconds)):
        calm(axes)
        axes.axvline(least / MIB, color=INK, linewidth=1, linestyle=(0, (6, 3)))
        for rows, style in _series(ran):
            axes.plot(
                [row["peak_bytes"] / MIB for row in rows], [*map(value, rows)], **style
            )
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("peak of the device's allocator, MiB", color=INK, fontsize=11)
    left.set_ylabel("swapped out in a step, MiB", color=INK, fontsize=11)
    right.set_ylabel("seconds of a step", color=INK, fontsize=11)
    left.annotate(
        "no plan can\ngo below",
        (least / MIB, 0.9),
        xycoords=("data", "axes fraction"),
        xytext=(-6, 0),
        textcoords="offset points",
        ha="right",
        fontsize=9,
        color=MUTED,
    )
    handles, labels = left.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="upper left",
        bbox_to_anchor=(0.05, 0.92),
        ncols=4,
        frameon=False,
        fontsize=9,
    )
    save(figure, path)


def _out_mib(row: Mapping[str, Any]) -> float:
    return row["swapped_out_bytes"] / MIB


def _seconds(row: Mapping[str, Any]) -> float:
    return row["step_seconds"]


def _series(
    ran: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[list[Mapping[str, Any]], dict[str, Any]]]:
    """Rows and their marks, those in front last."""
    rule = [row for row in ran if row["planner"] == "threshold"]
    for modes, is_default, alpha in (
        ("default modes", True, 0.9),
        ("others", False, 0.4),
    ):
        rows = [row for row in rule if row["default_modes"] is is_default]
        style: dict[str, Any] = {"marker": ".", "linestyle": "", "alpha": alpha}
        style |= {"color": COLOURS["threshold"], "label": f"TFLMS's rule, {modes}"}
        yield rows, style
    style = {"marker": "D", "linestyle": "", "color": COLOURS["plain"]}
    yield [r for r in ran if r["planner"] == "none"], style | {"label": "no plan"}
    mine = [row for row in ran if row["planner"] == "budget"]
    for variant, (marker, label) in reversed(_MARKERS.items()):
        rows = [row for row in mine if row["settings"].get("variant", _OWN) == variant]
        style = {"marker": marker, "color": COLOURS["budget"], "label": label}
        style |= {"linestyle": "-" if variant == _OWN else "", "linewidth": 1.2}
        style |= {"alpha": 1 if variant == _OWN else 0.6, "markersize": 6}
        style |= {} if variant == _OWN else {"markerfacecolor": "none"}
        yield sorted(rows, key=lambda row: row["peak_bytes"]), style
