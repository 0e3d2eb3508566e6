"""How does planning time grow with the number of ops?

Planning is what `lms.pipeline` does between tracing and rewriting: an execution order
(`schedule`), then the fastest plan that the modelled allocator can place (`best_plan`):
one that only moves tensors, and one that runs ops a second time too. The room is half
of the unplanned peak; the device has a thirty-second more, as the pipeline leaves it.

The graphs are drawn: a U-Net of five levels, forward, backward and Adam's updates, at
the sizes of a 144^3 volume with 16 filters, with more layers for more ops. Two traced
training steps stand beside them: the case study's U-Net and a ResNet50.

Claim: 20,000 ops are planned in less than 10 s.

Others use the machine too: the processor's own seconds stand beside the clock's. So do
the seconds in which the plan is played over time (`simulate`), claimed to be less than
1 s for 20,000 ops.

Known weakness: an op count says little of the work. About half of the drawn ops touch
large tensors, which are what planners deal with; in traced graphs it is about a fifth.
"""

import itertools
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from experiments.drawn_graphs import unet_like
from experiments.ledger import Ledger
from experiments.lines import command_line, read_lines
from lms.ir.graph import GraphView
from lms.ir.liveness import lower_bound
from lms.ir.plan import SwapPlan, planned_graph
from lms.machine.costs import roofline
from lms.machine.hardware import preset
from lms.planning.candidates import Filters
from lms.planning.memory_budget import UNLIMITED
from lms.planning.prefetch import Speeds
from lms.planning.risk import Headroom
from lms.planning.schedule import schedule
from lms.planning.strategies import PlanRequest, best_plan
from lms.planning.tuning import TUNING
from lms.simulation.executor import simulate
from lms.simulation.memory import allocator_peak

__all__ = ["main"]

_NAME = "planning_scale"
_HARDWARE = "v100-pcie"  # whose times copies are planned for
_UNLIMITED = 1 << 62
_CLAIMED_OPS, _CLAIMED_SECONDS, _PLAYED_SECONDS = 20_000, 10.0, 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or draw.

    Args:
        arguments: The words after `python -m experiments.planning_scale`.

    Returns:
        The exit status: 1 if the claim does not hold.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = command_line(_NAME, __doc__, _add_settings).parse_args(words)
    if options.command == "draw":
        return _draw(options.results, options.figure)
    _run(options)
    return 0


def _add_settings(parser: Any) -> None:
    counts = [1000, 2000, 5000, 10000, 20000]
    parser.add_argument("--ops", type=int, nargs="*", default=counts)
    parser.add_argument("--repeats", type=int, default=3, help="the median counts")
    parser.add_argument("--share", type=float, default=0.5, help="of the peak, as room")
    parser.add_argument(
        "--models",
        nargs="*",
        choices=("unet", "resnet50"),
        default=["unet", "resnet50"],
        help="to trace besides",
    )


def _run(options: Any) -> None:
    settings = {"repeats": options.repeats, "share": options.share}
    ledger = Ledger(options.results, settings, anew=options.anew)
    for name, graph in itertools.chain(
        (("drawn", unet_like(count)) for count in options.ops),
        _traced(options.models),
    ):
        row = ledger.once(
            {"graph": name, "ops": len(graph.ops)},
            lambda graph=graph: _measured(graph, options),
        )
        print(f"{name}: {row['ops']:,} ops, {row['seconds']:.2f} s", flush=True)


def _measured(graph: GraphView, options: Any) -> dict[str, Any]:
    plain = SwapPlan(planner="none", order=tuple(op.name for op in graph.ops))
    unplanned = allocator_peak(graph, plain, capacity=_UNLIMITED) or 0
    budget = int(unplanned * options.share)
    times = ("seconds", "processor_seconds", "order_seconds", "simulation_seconds")
    runs = [_timed(graph, budget) for _ in range(options.repeats)]
    return {
        "unplanned_bytes": unplanned,
        "lower_bound_bytes": lower_bound(graph),
        "room_bytes": budget,
        **{key: statistics.median(run[key] for run in runs) for key in times},
        "slowest_seconds": max(run["seconds"] for run in runs),
        **{key: runs[0][key] for key in ("chained", "swaps", "twice", "peak_bytes")},
    }


def _timed(graph: GraphView, budget: int) -> dict[str, Any]:
    """Plan once, from a graph that nothing was asked about before."""
    fresh = GraphView(ops=graph.ops, results=graph.results)
    hardware = preset(_HARDWARE)
    speeds = Speeds(costs=roofline(fresh, hardware), hardware=hardware)
    started, busy = time.perf_counter(), time.process_time()
    ordered = schedule(fresh)
    order_seconds = time.perf_counter() - started
    margin = budget // TUNING.margin_part
    request = PlanRequest(
        budget=budget,
        headroom=Headroom(free=margin, bound=UNLIMITED),
        speeds=speeds,
        filters=Filters(),
    )
    fitted = best_plan(ordered, request)
    taken = {
        "seconds": time.perf_counter() - started,
        "processor_seconds": time.process_time() - busy,
        "simulation_seconds": 0.0,
    }
    if fitted is not None:
        planned = planned_graph(ordered, fitted.plan)
        started = time.perf_counter()
        simulate(planned, fitted.plan, speeds.costs, hardware)
        taken["simulation_seconds"] = time.perf_counter() - started
    return {
        **taken,
        "order_seconds": order_seconds,
        "chained": 0 if fitted is None else len(fitted.plan.chain),
        "swaps": None if fitted is None else len(fitted.plan.swaps),
        "twice": None if fitted is None else len(fitted.plan.recomputed),
        "peak_bytes": None if fitted is None else fitted.peak,
    }


def _traced(models: Sequence[str]) -> Iterator[tuple[str, GraphView]]:
    """Training steps of real models; only this needs TensorFlow."""
    if not models:
        return
    import keras
    import tensorflow as tf

    from lms.tf.capture.specialising import specialise
    from lms.tf.capture.tracing import input_specs, trace
    from lms.tf.measure.devices import find_device
    from unet3d.model import build_unet

    def graph(model: Any, *data: tf.TensorSpec) -> GraphView:
        model.optimizer.build(model.trainable_variables)
        traced = trace(lambda x, y: model.train_step((x, y)), data)
        device = find_device().full_name
        return specialise(traced, input_specs(traced), device=device).graph

    if "unet" in models:
        yield (
            "U-Net, 144^3",
            graph(
                build_unet(144, filters=16, depth=5),
                tf.TensorSpec((1, 144, 144, 144, 4), tf.float32),
                tf.TensorSpec((1, 144, 144, 144, 3), tf.uint8),
            ),
        )
    if "resnet50" in models:
        model = keras.applications.ResNet50(weights=cast(Any, None))
        model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
        yield (
            "ResNet50",
            graph(
                model,
                tf.TensorSpec((32, 224, 224, 3), tf.float32),
                tf.TensorSpec((32,), tf.int32),
            ),
        )


_COLUMNS = (
    "graph",
    "ops",
    "swaps",
    "twice",
    "order",
    "in all",
    "most",
    "cpu",
    "play",
)

_TIMES = ("order_", "", "slowest_", "processor_", "simulation_")


def _draw(results: Path, figure: Path) -> int:
    head, rows = read_lines(results)
    console = Console()
    table = Table(
        title=f"Seconds to plan, median of {head['settings']['repeats']}; "
        f"room {head['settings']['share']:.0%} of the unplanned peak",
        title_justify="left",
    )
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column == "graph" else "right")
    for row in rows:
        table.add_row(
            row["graph"],
            f"{row['ops']:,}",
            "no plan" if row["swaps"] is None else f"{row['swaps']:,}",
            "" if row["twice"] is None else f"{row['twice']:,}",
            *(f"{row[f'{name}seconds']:.2f}" for name in _TIMES),
        )
    console.print(table)
    _plot(rows, figure)
    console.print(f"Drawn: {figure}")
    long = [
        row
        for row in rows
        if row["ops"] <= _CLAIMED_OPS and row["simulation_seconds"] >= _PLAYED_SECONDS
    ]
    for row in long:
        console.print(
            f"Failed: {row['ops']:,} ops were simulated in "
            f"{row['simulation_seconds']:.2f} s, claimed is less than "
            f"{_PLAYED_SECONDS:g} s",
            style="red",
        )
    slow = [
        row
        for row in rows
        if row["ops"] <= _CLAIMED_OPS and row["seconds"] >= _CLAIMED_SECONDS
    ]
    for row in slow:
        console.print(
            f"Failed: {row['ops']:,} ops took {row['seconds']:.1f} s, claimed are less "
            f"than {_CLAIMED_SECONDS:g} s for {_CLAIMED_OPS:,}",
            style="red",
        )
    return 1 if slow or long else 0


def _plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(8, 4.5), dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    drawn = [row for row in rows if row["graph"] == "drawn"]
    axes.plot(
        [row["ops"] for row in drawn],
        [row["seconds"] for row in drawn],
        marker="o",
        label="drawn U-Nets",
    )
    traced = (row for row in rows if row["graph"] != "drawn")
    for row, marker in zip(traced, "s^dv", strict=False):
        axes.plot(row["ops"], row["seconds"], marker, ls="", label=row["graph"])
    axes.plot(_CLAIMED_OPS, _CLAIMED_SECONDS, "_", ms=24, color="grey")
    axes.annotate(
        f"claim: {_CLAIMED_OPS:,} ops in less than {_CLAIMED_SECONDS:g} s",
        (_CLAIMED_OPS, _CLAIMED_SECONDS),
        (12, 6),
        textcoords="offset points",
        ha="right",
        color="grey",
    )
    axes.set(
        xlim=(0, None),
        ylim=(0, None),
        xlabel="ops of the training step (above 6,000 less is tried)",
        ylabel="seconds to plan",
    )
    axes.set_title("Planning a training step takes seconds", loc="left", weight="bold")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == "__main__":
    raise SystemExit(main())
