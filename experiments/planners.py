"""Planners against the fastest possible step, and against each other.

Small training steps are drawn (`experiments.drawn_steps`), each with a card and a
budget between the largest op's working set and the peak without a plan. `plan_step`
plans each step as `fit` does. Mixed-integer programming (`experiments.least_seconds`)
gives a lower bound over all recomputation and copies, in the bytes that our plan takes
and in the whole budget, of which a plan leaves a part free. IBM's rule plans the same
steps.

Where the solver reaches its time limit the bound is the best proved by then: the true
ratio is lower. Known weakness: no drawn op has several outputs or writes in place.
"""

import statistics
from random import Random
from typing import Any

from experiments.question import COLOURS, Answer, Panel, Series, Verdict, sentences
from experiments.runner import Book
from experiments.stats import Rows
from experiments.subjects import NAMES
from lms.errors import BudgetError
from lms.ir.graph import GraphView
from lms.ir.liveness import lower_bound, peak
from lms.machine.hardware import PRESETS, roofline
from lms.planning.problem import MemoryBudget, PlannedStep, Speeds
from lms.planning.select import plan_step, workload_of
from lms.planning.settings import read_settings

__all__ = ["SETTINGS", "TITLE", "answer", "measure", "parts"]

TITLE = "Planners against the optimum"
SETTINGS = {"graphs": 100, "limit": 5.0}  # seconds of a solver
_DEVICES = ("v100-pcie", "a100-pcie4", "v100-nvlink")
_SHARES = (0.1, 0.9)  # of the way from the largest working set to the plain peak
_OPS = (12, 24)
_GOAL = 1.1
_WAYS = {"taken": "in the plan's own bytes", "budget": "in the whole budget"}


def parts(options: Any) -> range:
    """Return the seeds, one for each step."""
    return range(options.graphs)


def measure(book: Book, seed: int, options: Any) -> None:
    """Plan a step and bound it."""
    key = {"kind": "drawn", "seed": seed, "limit": options.limit}
    book.once(key, lambda: _measured(seed, options.limit))


def _measured(seed: int, limit: float) -> dict[str, Any]:
    from experiments.drawn_steps import drawn_step

    random = Random(seed)
    graph = drawn_step(seed, random.randint(*_OPS))
    device = random.choice(_DEVICES)
    low, high = lower_bound(graph), peak(graph)
    budget = int(low + random.uniform(*_SHARES) * (high - low))
    hardware = PRESETS[device]
    speeds = Speeds(costs=roofline(graph, hardware), hardware=hardware)
    rule = _planned(graph, speeds, budget, thresholds={})
    planned = _planned(graph, speeds, budget)
    ops = sum(not op.persistent for op in graph.ops)
    row: dict[str, Any] = {"ops": ops, "device": device, "plain_bytes": high}
    row |= {"budget_bytes": budget, "busy_seconds": speeds.costs.total}
    row |= {"error": planned if isinstance(planned, str) else None}
    timeline = None if isinstance(rule, str) else rule.timeline
    row["rule_seconds"] = timeline.seconds if timeline else None
    if not isinstance(planned, str):
        row |= _bound(graph, speeds, planned, limit)
    return row


def _planned(
    graph: GraphView, speeds: Speeds, budget: int, **knobs: Any
) -> PlannedStep | str:
    """Plan a step; return the refusal's text if there is no plan."""
    workload = workload_of(graph, graph, lambda: speeds)
    memory = MemoryBudget(total=budget, margin=0, persistent=0)
    try:
        return plan_step(workload, read_settings(budget=budget, **knobs), memory, None)
    except BudgetError as error:
        return str(error)


def _bound(
    graph: GraphView, speeds: Speeds, planned: PlannedStep, limit: float
) -> dict[str, Any]:
    from experiments.least_seconds import least_seconds, step_of

    assert planned.timeline is not None  # the budget is below the plain peak
    taken = max(planned.memory.device_peak, planned.timeline.device_peak)
    row = {"plan_seconds": planned.timeline.seconds, "taken_bytes": taken}
    row |= {"swaps": len(planned.plan.swaps), "twice": len(planned.plan.recomputed)}
    step = step_of(graph, speeds.costs, speeds.hardware)
    for way, memory in (("taken", taken), ("budget", planned.budget.step)):
        seconds, solved = least_seconds(step, max(memory, taken), limit=limit)
        row |= {f"{way}_seconds": seconds, f"{way}_solved": solved}
    return row


def answer(rows: Rows) -> Answer:
    """Report our planned steps over the bound, and the rule's."""
    lines = {
        (of, way): found
        for of, way in (("plan", "taken"), ("plan", "budget"), ("rule", "budget"))
        if (found := _ratios(rows, way, f"{of}_seconds"))
    }
    if ("plan", "taken") not in lines:
        return Answer(finding="No step was planned.", table=("", ["-"], []))
    ours = {way: lines["plan", way] for way in _WAYS}
    verdicts: list[Verdict] = []
    for way, words in _WAYS.items():
        middle, above = statistics.median(ours[way]), sum(r > _GOAL for r in ours[way])
        text = (
            f"{words} {len(ours[way])} drawn steps of at most {_OPS[1]} ops take "
            f"{middle:.2f} times the least possible seconds in the median, "
            f"{ours[way][-1]:.2f} at worst; {above} take more than {_GOAL}, the goal "
            "of the median"
        )
        verdicts.append((middle <= _GOAL, text))
    columns = ["planner", "bound", "steps", "solved", "median", "90th percentile"]
    body: list[list[str]] = []
    series: list[Series] = []
    for (of, way), ratios in lines.items():
        known = [row for row in rows if row.get(f"{of}_seconds")]
        solved = sum(bool(row.get(f"{way}_solved")) for row in known)
        two = ratios * 2 if len(ratios) == 1 else ratios
        nine = statistics.quantiles(two, n=10, method="inclusive")[-1]
        values = (statistics.median(ratios), nine, ratios[-1])
        name, label = ("ours", "callback") if of == "plan" else ("IBM's rule", "rule")
        numbers = [str(len(ratios)), str(solved), *(f"{v:.2f}" for v in values)]
        body.append([name, _WAYS[way], *numbers])
        last = max(1, len(ratios) - 1)
        series.append(
            Series(
                points=[(i / last, v) for i, v in enumerate(ratios)],
                colour=COLOURS[label],
                label=f"{NAMES[label]}, {_WAYS[way]}",
                marker="",
                line=":" if (of, way) == ("plan", "budget") else "-",
            )
        )
    x, y = "share of the drawn steps, sorted", "step over the bound"
    return Answer(
        finding=sentences(verdicts),
        table=("A step over the least that is possible", [*columns, "worst"], body),
        verdicts=verdicts,
        panels=[[Panel(x=x, y=y, series=series, level=1.0)]],
        headline="How much slower our plans are than the best possible",
    )


def _ratios(rows: Rows, way: str, of: str) -> list[float]:
    known = (row for row in rows if row.get(of) and row.get(f"{way}_seconds"))
    return sorted(row[of] / row[f"{way}_seconds"] for row in known)
