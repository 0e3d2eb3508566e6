"""The one door to the planners for `test_recorded_plans`: a question, an answer.

All that is asked of them is asked in `planned`. Whoever moves modules or names changes
this file, and no record.

Seconds come from a roofline of a preset, and are compared to nine digits: Python 3.12
adds floats up more exactly than 3.11.
"""

import hashlib
from dataclasses import replace

from lms.errors import BudgetError
from lms.ir.graph import GraphView
from lms.machine.hardware import PRESETS, Hardware, roofline
from lms.planning.problem import Speeds, budget_in
from lms.planning.select import plain_plan, plan_step, workload_of
from lms.planning.settings import read_settings
from lms.simulation.executor import simulate
from tests.planning.questions import Answer, Question
from tests.planning.stored import StoredStep

__all__ = ["answer", "plain_peak"]


def answer(step: StoredStep, question: Question) -> Answer:
    """Return the facts of a plan, or the reason why none exists."""
    try:
        return planned(_anew(step), question)
    except BudgetError as error:
        refusal = {"refused": str(error), "op": error.op_name}
        return refusal | {"least_bytes": error.least_bytes}


def planned(step: StoredStep, question: Question) -> Answer:
    """The plan, and the step that obeys it.

    Raises:
        BudgetError: If no plan fits.
    """
    graph, own, hardware = step.graph, step.own, _hardware(question)
    settings = read_settings(**question.knobs)
    speeds = Speeds(costs=roofline(graph, hardware), hardware=hardware)
    budget = budget_in(
        hardware.memory, asked=settings.budget, persistent=step.persistent
    )
    holes, unsealed = question.holes, question.unsealed
    budget = replace(budget, holes=holes, fences=sum(holes), unsealed=unsealed)
    found = plan_step(workload_of(graph, own, lambda: speeds), settings, budget, None)
    plan, played = found.plan, found.timeline
    if played is None:
        known = roofline(found.graph, hardware).seconds, speeds.costs.seconds
        costs = replace(speeds.costs, seconds={**known[0], **known[1]})
        played = simulate(found.graph, plan, costs, hardware)
    return {
        "planner": plan.planner,
        "swaps": len(plan.swaps),
        "swap_ins": sum(len(swap.swap_ins) for swap in plan.swaps),
        "swapped_out_bytes": plan.swapped_out_bytes,
        "swapped_in_bytes": plan.swapped_in_bytes,
        "recomputed": len(plan.recomputed),
        "chained": len(plan.chain),
        "order": _digest(" ".join(plan.order)),
        "plan": _digest(replace(plan, chosen="").to_json()),
        "risk": found.risk.name,
        "sealed": found.sealed,
        "small_pool": found.small_pool.bytes,
        "peak": found.peak_bytes,
        "simulated_peak": found.memory.device_peak,
        "host_peak": found.memory.host_peak,
        "seconds": float(f"{played.seconds:.9g}"),
    }


def plain_peak(step: StoredStep) -> int:
    """Bytes of the step with nothing planned."""
    return plain_plan(step.own, _kept(step)).peak


def _kept(step: StoredStep) -> int:
    return step.own.constant_bytes - step.graph.constant_bytes


def _anew(step: StoredStep) -> StoredStep:
    """The step without what earlier questions found out about its graphs."""
    graph = GraphView(ops=step.graph.ops, results=step.graph.results)
    own = GraphView(ops=step.own.ops, results=step.own.results)
    return replace(step, graph=graph, own=own)


def _hardware(question: Question) -> Hardware:
    found = PRESETS[question.hardware]
    return replace(found, memory=question.memory or found.memory)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
