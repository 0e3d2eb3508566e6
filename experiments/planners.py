"""How good are the planners: against the fastest possible step, and against each other?

Small training steps are drawn (`experiments.drawn_steps`), each with a card and a
budget between the largest op's working set and the peak without a plan. `plan_step`
plans them as `fit` does. A bound that no plan goes below is computed by mixed-integer
programming (`experiments.least_seconds`), of what runs again and of what moves, in
the bytes that our plan takes and in the whole budget, of which a plan leaves a part
free. IBM's rule plans the same steps. How long planning takes is in the rows of all
trainings.

Where the solver runs into its limit the bound is what it has proved by then, so that
the true ratio is lower than the one shown. Known weakness: no drawn op has several
outputs, writes in place or shares a buffer.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any

from experiments.charts import COLOURS, Panel, Series
from experiments.question import Answer, sentences
from experiments.runner import Book, Row, Rows
from lms.errors import BudgetError
from lms.ir.graph import GraphView
from lms.ir.liveness import lower_bound, peak
from lms.machine.costs import roofline
from lms.machine.hardware import preset
from lms.planning.plan_step import plan_step
from lms.planning.prefetch import Speeds
from lms.planning.problem import MemoryBudget, PlannedStep
from lms.planning.select import workload_of
from lms.planning.settings import Settings, read_settings

__all__ = ["TITLE", "add_settings", "answer", "units"]

TITLE = "Planners against the optimum"
_DEVICES = ("v100-pcie", "a100-pcie4", "v100-nvlink")
_SHARES = (0.1, 0.9)  # of the way from the largest working set to the plain peak
_OPS = (12, 24)
_GOAL, _ROUNDED = 1.10, 1e-6
_WAYS = {"taken": "in the plan's own bytes", "budget": "in the whole budget"}


def add_settings(parser: Any) -> None:
    """How many steps."""
    parser.add_argument("--graphs", type=int, default=100)
    text = "seconds of a solver"
    parser.add_argument("--limit", type=float, default=5.0, help=text)


def units(options: Any) -> Iterable[Callable[[Book], None]]:
    """A unit for each step."""
    for seed in range(options.graphs):
        yield lambda book, seed=seed: _note(book, seed, options.limit)


def _note(book: Book, seed: int, limit: float) -> None:
    key = {"kind": "drawn", "seed": seed, "limit": limit}
    book.once(key, lambda: _measured(seed, limit))


def _measured(seed: int, limit: float) -> dict[str, Any]:
    from experiments.drawn_steps import drawn_step

    random = Random(seed)
    graph = drawn_step(seed, random.randint(*_OPS))
    device = random.choice(_DEVICES)
    low, high = lower_bound(graph), peak(graph)
    budget = int(low + random.uniform(*_SHARES) * (high - low))
    hardware = preset(device)
    speeds = Speeds(costs=roofline(graph, hardware), hardware=hardware)
    row: dict[str, Any] = {
        "ops": sum(not op.persistent for op in graph.ops),
        "device": device,
        "plain_bytes": high,
        "budget_bytes": budget,
        "busy_seconds": speeds.costs.total,
        "error": None,
        "rule_seconds": _rule(graph, speeds, budget),
    }
    try:
        planned = _planned(graph, speeds, budget, Settings(budget=budget))
    except BudgetError as error:
        return row | {"error": str(error)}
    return row | _judged(graph, speeds, planned, limit)


def _planned(
    graph: GraphView, speeds: Speeds, budget: int, settings: Settings
) -> PlannedStep:
    workload = workload_of(graph, graph, lambda: speeds)
    room = MemoryBudget(total=budget, margin=0, persistent=0)
    return plan_step(workload, settings, room, None)


def _rule(graph: GraphView, speeds: Speeds, budget: int) -> float | None:
    settings = read_settings(budget=budget, thresholds={})
    try:
        planned = _planned(graph, speeds, budget, settings)
    except BudgetError:
        return None
    return None if planned.timeline is None else planned.timeline.seconds


def _judged(
    graph: GraphView, speeds: Speeds, planned: PlannedStep, limit: float
) -> dict[str, Any]:
    from experiments.least_seconds import least_seconds, step_of

    assert planned.timeline is not None  # the budget is below the plain peak
    taken = max(planned.memory.device_peak, planned.timeline.device_peak)
    row: dict[str, Any] = {
        "plan_seconds": planned.timeline.seconds,
        "taken_bytes": taken,
        "swaps": len(planned.plan.swaps),
        "twice": len(planned.plan.recomputed),
    }
    step = step_of(graph, speeds.costs, speeds.hardware)
    for way, memory in (("taken", taken), ("budget", planned.budget.step)):
        bound = least_seconds(step, max(memory, taken), limit=limit)
        row |= {f"{way}_seconds": bound.seconds, f"{way}_solved": bound.solved}
    return row


def _ratios(rows: Rows, way: str, of: str = "plan_seconds") -> list[float]:
    found = (
        row[of] / row[f"{way}_seconds"]
        for row in rows
        if row.get(of) and row.get(f"{way}_seconds")
    )
    return sorted(found)


def answer(rows: Rows) -> Answer:
    """Our step over the bound, ."""
    drawn = [row for row in rows if row["kind"] == "drawn"]
    ours = {way: _ratios(drawn, way) for way in _WAYS}
    if not ours["taken"]:
        return Answer(finding="No step was planned.", table=("", ["-"], []))
    least = min(min(one) for one in ours.values())
    verdicts: list[tuple[bool | None, str]] = [
        (least >= 1 - _ROUNDED, f"no plan is faster than its bound: least {least:.4f}")
    ]
    for way, words in _WAYS.items():
        middle = statistics.median(ours[way])
        text = f"our steps take {middle:.2f} times the bound in the median, {words}"
        verdicts.append((middle <= _GOAL, f"{text}; wanted {_GOAL}"))
    columns = [
        "planner",
        "bound",
        "steps",
        "solved",
        "median",
        "90th percentile",
        "worst",
    ]
    body = [_line(drawn, way, "plan_seconds") for way in _WAYS]
    rule = _ratios(drawn, "budget", "rule_seconds")
    body += [_line(drawn, "budget", "rule_seconds")] if len(rule) > 1 else []
    return Answer(
        finding=sentences(verdicts),
        table=(
            "A step over the least that is possible",
            columns,
            body,
        ),
        verdicts=verdicts,
        panels=[[_panel(ours, rule)]],
        headline="How far plans are from what no plan can go below",
    )


def _line(rows: Sequence[Row], way: str, of: str) -> list[str]:
    ratios = _ratios(rows, way, of)
    solved = sum(bool(row.get(f"{way}_solved")) for row in rows if row.get(of))
    nine = (
        statistics.quantiles(ratios, n=10, method="inclusive")[-1]
        if len(ratios) > 1
        else ratios[0]
    )
    values = (statistics.median(ratios), nine, ratios[-1])
    name = "ours" if of == "plan_seconds" else "IBM's rule"
    return [
        name,
        _WAYS[way],
        str(len(ratios)),
        str(solved),
        *(f"{v:.2f}" for v in values),
    ]


def _panel(ours: Mapping[str, Sequence[float]], rule: Sequence[float]) -> Panel:
    callback, other = COLOURS["callback"], COLOURS["rule"]
    lines = [
        (ours["taken"], callback, "-", "the callback, in its own bytes"),
        (ours["budget"], callback, ":", "the callback, in the whole budget"),
        (rule, other, "-", "IBM's rule, in the whole budget"),
    ]
    series = [
        Series(
            points=[(i / max(1, len(r) - 1), v) for i, v in enumerate(r)],
            colour=colour,
            label=label,
            marker="",
            line=line,
        )
        for r, colour, line, label in lines
        if r
    ]
    return Panel(
        x="share of the drawn steps, sorted",
        y="step over the bound",
        series=series,
        level=1.0,
    )
