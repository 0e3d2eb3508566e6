"""One trial of `simulator_accuracy`: plan a step into this device, run it, compare."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from experiments.subjects import SUBJECTS
from lms import fit_in_memory
from lms.choosing import plain_plan
from lms.costs import completed
from lms.forecast import Workload, workload_of
from lms.lanes import simulate
from lms.pipeline import FittedFunction
from lms.plan import SwapPlan, planned_graph, validate_plan
from lms.tf.measuring import forget_measurements
from profiling.record import write_json

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one trial; the result goes to `--output`.

    With `--probe` nothing is planned: what the step needs, and what it takes.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=SUBJECTS, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--probe", action="store_true")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    model, arrays = SUBJECTS[options.model]()
    batch = [tf.constant(array) for array in arrays]

    def step(x: tf.Tensor, y: tf.Tensor) -> object:
        return model.train_step((x, y))

    if options.probe:
        workload = workload_of(step, batch)
        plain = tf.function(step)
        seconds = _step_seconds(lambda: plain(*batch), options.steps)
        write_json(
            options.output,
            {
                "unplanned_peak_bytes": _unplanned(workload),
                "persistent_bytes": workload.persistent_bytes,
                "op_seconds": workload.speeds.costs.total,
                "step_seconds": seconds,
            },
        )
        return 0
    fitted = fit_in_memory(step, batch)
    promised = fitted.report[0]  # before the first step
    seconds = _undisturbed(fitted, batch, options.steps)
    report = fitted.report[0]
    names = ("budget_bytes", "measured_peak_bytes")
    names += ("persistent_bytes", "lower_bound_bytes", "swap_count", "replans")
    names += ("swapped_out_bytes", "swapped_in_bytes", "planning_seconds")
    write_json(
        options.output,
        {name: getattr(report, name) for name in names}
        | {
            "predicted_peak_bytes": promised.predicted_peak_bytes,
            "predicted_seconds": promised.predicted_seconds,
            "step_seconds": seconds,
            "predicted_seconds_after": _predicted_now(step, batch, promised.plan),
        },
    )
    return 0


def _predicted_now(
    step: Callable[..., object], batch: Sequence[Any], plan: SwapPlan
) -> float:
    """What the same plan would be predicted to take if ops were measured now."""
    forget_measurements()
    workload = workload_of(step, batch)
    graph, hardware = planned_graph(workload.graph, plan), workload.speeds.hardware
    validate_plan(graph, plan)
    costs = completed(workload.speeds.costs, graph, hardware)
    return simulate(graph, plan, costs, hardware).seconds


def _unplanned(workload: Workload) -> int:
    return workload.persistent_bytes + plain_plan(workload.graph).peak


def _undisturbed(fitted: FittedFunction, batch: Sequence[Any], steps: int) -> Any:
    """Seconds of steps in which nothing was planned anew."""
    while True:
        before = fitted.report[0].replans
        seconds = _step_seconds(lambda: fitted(*batch), steps)
        if fitted.report[0].replans == before:
            return seconds


def _step_seconds(run: Callable[[], object], steps: int) -> list[float]:
    """Seconds of each step after two, which initialise."""
    taken = []
    for _ in range(steps + 2):
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return taken[2:]


if __name__ == "__main__":
    raise SystemExit(main())
