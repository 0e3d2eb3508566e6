"""One trial of `simulator_accuracy`: plan a step into this device, run it, compare."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from experiments.quiet import is_quiet, timed, wait_for_quiet
from experiments.subjects import SUBJECTS
from lms import fit_in_memory
from lms.commands.forecast import DeviceWorkload, workload_of
from lms.fit.fitted import FittedFunction
from lms.ir.plan import SwapPlan, planned_graph, validate_plan
from lms.machine.costs import completed
from lms.simulation.executor import simulate
from lms.tf.capture.specialising import specialise
from lms.tf.capture.tracing import input_specs, read_signature, trace
from lms.tf.measure.device_rates import measure_hardware
from lms.tf.measure.devices import find_device
from lms.tf.measure.measurements import forget_times
from lms.tf.measure.op_costs import measure_costs
from profiling.record import write_json

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one trial; the result goes to `--output`.

    With `--probe` nothing is planned: what the step needs, and what it takes.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=SUBJECTS, required=True)
    parser.add_argument("--steps", type=int, required=True, help="of each turn")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--probe", action="store_true")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    model, arrays = SUBJECTS[options.model]()
    batch = [tf.constant(array) for array in arrays]

    def step(x: tf.Tensor, y: tf.Tensor) -> object:
        return model.train_step((x, y))

    if options.probe:
        subject = workload_of(step, batch)
        plain = tf.function(step)
        seconds, stolen = _step_seconds(lambda: plain(*batch), options.steps)
        write_json(
            options.output,
            {
                "unplanned_peak_bytes": _unplanned(subject),
                "persistent_bytes": subject.persistent_bytes,
                "op_seconds": subject.speeds.costs.total,
                "step_seconds": seconds,
                "stolen_seconds": stolen,
            },
        )
        return 0
    wait_for_quiet()
    fitted = fit_in_memory(step, batch)
    promised = fitted.report[0]  # before the first step
    again = _Again(step, batch, promised.plan)
    seconds, stolen, predicted = _in_turns(fitted, batch, options, again.seconds)
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
            "stolen_seconds": stolen,
            "predicted_seconds_in_turns": predicted,
        },
    )
    return 0


class _Again:
    """A plan, to be predicted again with ops as fast as they are by then."""

    def __init__(
        self, step: Callable[..., object], batch: Sequence[Any], plan: SwapPlan
    ) -> None:
        self._device = find_device()
        traced = trace(step, read_signature(batch))
        self._step = specialise(
            traced, input_specs(traced), device=self._device.full_name
        )
        self._plan = plan
        self._graph = planned_graph(self._step.graph, plan)
        validate_plan(self._graph, plan)

    def seconds(self) -> float:
        """Of the plan."""
        forget_times()
        measured = measure_costs(self._step, self._device)
        hardware = measure_hardware(self._device)
        costs = completed(measured, self._graph, hardware)
        self._device.memory.reset_peak()  # what ops took alone is not the step's
        return simulate(self._graph, self._plan, costs, hardware).seconds


def _unplanned(subject: DeviceWorkload) -> int:
    return subject.persistent_bytes + subject.workload.plain.peak


def _in_turns(
    fitted: FittedFunction,
    batch: Sequence[Any],
    options: argparse.Namespace,
    predict: Callable[[], float],
) -> tuple[list[float], list[float], list[float]]:
    """Seconds of steps in which nothing was planned anew, and predictions between."""
    while True:
        before = fitted.report[0].replans
        measured: list[float] = []
        stolen: list[float] = []
        predicted: list[float] = []
        for _ in range(options.turns):
            wait_for_quiet()
            predicted.append(predict())
            seconds, lost = _step_seconds(lambda: fitted(*batch), options.steps)
            measured += seconds
            stolen += lost
        if fitted.report[0].replans == before:
            return measured, stolen, predicted


def _step_seconds(
    run: Callable[[], object], steps: int
) -> tuple[list[float], list[float]]:
    """Seconds of each step after two, which initialise; and what others took of them.

    Steps go on until enough were undisturbed, up to three times as many.
    """
    seconds: list[float] = []
    stolen: list[float] = []
    timed(run)
    timed(run)
    while sum(map(is_quiet, seconds, stolen)) < steps and len(seconds) < 3 * steps:
        taken, lost = timed(run)
        seconds.append(taken)
        stolen.append(lost)
    return seconds, stolen


if __name__ == "__main__":
    raise SystemExit(main())
