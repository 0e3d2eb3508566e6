"""The tables, the figure and the verdict of `experiments.planner_comparison`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from experiments.lines import read_lines
from lms.units import MIB, format_bytes

__all__ = ["draw"]

_FAR_BELOW_THRESHOLD = 0.6
_NEAR_THE_BOUND = 1.4


def draw(results: Path, figure: Path) -> int:
    """Print the grid and the table, draw the figure, and judge the claims.

    Args:
        results: The file that `run` wrote.
        figure: Where the figure goes.

    Returns:
        The exit status: 1 if a claim does not hold.
    """
    _, (bounds, *rows) = read_lines(results)
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
    _plot(chosen, ran, least, figure)
    console.print(f"Drawn: {figure}")
    _, default, threshold, budget = (row["peak_bytes"] for row in chosen.values())
    console.print(
        f"With every level serialised it is {budget / threshold:.2f} times the "
        f"threshold planner's best peak, which is {threshold / least:.2f} times what "
        "no plan can go below."
    )
    return _judge(budget / least, budget / default, console)


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


def _judge(to_bound: float, to_threshold: float, console: Console) -> int:
    """Say whether the two claims hold; the exit status."""
    status = 0
    for text, ratio, most in (
        ("what no plan can go below", to_bound, _NEAR_THE_BOUND),
        (
            "the threshold planner's best peak in TFLMS's default modes",
            to_threshold,
            _FAR_BELOW_THRESHOLD,
        ),
    ):
        holds = ratio <= most
        status |= not holds
        console.print(
            f"{'Holds' if holds else 'Failed'}: the budget planner's peak is "
            f"{ratio:.2f} times {text}, claimed are at most {most}.",
            style=None if holds else "red",
        )
    return int(status)


def _plot(
    chosen: Mapping[str, Mapping[str, Any]],
    ran: Sequence[Mapping[str, Any]],
    least: int,
    path: Path,
) -> None:
    """Peak against step time: every plan that ran, the chosen ones named."""
    figure = Figure(figsize=(8, 5), dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for planner, colour in (("none", "C7"), ("threshold", "C1"), ("budget", "C0")):
        rows = [row for row in ran if row["planner"] == planner]
        axes.scatter(
            [row["peak_bytes"] / MIB for row in rows],
            [row["step_seconds"] for row in rows],
            s=24,
            color=colour,
            label={"none": "no plan"}.get(planner, f"{planner} planner"),
        )
    best = next(row for name, row in chosen.items() if "any" in name)
    axes.annotate(
        "best thresholds",
        (best["peak_bytes"] / MIB, best["step_seconds"]),
        (60, 18),
        textcoords="offset points",
        arrowprops={"arrowstyle": "-", "color": "C1"},
        va="center",
        fontsize=9,
    )
    axes.axvline(least / MIB, color="grey", ls="--", label="no plan can go below")
    axes.set(
        xlim=(0, None),
        ylim=(0, None),
        xlabel="peak of the device's allocator, MiB",
        ylabel="seconds of a step",
        title="How far down each planner gets",
    )
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
