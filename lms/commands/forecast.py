"""Forecasts of what a step needs and takes on a device, before it runs anywhere.

    capture ──> measure, or a roofline ──> plan ──> Forecast     nothing is rewritten

On the present device ops are measured, each alone, and the plan is the one that `fit`
would make there; `fit` counts the batches that its pipeline holds already, which are
expected here. For other hardware costs come from a roofline, and scratch memory, which
depends on the kernels there, counts as nothing.

Known weaknesses: the graph is the one that TensorFlow makes for the present device, so
layouts and fused ops may differ elsewhere. A roofline is what hardware could do at
best.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from lms.errors import UnsupportedError
from lms.ir.graph import GraphView
from lms.ir.liveness import lower_bound
from lms.ir.plan import SwapPlan
from lms.machine.costs import completed, roofline
from lms.machine.hardware import Hardware
from lms.planning import select
from lms.planning.plan_step import plan_step
from lms.planning.prefetch import Speeds
from lms.planning.problem import MemoryBudget, PlannedStep, Workload, budget_in
from lms.planning.settings import Settings
from lms.simulation.executor import simulate
from lms.simulation.timeline import Timeline
from lms.tf.capture.keras_step import iterator_of, step_of, step_of_data
from lms.tf.capture.specialising import TracedStep, refuse_guesses, specialise
from lms.tf.capture.tracing import (
    TracedFunction,
    input_specs,
    read_signature,
    trace,
)
from lms.tf.measure.devices import Device, find_device
from lms.tf.measure.workload import plan_here
from lms.tf.prepare import capture
from lms.units import Bytes

__all__ = ["DeviceWorkload", "Forecast", "forecast", "traced_training", "training_of"]
__all__ += ["workload_of"]


@dataclass(frozen=True, kw_only=True)
class DeviceWorkload:
    """A traced step on some device.

    Args:
        graph: The step.
        own: TensorFlow's own graph of it.
        speeds: How long ops and copies take there.
        persistent_bytes: Weights, slots and data.
        signature: Shapes of the inputs, readable.
        unknown_memory: Names of loops and ops whose memory is not known.
        device: The device if it is here; None for other hardware.
    """

    graph: GraphView
    own: GraphView
    speeds: Speeds
    persistent_bytes: Bytes
    signature: str
    unknown_memory: tuple[str, ...] = ()
    device: Device | None = None

    @cached_property
    def step(self) -> Workload:
        """The workload for the planner."""
        return select.workload_of(self.graph, self.own, lambda: self.speeds)

    def on(self, hardware: Hardware) -> "DeviceWorkload":
        """The same ops, as fast as they are, with other memory or another link."""
        speeds = replace(self.speeds, hardware=hardware)
        return replace(self, speeds=speeds, device=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A planned step on some device.

    Args:
        workload: What was planned.
        planned: What was planned for it.
        timeline: The planned step over time.
        unplanned: The step with nothing swapped on a device with enough memory.
    """

    workload: DeviceWorkload
    planned: PlannedStep
    timeline: Timeline
    unplanned: Timeline

    @property
    def plan(self) -> SwapPlan:
        """The plan; without swaps if the step fits."""
        return self.planned.plan

    @property
    def budget(self) -> MemoryBudget:
        """The budget, and what is left out of it."""
        return self.planned.budget

    @property
    def peak_bytes(self) -> Bytes:
        """Predicted peak, persistent bytes included."""
        return self.planned.peak_bytes

    @property
    def unplanned_peak_bytes(self) -> Bytes:
        """The same with nothing swapped."""
        return self.planned.plain_peak_bytes

    @property
    def host_bytes(self) -> Bytes:
        """Bytes that the host must have for swapped tensors."""
        return self.planned.host_bytes

    @property
    def lower_bound_bytes(self) -> Bytes:
        """The largest single-op working set, without persistent bytes."""
        return lower_bound(self.workload.graph)

    @property
    def fits_unplanned(self) -> bool:
        """Tell whether the step runs as TensorFlow would run it: no order, no swaps."""
        return self.planned.runs_plain

    @property
    def slowdown(self) -> float:
        """Seconds of the planned step over those of the unplanned one."""
        return self.timeline.seconds / self.unplanned.seconds


def training_of(
    model: Any,
    specs: Sequence[Any],
    *,
    hardware: Hardware | None = None,
    budget: Bytes | None = None,
) -> DeviceWorkload:
    """The training step of a Keras model, traced as `fit` traces it.

    Args:
        model: A compiled model.
        specs: The batch, as `batch_specs` returns it.
        hardware: The device; None measures the present one.
        budget: What a step may use there; None takes the device's memory.

    Raises:
        UnsupportedError: If a shape is not known, or there is no device to measure.
    """
    return _workload(traced_training(model, specs), hardware, budget)


def traced_training(model: Any, specs: Sequence[Any]) -> TracedFunction:
    """The training step of a Keras model; tracing builds what is not built.

    Args:
        model: A compiled model.
        specs: The batch, as `batch_specs` returns it.
    """
    if any(part is None for part in specs):  # no data set has such elements
        signature = read_signature([tuple(specs)])
        return trace(step_of_data(model, "train"), signature)
    return trace(step_of(model, "train"), (), iterator=iterator_of(specs))


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
    inputs = input_specs(traced)
    if hardware is not None:
        return _elsewhere(traced, inputs, hardware)
    if not find_device().is_gpu:
        raise UnsupportedError(
            "`hardware` must be named where there is no GPU to be measured, got None. "
            "Name a card (`--hardware v100-pcie`), or measure an emulated one: python "
            "-m lms emulate --memory SIZE -- COMMAND."
        )
    captured, found = capture(
        traced,
        inputs,
        Settings(budget=budget),
        kind="plan",
    )
    return DeviceWorkload(
        graph=captured.workload.graph,
        own=captured.workload.own,
        speeds=captured.workload.speeds(),
        # Slots that were never written share their zeros: less is in use than will be.
        persistent_bytes=max(_held(captured.step), found.persistent),
        signature=captured.step.signature,
        unknown_memory=captured.step.unknown_memory,
        device=captured.device,
    )


def _elsewhere(
    traced: TracedFunction, inputs: Sequence[Any], hardware: Hardware
) -> DeviceWorkload:
    step = specialise(traced, inputs, device=find_device().full_name)
    refuse_guesses(step)
    return DeviceWorkload(
        graph=step.graph,
        own=(step.own or step).graph,
        speeds=Speeds(costs=roofline(step.graph, hardware), hardware=hardware),
        persistent_bytes=_held(step),
        signature=step.signature,
        unknown_memory=step.unknown_memory,
    )


def _held(step: TracedStep) -> Bytes:
    return step.captured_bytes + step.input_bytes + step.constant_bytes


def forecast(workload: DeviceWorkload, settings: Settings) -> Forecast:
    """Plan a step, and play it.

    Args:
        workload: The step.
        settings: The user's knobs; the budget is at most the hardware's memory less a
            margin.

    Raises:
        BudgetError: If no plan fits; names the op and the least budget.
        HostMemoryError: If this host cannot hold what is swapped out.
    """
    speeds, step = workload.speeds, workload.step
    budget = budget_in(
        speeds.hardware.memory,
        asked=settings.budget,
        persistent=workload.persistent_bytes,
    )
    if workload.device is None:
        planned = plan_step(step, settings, budget, None)
    else:
        planned = plan_here(step, settings, workload.device, budget)
    costs = completed(speeds.costs, step.own, speeds.hardware)
    unplanned = simulate(step.own, step.plain.plan, costs, speeds.hardware)
    return Forecast(
        workload=workload,
        planned=planned,
        timeline=planned.timeline or unplanned,
        unplanned=unplanned,
    )
