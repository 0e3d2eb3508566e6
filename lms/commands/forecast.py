"""What a step would need and take on some device, before it runs anywhere.

    trace ──> specialise ──> plan ──> simulate          nothing is rewritten or trained

On the present device ops are measured, each alone. For other hardware they come from a
roofline, and scratch memory, which depends on the kernels there, counts as nothing.

Known weaknesses: the graph is the one that TensorFlow makes for the present device, so
layouts and fused ops may differ elsewhere. A roofline is what hardware could do at
best.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from lms.ir.graph import GraphView
from lms.ir.liveness import lower_bound
from lms.ir.plan import SwapPlan, planned_graph, validate_plan
from lms.machine.costs import completed, roofline
from lms.machine.hardware import Hardware
from lms.planning.memory_budget import MemoryBudget, budget_in
from lms.planning.prefetch import Speeds
from lms.planning.risk import FittedPlan
from lms.planning.select import choose_plan, plain_plan, played_peak
from lms.planning.settings import Settings
from lms.simulation.executor import simulate
from lms.simulation.timeline import Timeline
from lms.tf.capture.specialising import TracedStep, specialise
from lms.tf.capture.tracing import input_specs, read_signature, trace
from lms.tf.measure.device_budget import measure_budget
from lms.tf.measure.devices import find_device, take_emulated_memory
from lms.tf.measure.measuring import measure_costs, measure_hardware
from lms.tf.measure.scratch import measure_scratch, with_scratch
from lms.units import Bytes

__all__ = ["Forecast", "Workload", "forecast", "workload_of"]

take_emulated_memory()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A traced step on some device.

    Args:
        graph: The step.
        own: TensorFlow's own graph of it.
        speeds: How long ops and copies take there.
        persistent_bytes: Weights, slots and data.
        signature: Shapes of the inputs, readable.
        waiting_bytes: Of batches that may be on the device besides.
        unknown_loops: Names of loops whose memory is not known.
    """

    graph: GraphView
    own: GraphView
    speeds: Speeds
    persistent_bytes: Bytes
    signature: str
    waiting_bytes: Bytes
    unknown_loops: tuple[str, ...] = ()

    @property
    def kept_bytes(self) -> Bytes:
        """Bytes of constants that only TensorFlow's own graph keeps."""
        return self.own.constant_bytes - self.graph.constant_bytes

    @property
    def plain(self) -> FittedPlan:
        """The plan without swaps, of TensorFlow's own graph."""
        return plain_plan(self.own, self.kept_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A planned step on some device.

    Args:
        workload: What was planned.
        plan: Its plan; without swaps if it fits.
        budget: The budget, and what is left out of it.
        peak_bytes: Predicted peak, persistent bytes included.
        unplanned_peak_bytes: The same with nothing swapped.
        lower_bound_bytes: The largest single-op working set, without persistent bytes.
        timeline: The planned step over time.
        unplanned: The step with nothing swapped on a device with enough memory.
    """

    workload: Workload
    plan: SwapPlan
    budget: MemoryBudget
    peak_bytes: Bytes
    unplanned_peak_bytes: Bytes
    lower_bound_bytes: Bytes
    timeline: Timeline
    unplanned: Timeline

    @property
    def fits_unplanned(self) -> bool:
        """Whether the step runs as TensorFlow would run it: no order, no swaps."""
        return not self.plan.chain and not self.plan.swaps

    @property
    def slowdown(self) -> float:
        """Seconds of the planned step over those of the unplanned one."""
        return self.timeline.seconds / self.unplanned.seconds


def workload_of(
    function: Callable[..., Any],
    signature: Sequence[Any],
    *,
    hardware: Hardware | None = None,
    reads_ahead: bool = True,
) -> Workload:
    """Trace a step for some device.

    Args:
        function: A step, as for `fit_in_memory`.
        signature: Its arguments as specs or example tensors, all shapes known.
        hardware: The device; None measures the present one.
        reads_ahead: Whether the next batch waits beside this one, as in `fit`, where
            the input pipeline is on the present device.

    Raises:
        UnsupportedError: If a shape is not known.
    """
    device = find_device()
    traced = trace(function, read_signature(signature))
    step = specialise(traced, input_specs(traced), device=device.full_name)
    if hardware is not None:
        speeds = Speeds(costs=roofline(step.graph, hardware), hardware=hardware)
        scratch = dict[str, int]()
    else:
        scratch = measure_scratch(step, device.memory)
        costs = measure_costs(step, device.memory)
        speeds = Speeds(costs=costs, hardware=measure_hardware(device))
    persistent, waiting = _left_out(step, hardware, reads_ahead=reads_ahead)
    return Workload(
        graph=with_scratch(step.graph, scratch),
        own=with_scratch((step.own or step).graph, scratch),
        speeds=speeds,
        persistent_bytes=persistent,
        signature=step.signature,
        waiting_bytes=waiting,
        unknown_loops=step.unknown_loops,
    )


def _left_out(
    step: TracedStep, hardware: Hardware | None, *, reads_ahead: bool
) -> tuple[Bytes, Bytes]:
    """Persistent bytes, and those of batches that wait."""
    held = step.captured_bytes + step.input_bytes + step.constant_bytes
    if hardware is not None:
        return held, 0
    budget = measure_budget(
        step,
        Settings(),
        find_device(),
        data_is_there=False,
        reads_ahead=reads_ahead,
    )
    # Slots that were never written share their zeros: less is in use than will be.
    return max(held, budget.persistent), budget.reserved


def forecast(workload: Workload, settings: Settings) -> Forecast:
    """Plan a step, and play it.

    Args:
        workload: The step.
        settings: The user's knobs; the budget is at most the hardware's memory less a
            margin.

    Raises:
        BudgetError: If no plan fits; names the op and the least budget.
    """
    graph, speeds = workload.graph, workload.speeds
    budget = budget_in(
        speeds.hardware.memory,
        asked=settings.budget,
        persistent=workload.persistent_bytes,
        waiting=workload.waiting_bytes,
    )
    plain, own = workload.plain, workload.own
    fitted = choose_plan(graph, plain, settings, budget, cache(lambda: speeds))
    is_plain = fitted.plan == plain.plan
    planned = own if is_plain else planned_graph(graph, fitted.plan)
    validate_plan(planned, fitted.plan)
    costs = completed(speeds.costs, planned, speeds.hardware)
    timeline = simulate(planned, fitted.plan, costs, speeds.hardware)
    return Forecast(
        workload=workload,
        plan=fitted.plan,
        budget=budget,
        peak_bytes=budget.persistent + played_peak(fitted, timeline),
        unplanned_peak_bytes=budget.persistent + plain.peak,
        lower_bound_bytes=lower_bound(graph),
        timeline=timeline,
        unplanned=simulate(
            own,
            plain.plan,
            completed(speeds.costs, own, speeds.hardware),
            speeds.hardware,
        ),
    )
