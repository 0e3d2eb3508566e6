"""A training step over time, measured and predicted: python -m profiling.step_timeline.

Shows compute, copies in each direction and waits of one batch, as the case study does.
Measured lanes come from TensorFlow's profiler or, on an emulated card, from the card's
driver. Predicted lanes come from the simulator, by the plan and measured op times.

    python -m lms emulate --dry --card v100-pcie --slow-motion 30 -- \
        python -m profiling.step_timeline --output step.json --budget 57MiB \
        profiling/example.py:unet
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.progress import Progress

from lms.commands.model_file import Subject, read_subject
from lms.errors import LMSError
from lms.ir.graph import GraphView
from lms.ir.plan import SwapPlan
from lms.planning.settings import RECOMPUTE_WORDS
from lms.simulation.executor import Dependencies, simulate
from lms.simulation.timeline import Lane, Timeline
from profiling.measured import measured_steps
from profiling.record import paced, slow_motion, write_result
from profiling.timelines import (
    condensed,
    figures_of,
    median_figures,
    timeline_to_json,
)

if TYPE_CHECKING:
    from profiling.sessions import Session
    from profiling.steps import StepGraph, TrainingStep

__all__ = ["add_subject", "main", "results_of", "waits_by_op", "warm_up"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        prog="python -m profiling.step_timeline",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_subject(parser)
    parser.add_argument("--warmup", type=int, default=20, help="warm-up steps (20)")
    parser.add_argument("--steps", type=int, default=30, help="measured steps (30)")
    options = parser.parse_args(arguments)
    try:
        results = _measure(read_subject(options.subject), options)
    except (LMSError, ValueError) as error:
        print(f"step_timeline: {error}", file=sys.stderr)
        return 2
    settings = {key: str(value) for key, value in vars(options).items()}
    write_result(options.output, "step_timeline", settings, results)
    _say(results)
    print(f"written: {options.output}")
    return 0


def add_subject(parser: argparse.ArgumentParser, *, budget: bool = True) -> None:
    """Add the arguments of all commands that take a model."""
    parser.add_argument("subject", metavar="FILE.py:function")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    if budget:
        parser.add_argument(
            "--budget", metavar="SIZE", help="memory of the step; all by default"
        )
        text = "which ops may be recomputed, as for `python -m lms plan`"
        parser.add_argument(
            "--recompute", choices=RECOMPUTE_WORDS, default="auto", help=text
        )


def waits_by_op(graph: GraphView, plan: SwapPlan) -> dict[str, set[tuple[Lane, str]]]:
    """Find the copies that each op waits for, by the plan.

    Args:
        graph: The step, in any order.
        plan: A valid plan.
    """
    waits: dict[str, set[tuple[Lane, str]]] = {}
    for copy in Dependencies(graph, plan).copies:
        for position in (*copy.ops, *copy.beside):
            waits.setdefault(plan.order[position], set()).add((copy.lane, copy.tensor))
    return waits


def warm_up(step: "TrainingStep", count: int, advance: Callable[[], None]) -> None:
    """Run steps without measuring: the first step initialises."""
    for _ in range(max(2, count)):
        step.run()
        advance()


def _measure(subject: Subject, options: argparse.Namespace) -> dict[str, Any]:
    with Progress(transient=True) as bars:
        bar = bars.add_task("planning", total=None)
        from profiling.sessions import record_steps
        from profiling.steps import analyse, fit_step

        step = fit_step(subject, options.budget, options.recompute)
        bars.update(bar, description="measuring ops")
        known = analyse(subject, step.report.plan)
        total = max(2, options.warmup) + options.steps
        bars.update(bar, description="steps", total=total)
        warm_up(step, options.warmup, lambda: bars.advance(bar))
        session = record_steps(
            step.run, options.steps, advance=lambda: bars.advance(bar)
        )
    return results_of(step, known, session)


def results_of(
    step: "TrainingStep", known: "StepGraph", session: "Session"
) -> dict[str, Any]:
    """Compare recorded steps with their prediction.

    Seconds are the card's: measured seconds over its slow motion.

    Args:
        step: The step that ran.
        known: Its graph, measured costs and hardware.
        session: The recorded steps.
    """
    plan, hardware, slow = step.report.plan, known.hardware, slow_motion()
    waits = waits_by_op(known.graph, plan)
    from profiling.sessions import MARK

    count = len(session.seconds)
    spans = [
        replace(span, start=span.start / slow, end=span.end / slow)
        for span in session.spans
    ]
    steps = measured_steps(spans, count, mark=MARK, waits=waits)
    steps = [condensed(step) for step in steps]
    predicted = condensed(simulate(known.graph, plan, known.costs, hardware))
    figures = [figures_of(timeline) for timeline in steps]
    return {
        "device": hardware.name,
        "hardware": asdict(hardware),
        "report": paced(step.report.numbers()),
        "step_seconds": [seconds / slow for seconds in session.seconds],
        "steps": figures,
        "median": median_figures(figures),
        "predicted": figures_of(predicted),
        "measured_timeline": timeline_to_json(_typical(steps)),
        "predicted_timeline": timeline_to_json(predicted),
    }


def _typical(steps: Sequence[Timeline]) -> Timeline:
    """Choose the step whose length is nearest to the median."""
    middle = median(step.seconds for step in steps)
    return min(steps, key=lambda step: abs(step.seconds - middle))


def _say(results: dict[str, Any]) -> None:
    for name in ("median", "predicted"):
        found = results[name]
        print(
            f"{name:9} {found['seconds']:.3g} s, compute busy "
            f"{found['utilisation']:.0%}, host to device "
            f"{found['h2d_throughput'] / 1e9:.3g} GB/s, device to host "
            f"{found['d2h_throughput'] / 1e9:.3g} GB/s"
        )


if __name__ == "__main__":
    sys.exit(main())
