"""How far from the fastest possible step are our plans?

Small training steps are drawn (`experiments.drawn_steps`) with a device each, and a
budget between the largest op's working set and the peak without a plan. `plan_step`
plans them with its default settings. A bound that no plan goes below is computed by
mixed-integer programming (`experiments.least_seconds`): of what runs again and of what
moves, in the execution order that each drawn step has. Ours is the predicted time.

The bound is computed twice: in the bytes that our plan takes at its peak, and in the
whole budget, of which a plan leaves a part free for what is not known of a device.

Claims: no step is faster than its bound, and the median of our time over the bound is
at most 1.10, in the same bytes and in the whole budget; `draw` says which of them hold.
Where the solver runs into its limit the bound is what it has proved by then, so that
the true ratio is lower than the one shown.

Known weakness: no op has several outputs, writes in place or shares a buffer. The bound
may not be reached: it forgives some of what the simulator asks for, and an op may run
any number of times, which a plan has no words for beyond twice. Where tensors are few
and large, one more or less is a large part of the memory.
"""

import statistics
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from experiments.charts import Panel, Series, draw_panels
from experiments.drawn_steps import drawn_step
from experiments.least_seconds import least_seconds, step_of
from experiments.ledger import Head, Ledger, Rows
from experiments.plots import COLOURS, source
from experiments.question import Answer, Finding, settings_of
from lms.errors import BudgetError
from lms.ir.graph import GraphView
from lms.ir.liveness import lower_bound, peak
from lms.machine.costs import roofline
from lms.machine.hardware import preset
from lms.planning.plan_step import plan_step
from lms.planning.prefetch import Speeds
from lms.planning.problem import MemoryBudget, PlannedStep
from lms.planning.select import workload_of
from lms.planning.settings import Settings

__all__ = ["ANSWER", "main"]

_EMULATED = "Nothing ran on a device: steps are drawn, then planned on the CPU."
_DEVICES = ("v100-pcie", "a100-pcie4", "v100-nvlink")
_SHARES = (0.1, 0.9)  # of the way from the largest working set to the plain peak
_GOAL = 1.10
_ROUNDED = 1e-6  # relative: of the solver's numbers
_WAYS = {
    "taken": "in the bytes that the plan takes",
    "budget": "in the whole budget",
}


def _add_settings(parser: Any) -> None:
    parser.add_argument("--graphs", type=int, default=100)
    parser.add_argument("--least-ops", type=int, default=12)
    parser.add_argument("--most-ops", type=int, default=24)
    parser.add_argument("--limit", type=float, default=5.0, help="seconds of a solver")


def _run(options: Any) -> None:
    settings = settings_of(options, "least_ops", "most_ops", "limit")
    ledger = Ledger(options.results, settings, anew=options.anew)
    for seed in range(options.graphs):
        row = ledger.once({"seed": seed}, lambda seed=seed: _measured(seed, options))
        print(f"{seed}: {_ratio(row, 'taken')}, {_ratio(row, 'budget')}", flush=True)


def _measured(seed: int, options: Any) -> dict[str, Any]:
    random = Random(seed)
    graph = drawn_step(seed, random.randint(options.least_ops, options.most_ops))
    device = random.choice(_DEVICES)
    hardware = preset(device)
    speeds = Speeds(costs=roofline(graph, hardware), hardware=hardware)
    low, high = lower_bound(graph), peak(graph)
    budget = int(low + random.uniform(*_SHARES) * (high - low))
    row: dict[str, Any] = {
        "ops": sum(not op.persistent for op in graph.ops),
        "device": device,
        "plain_bytes": high,
        "budget_bytes": budget,
        "busy_seconds": speeds.costs.total,
    }
    try:
        planned = _planned(graph, speeds, budget)
    except BudgetError as error:
        return row | {"error": str(error)}
    return row | _judged(graph, speeds, planned, options.limit)


def _planned(graph: GraphView, speeds: Speeds, budget: int) -> PlannedStep:
    workload = workload_of(graph, graph, lambda: speeds)
    room = MemoryBudget(total=budget, margin=0, persistent=0)
    return plan_step(workload, Settings(budget=budget), room, None)


def _judged(
    graph: GraphView, speeds: Speeds, planned: PlannedStep, limit: float
) -> dict[str, Any]:
    assert planned.timeline is not None  # the budget is below the plain peak
    ours = planned.timeline.seconds
    taken = max(planned.memory.device_peak, planned.timeline.device_peak)
    row: dict[str, Any] = {
        "seconds": ours,
        "taken_bytes": taken,
        "swaps": len(planned.plan.swaps),
        "twice": len(planned.plan.recomputed),
    }
    step = step_of(graph, speeds.costs, speeds.hardware)
    for way, memory in (("taken", taken), ("budget", planned.budget.step)):
        bound = least_seconds(step, max(memory, taken), limit=limit)
        row |= {f"{way}_seconds": bound.seconds, f"{way}_solved": bound.solved}
    return row


def _ratio(row: Any, way: str) -> float | None:
    return row["seconds"] / row[f"{way}_seconds"] if "seconds" in row else None


def _ratios(rows: Rows, way: str) -> list[float]:
    found = (_ratio(row, way) for row in rows)
    return sorted(ratio for ratio in found if ratio is not None)


def _finding(head: Head, rows: Rows) -> Finding:
    body = [[words, *_told(rows, way)] for way, words in _WAYS.items()]
    columns = ["bound", "steps", "solved", "median", "90th percentile", "worst"]
    planned = [row for row in rows if "seconds" in row]
    same, whole = (statistics.median(_ratios(rows, way)) for way in _WAYS)
    text = (
        f"Of {len(rows)} drawn steps {len(planned)} were planned and "
        f"{len(rows) - len(planned)} refused. At the same bytes our plans take "
        f"{same:.2f} times as long as the bound in the median; with all of the budget "
        f"the bound is lower, and it is {whole:.2f} times."
    )
    settings = head["settings"]
    ops = f"{settings['least_ops']} to {settings['most_ops']} ops"
    return text, (f"Our step over the bound, {ops}", columns, body)


def _told(rows: Rows, way: str) -> Iterator[str]:
    ratios = _ratios(rows, way)
    yield str(len(ratios))
    yield str(sum(bool(row.get(f"{way}_solved")) for row in rows))
    nine_of_ten = statistics.quantiles(ratios, n=10, method="inclusive")[-1]
    for value in (statistics.median(ratios), nine_of_ten, ratios[-1]):
        yield f"{value:.2f}"


def _goals(_: Head, rows: Rows) -> Iterator[tuple[str, bool]]:
    least = min(ratio for way in _WAYS for ratio in _ratios(rows, way))
    text = f"the least ratio is {least:.4f}: no step is faster than its bound."
    yield text, least >= 1 - _ROUNDED
    for way, words in _WAYS.items():
        median = statistics.median(_ratios(rows, way))
        text = f"the median {words} is at most {_GOAL}: it is {median:.3f}."
        yield text, median <= _GOAL


def _plot(head: Head, rows: Rows, path: Path) -> None:
    series = [
        Series(
            points=list(enumerate(_ratios(rows, way), start=1)),
            colour=COLOURS[colour],
            label=_WAYS[way],
            marker=".",
            line="-",
        )
        for way, colour in (("budget", "threshold"), ("taken", "budget"))
    ]
    panel = Panel(
        x="drawn steps, each line sorted by its ratio",
        y="our step over the bound",
        series=series,
        level=_GOAL,
        ylim=(0.95, None),
    )
    draw_panels(
        [[panel]],
        path,
        title="How far our plans are from what no plan can go below",
        note=f"Dashed: {_GOAL}, the goal for the median. {source(head)}",
        size=(9, 4.8),
    )


ANSWER = Answer(
    name="optimality",
    title="Our plans against the fastest possible",
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
