"""The memory budget of a step on the device that is here, as it is now."""

import gc
from dataclasses import dataclass, replace

from lms.planning.memory_budget import MemoryBudget, budget_in
from lms.planning.settings import Settings
from lms.tf.capture.specialising import TracedStep
from lms.tf.measure.compact_variables import shared_bytes
from lms.tf.measure.devices import Device
from lms.tf.measure.host_memory import free_host_bytes
from lms.units import Bytes

__all__ = ["Batches", "host_budget", "measure_budget", "with_holes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Where the batches of a step are while it is planned.

    Args:
        is_there: Whether the batch is in the memory that is used already.
        read_ahead: Whether one more batch may come while the step runs.
    """

    is_there: bool
    read_ahead: bool


def measure_budget(
    step: TracedStep,
    settings: Settings,
    device: Device,
    batches: Batches,
) -> MemoryBudget:
    """What the step may use on a device, as it is now.

    Args:
        step: The step.
        settings: The user's knobs.
        device: Where it is to run.
        batches: Where the batches are.
    """
    gc.collect()
    data_is_there = batches.is_there and device.holds_input_pipeline
    data = step.input_bytes
    # Slots of an optimizer that are still zero may share their memory: once written,
    # each takes its own.
    persistent = max(
        (device.memory.settled_bytes() or 0) + shared_bytes(step, device),
        step.captured_bytes + (data if data_is_there else 0),
    )
    if not data_is_there:
        persistent += data
    persistent += step.constant_bytes
    may_wait = batches.read_ahead and device.holds_input_pipeline
    return budget_in(
        device.limit,
        asked=settings.budget,
        persistent=persistent,
        waiting=data if may_wait else 0,
    )


def with_holes(budget: MemoryBudget, device: Device) -> MemoryBudget:
    """The room with the holes in it that matter: the step cannot do without them.

    To look takes memory for a moment, as much as the step may use at most.
    """
    beside = budget.free - budget.step
    if budget.limit is None or beside >= budget.step:
        return budget
    holes = device.free_holes(budget.step)
    return replace(budget, holes=holes if beside < sum(holes) else ())


def host_budget(
    device: Device, budget: MemoryBudget, settings: Settings
) -> Bytes | None:
    """Memory of the host for swapped tensors, beside the device's if it is emulated."""
    taken = None if budget.is_whole_device else budget.total
    free, most = free_host_bytes(device, taken), settings.host_memory
    if most is not None:
        return most if free is None else min(most, free)
    return free
