"""Forecasts of a step's memory and time on a device, before the step runs anywhere.

    capture ──> measure, or a roofline ──> plan ──> Forecast     nothing is rewritten

On the present device each op is measured alone, and the plan is the one that `fit`
would make; `fit` counts the batches in its pipeline, a forecast estimates them. For
other hardware costs come from a roofline, and scratch memory, which depends on the
kernels there, counts as nothing.

Known weaknesses: the graph is the one that TensorFlow makes for the present device, so
layouts and fused ops may differ elsewhere. A roofline is the hardware's upper bound.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lms.errors import BudgetError, UnsupportedError
from lms.machine.hardware import Hardware, roofline
from lms.planning import select
from lms.planning.plan_step import plan_step
from lms.planning.problem import MemoryBudget, PlannedStep, Speeds, Workload, budget_in
from lms.planning.settings import Settings
from lms.report.step import StepReport
from lms.simulation.timeline import Timeline
from lms.tf.capture.keras_step import iterator_of, step_of, step_of_data
from lms.tf.capture.tracing import (
    TracedFunction,
    input_specs,
    read_signature,
    trace,
)
from lms.tf.lowering import TracedStep, refuse_guesses, specialise
from lms.tf.means import NOTHING, Means, Refused, further, least_of
from lms.tf.measure.devices import Device, find_device
from lms.tf.measure.workload import (
    over_time,
    plan_here,
    report_of,
    unplanned_timeline,
)
from lms.tf.passes.host_variables import size_of
from lms.tf.prepare import capture
from lms.units import Bytes, Seconds

__all__ = ["DeviceWorkload", "Forecast", "forecast", "training_of", "workload_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWorkload:
    """A traced step on some device.

    Args:
        step: The step.
        workload: The planner's view of the step.
        speeds: Times of ops and copies on the device.
        persistent_bytes: Weights, slots and data.
        device: The device if it is present; None for other hardware.
        seconds: Time of tracing and measuring.
        again: Prepares the step anew with other rewrites.
        means: Rewrites of the step that lower its memory need.
    """

    step: TracedStep
    workload: Workload
    speeds: Speeds
    persistent_bytes: Bytes
    device: Device | None = None
    seconds: Seconds = 0.0
    again: Callable[[Means], "DeviceWorkload"]
    means: Means = NOTHING

    def on(self, hardware: Hardware) -> "DeviceWorkload":
        """Replace the device's memory and link; times of ops stay."""
        speeds = replace(self.speeds, hardware=hardware)
        return replace(
            self,
            speeds=speeds,
            device=None,
            again=lambda means: self.again(means).on(hardware),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A planned step on some device.

    Args:
        speeds: Times of ops and copies on the device.
        report: The plan and its predictions.
        timeline: The planned step over time.
        unplanned: The step over time where the memory has no limit.
        on_host: Bytes of variables, and of lists of loops, that are kept on the host.
    """

    speeds: Speeds
    report: StepReport
    timeline: Timeline
    unplanned: Timeline
    on_host: Bytes = 0


def training_of(
    model: Any,
    specs: Sequence[Any],
    *,
    hardware: Hardware | None = None,
    budget: Bytes | None = None,
) -> DeviceWorkload:
    """Trace the training step of a Keras model as `fit` does.

    Args:
        model: A compiled model.
        specs: The batch, as `batch_specs` returns it.
        hardware: The device; None measures the present one.
        budget: Bytes that a step may use there; None takes the device's memory.

    Raises:
        UnsupportedError: If a shape is not known, or there is no device to measure.
    """
    if any(part is None for part in specs):  # no data set has None in an element
        step, batch = step_of_data(model, "train"), [tuple(specs)]
        return workload_of(step, batch, hardware=hardware, budget=budget)
    traced = trace(step_of(model, "train"), (), iterator=iterator_of(specs))
    return _workload(traced, hardware, budget)


def workload_of(
    function: Callable[..., Any],
    signature: Sequence[Any],
    *,
    hardware: Hardware | None = None,
    budget: Bytes | None = None,
) -> DeviceWorkload:
    """Trace a step for some device.

    Args:
        function: A step, as for `fit_in_memory`.
        signature: Its arguments as specs or example tensors, all shapes known.
        hardware: The device; None measures the present one.
        budget: As for `training_of`.

    Raises:
        UnsupportedError: If a shape is not known, or there is no device to measure.
    """
    traced = trace(function, read_signature(signature))
    return _workload(traced, hardware, budget)


def _workload(
    traced: TracedFunction,
    hardware: Hardware | None,
    budget: Bytes | None,
) -> DeviceWorkload:
    started = time.perf_counter()
    found = _here(traced, budget) if hardware is None else _elsewhere(traced, hardware)
    seconds = traced.seconds + time.perf_counter() - started
    return replace(found, seconds=seconds)


def _here(
    traced: TracedFunction, budget: Bytes | None, means: Means = NOTHING
) -> DeviceWorkload:
    if not find_device().is_gpu:
        raise UnsupportedError(
            "`hardware` must be named where there is no GPU to measure, got None. "
            "Name a card (`--hardware v100-pcie`), or measure an emulated card: python "
            "-m lms emulate --memory SIZE -- COMMAND."
        )
    inputs, settings = input_specs(traced), Settings(budget=budget)
    captured, found = capture(traced, inputs, settings, kind="plan", means=means)
    if captured.held_back is not None:
        raise captured.held_back
    there = sum(map(size_of, means.handles))  # forecast as on the host
    return DeviceWorkload(
        step=captured.step,
        workload=captured.workload,
        speeds=captured.workload.speeds(),
        # Slots that were never written share one buffer of zeros: later use is higher.
        persistent_bytes=max(captured.step.held_bytes, found.persistent - there),
        device=captured.device,
        again=partial(_here, traced, budget),
        means=means,
    )


def _elsewhere(
    traced: TracedFunction, hardware: Hardware, means: Means = NOTHING
) -> DeviceWorkload:
    step = specialise(
        traced,
        input_specs(traced),
        device=find_device().full_name,
        lists=means.lists,
        on_host=means.handles,
        size=means.op_size,
    )
    refuse_guesses(step)
    speeds = Speeds(costs=roofline(step.graph, hardware), hardware=hardware)
    own = (step.own or step).graph
    return DeviceWorkload(
        step=step,
        workload=select.workload_of(step.graph, own, lambda: speeds),
        speeds=speeds,
        persistent_bytes=step.held_bytes,
        again=partial(_elsewhere, traced, hardware),
        means=means,
    )


def forecast(subject: DeviceWorkload, settings: Settings) -> Forecast:
    """Plan a step and simulate its timeline.

    Args:
        subject: The step.
        settings: The user's knobs; the budget is at most the hardware's memory less a
            margin.

    Raises:
        BudgetError: If no plan fits; names the op and the least budget.
        HostMemoryError: If this host cannot hold what is swapped out.
    """
    started = time.perf_counter()
    planned, refusals = None, list[BudgetError]()
    while planned is None:
        try:
            planned = _planned(subject, settings)
        except BudgetError as error:
            refusals.append(error)
            refused = Refused(
                step=subject.step,
                means=subject.means,
                settings=settings,
                error=error,
                budget=_budget(subject, settings),
                is_here=False,
            )
            more = further(refused)
            if more == NOTHING:
                raise least_of(refusals) from None
            seconds = subject.seconds
            subject = replace(subject.again(subject.means + more), seconds=seconds)
    seconds = time.perf_counter() - started
    report = report_of("train", subject.step, planned, seconds)
    unplanned = unplanned_timeline(planned.workload)
    timeline = planned.timeline or unplanned
    return Forecast(
        speeds=subject.speeds,
        report=replace(
            over_time(report, timeline, unplanned),
            preparation_seconds=subject.seconds + seconds,
        ),
        timeline=timeline,
        unplanned=unplanned,
        on_host=subject.means.size,
    )


def _planned(subject: DeviceWorkload, settings: Settings) -> PlannedStep:
    workload = replace(subject.workload, speeds=lambda: subject.speeds)
    budget = _budget(subject, settings)
    if subject.device is None:
        return plan_step(workload, settings, budget, None)
    return plan_here(workload, settings, subject.device, budget)


def _budget(subject: DeviceWorkload, settings: Settings) -> MemoryBudget:
    return budget_in(
        subject.speeds.hardware.memory,
        asked=settings.budget,
        persistent=subject.persistent_bytes,
    )
