"""How does planning time grow with the number of ops?

Planning is what `lms.fit.fitted` does between tracing and rewriting: an execution order
(`schedule`), then the fastest plan that the modelled allocator can place (`best_plan`):
one that only moves tensors, and one that runs ops a second time too. The room is half
of the unplanned peak; the device has a thirty-second more, as the pipeline leaves it.

The graphs are drawn: a U-Net of five levels, forward, backward and Adam's updates, at
the sizes of a 144^3 volume with 16 filters, with more layers for more ops. Two traced
training steps stand beside them: the case study's U-Net and a ResNet50.

Goal: 20,000 ops are planned in less than 10 s.

Others use the machine too: the processor's own seconds stand beside the clock's. So do
the seconds in which the plan is played over time (`simulate`); the goal is less than
1 s for 20,000 ops.

Known weakness: an op count says little of the work. About half of the drawn ops touch
large tensors, which are what planners deal with; in traced graphs it is about a fifth.
The more ops a step has, the fewer choices are tried (`search_effort_ops` in
`lms.planning.tuning`).
"""

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from experiments.charts import Panel, Series, draw_panels
from experiments.drawn_graphs import unet_like
from experiments.ledger import Head, Ledger, Rows
from experiments.plots import COLOURS, MUTED, source
from experiments.question import Answer, Finding, settings_of
from lms.ir.graph import GraphView
from lms.ir.liveness import lower_bound
from lms.ir.plan import SwapPlan, planned_graph
from lms.machine.costs import roofline
from lms.machine.hardware import preset
from lms.planning.candidates import Filters
from lms.planning.prefetch import Speeds
from lms.planning.problem import UNLIMITED
from lms.planning.risk import Headroom
from lms.planning.schedule import schedule
from lms.planning.strategies import PlanRequest, best_plan
from lms.planning.tuning import TUNING
from lms.simulation.executor import simulate
from lms.simulation.memory import allocator_peak

__all__ = ["ANSWER", "main"]

_HARDWARE = "v100-pcie"  # whose times copies are planned for
_EMULATED = (
    "Nothing ran on a device: graphs are drawn or traced, then planned on the CPU."
)
_GOAL_OPS, _GOAL_SECONDS, _PLAYED_SECONDS = 20_000, 10.0, 1.0


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
    settings = settings_of(options, "repeats", "share")
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
    unplanned = allocator_peak(graph, plain, capacity=UNLIMITED) or 0
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
    fitted = best_plan([ordered], request)
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


def _finding(head: Head, rows: Rows) -> Finding:
    largest = max(rows, key=lambda row: row["ops"])
    quick = [row for row in rows if row["ops"] <= 5000]
    within = max(quick or rows, key=lambda row: row["ops"])
    text = (
        f"{within['ops']:,} ops are planned in {within['seconds']:.1f} s, "
        f"{largest['ops']:,} in {largest['seconds']:.1f} s."
    )
    columns = ["graph", "ops", "planning", "of the processor", "of it the order"]
    columns += ["playing it", "swaps", "run twice"]
    body = [
        [
            row["graph"],
            f"{row['ops']:,}",
            f"{row['seconds']:.2f} s",
            f"{row['processor_seconds']:.2f} s",
            f"{row['order_seconds']:.2f} s",
            f"{row['simulation_seconds']:.2f} s",
            "-" if row["swaps"] is None else f"{row['swaps']:,}",
            "-" if row["twice"] is None else f"{row['twice']:,}",
        ]
        for row in rows
    ]
    repeats = head["settings"]["repeats"]
    return text, (f"Planning time, median of {repeats}", columns, body)


def _goals(_: Head, rows: Rows) -> Iterator[tuple[str, bool]]:
    within = [row for row in rows if row["ops"] <= _GOAL_OPS]
    for name, word, most in (
        ("seconds", "planned", _GOAL_SECONDS),
        ("simulation_seconds", "simulated", _PLAYED_SECONDS),
    ):
        slowest = max((row[name] for row in within), default=float("inf"))
        text = f"up to {_GOAL_OPS:,} ops are {word} in less than {most:g} s"
        yield f"{text}: at most {slowest:.2f} s.", slowest < most


def _plot(head: Head, rows: Rows, path: Path) -> None:
    drawn = [(row["ops"], row["seconds"]) for row in rows if row["graph"] == "drawn"]
    traced = [row for row in rows if row["graph"] != "drawn"]
    limit = [(_GOAL_OPS, _GOAL_SECONDS)]
    label = f"goal: {_GOAL_OPS:,} ops in less than {_GOAL_SECONDS:g} s"
    blue, red = COLOURS["threshold"], COLOURS["budget"]
    series = [
        Series(points=drawn, colour=blue, label="drawn U-Nets", line="-"),
        *(
            Series(
                points=[(row["ops"], row["seconds"])],
                colour=red,
                label=row["graph"],
                marker=marker,
            )
            for row, marker in zip(traced, "s^", strict=False)
        ),
        Series(points=limit, colour=MUTED, label=label, marker="v"),
    ]
    panel = Panel(
        x="ops of the training step (above 6,000 less is tried)",
        y="seconds to plan",
        series=series,
        xlim=(0, None),
        ylim=(0, None),
    )
    draw_panels(
        [[panel]],
        path,
        title="Planning a training step takes seconds",
        note=source(head),
        size=(9, 4.8),
    )


ANSWER = Answer(
    name="planning_scale",
    title="Planning time against the number of ops",
    emulated=_EMULATED,
    about=__doc__,
    add_settings=_add_settings,
    run=_run,
    finding=_finding,
    plot=_plot,
    goals=_goals,
)
main = ANSWER.main

if __name__ == "__main__":
    raise SystemExit(main())
