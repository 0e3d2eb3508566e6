"""Memory that a step may take now, on the device and on the host.

Swapped tensors lie in the host's memory: workers of one host get equal parts of it.
"""

import gc
import os
from contextlib import suppress
from dataclasses import replace

import psutil

from lms.errors import WorkersError
from lms.machine.host import PINNED_VARIABLE, pinned_limit, swappable
from lms.machine.ranks import joined, read_placement
from lms.planning.problem import MemoryBudget, budget_in
from lms.planning.settings import Settings
from lms.tf import compat
from lms.tf.lowering import TracedStep
from lms.tf.measure.compact_variables import shared_bytes
from lms.tf.measure.devices import Device
from lms.tf.passes.host_variables import bytes_on_host
from lms.units import MIB, Bytes

__all__ = [
    "available_host_bytes",
    "free_host_bytes",
    "host_budget",
    "limit_pinned_memory",
    "measure_budget",
    "with_holes",
]


def available_host_bytes() -> Bytes | None:
    """Host memory that programs may still take; None where the system does not say."""
    try:
        return psutil.virtual_memory().available
    except (OSError, RuntimeError):
        return None


def free_host_bytes() -> Bytes | None:
    """Host memory that swapped tensors may take; None where the system does not say.

    Several workers of one host get equal parts.
    """
    free = available_host_bytes()
    if free is None:
        return None
    # All of them plan at about the same time.
    limit = pinned_limit() - bytes_on_host()
    return swappable(free // joined().local_size, limit)


def limit_pinned_memory() -> None:
    """Let TensorFlow pin no more than the host has, where nobody says how much.

    Its pool is made with the devices and reads the variable then, so this is called
    when lms is loaded; where they are made already, it is too late.
    """
    if compat.devices_are_made():
        return
    free, workers = available_host_bytes(), 1
    with suppress(WorkersError):  # `join` will say it
        workers = read_placement().local_size
    if free is not None:
        most = swappable(free // workers, pinned_limit())
        os.environ.setdefault(PINNED_VARIABLE, str(most // MIB))


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
    persistent += step.input_bytes + step.graph.constant_bytes
    return budget_in(device.limit, asked=settings.budget, persistent=persistent)


def with_holes(budget: MemoryBudget, device: Device) -> MemoryBudget:
    """The budget with the holes in it that matter: the step cannot do without them.

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
