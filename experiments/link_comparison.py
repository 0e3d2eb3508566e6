"""The case study's table, predicted: PCIe against NVLink, 144^3 against 192^3.

The network at its true size (16 filters, 5 levels, batch 1, float32) is traced, planned
and played on a V100 of two servers: "x86" with PCIe 3.0 x16, "AC922" with NVLink 2.0.
Ops take what a roofline of the data sheet gives, copies what others measured on these
links. Nothing is fitted to the published times, which stand beside it.

Two questions are asked. In the card's 16 GB, does 192^3 need support at all? And in a
memory of which 144^3 needs all but a twentieth, as the published runs did: what does
192^3 cost with TFLMS's rule, and with a budget?

Known weaknesses: a roofline is what the card could do at best, so computing takes less
than published, and copies weigh more against it. TFLMS v1's own choice of tensors is
not known: its second version's rule, tuned automatically, stands for it. The published
epoch also holds reading and the host's gaps between batches (44 s of x86's with LMS).
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from experiments.lines import command_line, read_lines, write_lines
from lms.costs import roofline
from lms.errors import BudgetError
from lms.forecast import Forecast, Workload, forecast, workload_of
from lms.hardware import preset
from lms.lanes import Bus, Job, simulate_together
from lms.plan import planned_graph
from lms.planning.timing import Speeds
from lms.room import margin_of
from lms.settings import read_settings
from lms.timeline import Lane
from lms.units import format_bytes
from unet3d.model import build_unet

__all__ = ["main"]

_NAME = "link_comparison"
_STEPS = 228  # of an epoch
_SERVERS = {"x86": "v100-pcie", "AC922": "v100-nvlink"}
_LARGEST = 0.95  # of the memory, what 144^3 takes: it was the largest that trained

# Seconds of an epoch: IBM's case study, one GPU.
_PUBLISHED = {("x86", 144): 216, ("AC922", 144): 197}
_PUBLISHED |= {("x86", 192): 1467, ("AC922", 192): 590}

_PLANNERS = {"none": "without support", "threshold": "TFLMS's rule", "budget": "budget"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or draw.

    Args:
        arguments: The words after `python -m experiments.link_comparison`.
    """
    options = command_line(_NAME, __doc__, _add_settings).parse_args(
        sys.argv[1:] if arguments is None else arguments
    )
    if options.command == "draw":
        _draw(options.results, options.figure)
    else:
        _run(options)
    return 0


def _add_settings(parser: Any) -> None:
    parser.add_argument("--sizes", type=int, nargs=2, default=(144, 192))
    parser.add_argument("--filters", type=int, default=16)
    parser.add_argument("--depth", type=int, default=5)


def _run(options: Any) -> None:
    small, large = (_workload(size, options) for size in options.sizes)
    rows: list[dict[str, Any]] = []
    for server, name in _SERVERS.items():
        card = preset(name).memory
        rows.append(_row(server, options.sizes[0], _on(small, server, card), "none"))
        needed = rows[-1]["unplanned_peak_bytes"]
        rows.append(_row(server, options.sizes[1], _on(large, server, card), "budget"))
        tight = _on(large, server, int(needed / _LARGEST))
        rows += [
            _row(server, options.sizes[1], tight, planner)
            for planner in ("threshold", "budget")
        ]
    settings = {"filters": options.filters, "depth": options.depth, "steps": _STEPS}
    settings["sizes"] = list(options.sizes)
    write_lines(options.results, settings, rows)


def _workload(size: int, options: Any) -> Workload:
    model = build_unet(size, options.filters, options.depth)

    def step(x: tf.Tensor, y: tf.Tensor) -> object:
        return model.train_step((x, y))

    cube = (1, size, size, size)
    signature = [tf.TensorSpec((*cube, 4)), tf.TensorSpec((*cube, 3), tf.uint8)]
    return workload_of(step, signature, hardware=preset(_SERVERS["x86"]))


def _on(workload: Workload, server: str, memory: int) -> Workload:
    hardware = replace(preset(_SERVERS[server]), memory=memory)
    costs = roofline(workload.graph, hardware)
    return replace(
        workload,
        speeds=Speeds(costs=costs, hardware=hardware),
        margin_bytes=margin_of(memory),
    )


def _row(server: str, size: int, workload: Workload, planner: str) -> dict[str, Any]:
    row = {"server": server, "size": size, "planner": planner}
    row["memory_bytes"] = workload.speeds.hardware.memory
    chosen = None if planner == "none" else planner
    try:
        found = forecast(workload, read_settings(planner=chosen))
    except BudgetError as error:
        return row | {"error": str(error)}
    played = found.timeline
    return row | {
        "error": None,
        "planned": found.plan.planner != "none",
        "swap_count": len(found.plan.swaps),
        "run_twice": len(found.plan.recomputed),
        "unplanned_peak_bytes": found.unplanned_peak_bytes,
        "peak_bytes": found.peak_bytes,
        "swapped_out_bytes": found.plan.swapped_out_bytes,
        "swapped_in_bytes": found.plan.swapped_in_bytes,
        "step_seconds": played.seconds,
        "unplanned_seconds": found.unplanned.seconds,
        "utilisation": played.utilisation,
        "h2d_rate": played.throughput(Lane.H2D),
        "d2h_rate": played.throughput(Lane.D2H),
        "two_on_a_bus_seconds": _two_on_a_bus(found),
    }


def _two_on_a_bus(found: Forecast) -> float:
    """The slower of two devices that share one link's bandwidth."""
    speeds = found.workload.speeds
    job = Job(
        graph=planned_graph(found.workload.graph, found.plan),
        plan=found.plan,
        costs=speeds.costs,
        hardware=speeds.hardware,
    )
    bus = Bus(h2d=speeds.hardware.h2d, d2h=speeds.hardware.d2h)
    return max(t.seconds for t in simulate_together([job, job], bus=bus))


def _draw(results: Path, path: Path) -> None:
    head, rows = read_lines(results)
    table = Table(
        title=f"Epochs of {head['settings']['steps']} steps, predicted and published",
        title_justify="left",
    )
    for name in ("server", "size", "device", "plan"):
        table.add_column(name)
    for name in ("peak", "out + in", "twice", "busy", "step", "two on a bus", "epoch"):
        table.add_column(name, justify="right")
    table.add_column("published", justify="right")
    for row in rows:
        table.add_row(*_cells(row, head["settings"]["steps"]))
    Console(width=130).print(table)
    for line in _findings(rows):
        print(line)
    _plot(rows, head, path)
    print(f"Figure: {path}")


def _cells(row: Mapping[str, Any], steps: int) -> list[str]:
    words = [row["server"], f"{row['size']}^3", format_bytes(row["memory_bytes"])]
    words.append(_PLANNERS[row["planner"]])
    if row["error"] is not None:
        return [*words, "no plan", "", "", "", "", "", "", ""]
    if not row["planned"]:
        words[-1] = "fits"
    copied = row["swapped_out_bytes"] + row["swapped_in_bytes"]
    published = _PUBLISHED.get((row["server"], row["size"]))
    return [
        *words,
        format_bytes(row["peak_bytes"]),
        format_bytes(copied),
        f"{row['run_twice']:,}",
        f"{row['utilisation']:.0%}",
        f"{row['step_seconds']:.3f} s",
        f"{row['two_on_a_bus_seconds']:.3f} s",
        f"{steps * row['step_seconds']:.0f} s",
        "" if published is None or _is_roomy(row) else f"{published} s",
    ]


def _is_roomy(row: Mapping[str, Any]) -> bool:
    """The card's whole memory at the larger size: no run of this was published."""
    return row["size"] == 192 and not row["planned"]


def _costs(
    rows: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[Mapping[str, Any], float, float | None]]:
    """Planned runs: step over the voxel-scaled smaller one, here and published."""
    plain = {row["server"]: row for row in rows if row["planner"] == "none"}
    for row in rows:
        if row["error"] is not None or not row["planned"]:
            continue
        server, small = row["server"], plain[row["server"]]
        voxels = (row["size"] / small["size"]) ** 3
        after, before = (
            _PUBLISHED.get((server, size)) for size in (row["size"], small["size"])
        )
        published = after / before / voxels if after and before else None
        yield row, row["step_seconds"] / (small["step_seconds"] * voxels), published


def _findings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the larger size costs over voxel-scaled computing, here and there."""
    return [
        f"{row['server']}, {_PLANNERS[row['planner']]}: {row['size']}^3 takes "
        f"{cost:.2f} of the voxel-scaled smaller size"
        + (f" (published {published:.2f})" if published else "")
        for row, cost, published in _costs(rows)
    ]


def _plot(rows: Sequence[Mapping[str, Any]], head: Any, path: Path) -> None:
    """Step over voxel-scaled step: the cost of swapping, published and predicted."""
    figure = Figure(figsize=(10.0, 5.0), dpi=150)
    FigureCanvasAgg(figure)
    figure.text(
        0.02,
        0.935,
        "192³ in the memory of 144³: what it costs",
        fontsize=15,
        weight="bold",
    )
    figure.text(
        0.02,
        0.02,
        "Published: IBM's case study, V100 16 GB. Predicted: rooflines and links as "
        f"others measured, nothing fitted; simulated, not run. Commit {head['commit']}",
        fontsize=8,
        color="#6B6B6B",
    )
    axes = figure.subplots()
    figure.subplots_adjust(left=0.08, right=0.97, top=0.82, bottom=0.17)
    bars = _bars(rows)
    colours = {"published": "#9A9A9A", "threshold": "#0072B2", "budget": "#D55E00"}
    names = {"published": "published", "threshold": "TFLMS's rule, predicted"}
    names["budget"] = "budget, predicted"
    for i, server in enumerate(_SERVERS):
        for k, kind in enumerate(colours):
            value = bars.get((server, kind))
            if value is None:
                continue
            at = i + (k - 1) * 0.27
            axes.bar(
                at, value, 0.25, color=colours[kind], label=names[kind] if not i else ""
            )
            axes.annotate(f"{value:.2f}", (at, value), ha="center", va="bottom")
    axes.axhline(1.0, color="#222222", linewidth=1, linestyle=(0, (6, 3)))
    axes.set_xticks(range(len(_SERVERS)), ["x86: PCIe 3.0 x16", "AC922: NVLink 2.0"])
    axes.set_ylabel("step over voxel-scaled step of 144³", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"partial-{path.name}")
    figure.savefig(temporary, format="png")
    temporary.replace(path)


def _bars(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], float]:
    bars: dict[tuple[str, str], float] = {}
    for row, cost, published in _costs(rows):
        bars[row["server"], row["planner"]] = cost
        if published:
            bars[row["server"], "published"] = published
    return bars


if __name__ == "__main__":
    raise SystemExit(main())
