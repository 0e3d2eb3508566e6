"""The memory budget of a step on the device that is here, as it is now."""

import gc
from dataclasses import replace

from lms.planning.memory_budget import MemoryBudget, budget_in
from lms.planning.settings import Settings
from lms.tf.capture.specialising import TracedStep
from lms.tf.measure.compact_variables import shared_bytes
from lms.tf.measure.devices import Device
from lms.tf.measure.host_memory import free_host_bytes
from lms.units import Bytes

__all__ = ["host_budget", "measure_budget", "with_holes"]


def measure_budget(
    step: TracedStep, settings: Settings, device: Device
) -> MemoryBudget:
    """Measure what the step may use on a device now.

    Its batch comes from the host, beside what is in use.

    Args:
        step: The step.
        settings: The user's knobs.
        device: Where it is to run.
    """
    gc.collect()
    # Slots of an optimizer that are still zero may share their memory: once written,
    # each takes its own.
    persistent = max(
        (device.memory.settled_bytes() or 0) + shared_bytes(step, device),
        step.captured_bytes,
    )
    persistent += step.input_bytes + step.constant_bytes
    return budget_in(device.limit, asked=settings.budget, persistent=persistent)


def with_holes(budget: MemoryBudget, device: Device) -> MemoryBudget:
    """The room with the holes in it that matter: the step cannot do without them.

    To look takes memory for a moment, as much as the step may use at most.
    """
    beside = budget.free - budget.step
    if budget.limit is None or beside >= budget.step:
        return budget
    holes = device.free_holes(budget.step)
    return replace(budget, holes=holes if beside < sum(holes) else ())


def host_budget(settings: Settings, staged: Bytes) -> Bytes | None:
    """Memory of the host for swapped tensors.

    Args:
        settings: The user's knobs.
        staged: Bytes of a batch, which takes the way through pinned memory too.
    """
    free, most = free_host_bytes(), settings.host_memory
    if free is not None:
        free = max(0, free - staged)
    if most is not None:
        return most if free is None else min(most, free)
    return free
