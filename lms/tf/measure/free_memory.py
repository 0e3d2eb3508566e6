"""Memory that a step may take now, on the device and on the host.

Workers of one host share its memory for swapped tensors equally.
"""

import gc
import os
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate

import psutil

from lms.errors import WorkersError
from lms.ir.graph import GraphView, Op, op_of
from lms.ir.liveness import peak
from lms.machine.host import PINNED_VARIABLE, pinned_limit, swappable
from lms.machine.ranks import joined, read_placement
from lms.planning.candidates import smallest_worth_moving
from lms.planning.problem import MemoryBudget, budget_in
from lms.planning.settings import Settings
from lms.tf import compat
from lms.tf.capture.ops import VIEWS
from lms.tf.lowering import TracedStep
from lms.tf.measure.compact_variables import shared_bytes
from lms.tf.measure.devices import Device, memory_grows
from lms.tf.nodes import data_of, full_name
from lms.tf.passes.host_variables import bytes_on_host
from lms.tf.watch import reserved_for_watch
from lms.units import KIB, MIB, Bytes

__all__ = ["available_host_bytes", "free_host_bytes", "host_budget"]
__all__ += ["limit_pinned_memory", "measure_budget", "with_holes"]

# The 64 largest free fragments of at least 64 KiB count in a step that is not sealed.
_LEAST_HOLE, _MOST_HOLES = 64 * KIB, 64

# Eigen's vectors begin at multiples of 16 bytes at least.
_ALIGNED = 16

# Fences may take at most 1/16 of the peak without a plan, whatever the budget: so the
# least budget depends on no budget.
_FENCED = 16


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
    # All workers plan at about the same time.
    limit = pinned_limit() - bytes_on_host()
    return swappable(free // joined().local_size, limit)


def limit_pinned_memory() -> None:
    """Let TensorFlow pin no more than the host has, unless the user has set a limit.

    TensorFlow reads the variable when it makes the devices: so lms calls this function
    when it is imported, and later calls do nothing.
    """
    if compat.devices_are_made():
        return
    free, workers = available_host_bytes(), 1
    with suppress(WorkersError):  # `join` will raise it
        workers = read_placement().local_size
    if free is not None:
        most = swappable(free // workers, pinned_limit())
        os.environ.setdefault(PINNED_VARIABLE, str(most // MIB))


def measure_budget(
    step: TracedStep, settings: Settings, device: Device
) -> MemoryBudget:
    """Measure the memory that a step may use on a device now.

    The step's batch comes from the host, so it adds to the bytes in use.
    """
    gc.collect()
    # Slots of an optimizer that are still zero may share their memory: once written,
    # each takes its own.
    persistent = max(
        (device.settled_bytes() or 0) + shared_bytes(step, device), step.captured_bytes
    )
    persistent += step.input_bytes + step.graph.constant_bytes
    persistent += reserved_for_watch(step.graph) if settings.check else 0
    found = budget_in(device.limit, asked=settings.budget, persistent=persistent)
    # Growing memory is taken as far as a budget needs it: its end is not known.
    grows = "memory grows up to `budget`" * (memory_grows() and bool(settings.budget))
    shared = "several workers share tensors" * (joined().size > 1)
    return replace(found, unsealed=shared or grows or _why_unsealed(step))


def _why_unsealed(step: TracedStep) -> str:
    # Copies to the host let go of tensors at a time that is not known.
    if any(argument.lies_on_host for argument in step.arguments):
        return "some of its variables lie on the host"
    large, tensors = smallest_worth_moving(peak(step.graph)), step.graph.tensors
    for node in step.nodes:
        if "GPU" in node.device and node.device != step.device:
            for name in map(full_name, data_of(node)):
                root = step.graph.roots.get(name, "")
                maker = step.graph.by_name.get(op_of(root))
                is_own = maker and not (maker.from_host or maker.persistent)
                if is_own and tensors[root].size >= large:
                    return f"another card reads op {op_of(name)!r}"
    for op in step.graph.ops:
        if op.scratch >= large and not op.asks:
            return f"the scratch of op {op.name!r} is estimated"
        if op.type in VIEWS and not (op.constant or _must_copy(op)):
            tail = max((tensors[name].shape for name in op.inputs), key=len)[1:]
            parts = (t.size for t in op.outputs if tail in (t.shape, t.shape[1:]))
            if max(parts, default=0) >= large:
                return f"op {op.name!r} may share its input's memory"
    return ""


def _must_copy(op: Op) -> bool:
    """Tell whether a split's parts begin where Eigen cannot read: they are copied.

    `SplitHasAlignedOutputsInFirstDimension` (split_v_op.cc). Eigen aligns to 16 bytes
    at least. So copied are the gradients of replicas, which are reduced in one piece.
    """
    ends = accumulate(tensor.size for tensor in op.outputs[:-1])
    return op.type == "SplitV" and any(end % _ALIGNED for end in ends)


def with_holes(budget: MemoryBudget, device: Device, graph: GraphView) -> MemoryBudget:
    """The budget with the device's free fragments that matter to a step.

    Looking takes memory for a moment: half of what is free on the device, or, where a
    step cannot be sealed, at most as much as the step may use.
    """
    beside = budget.free - budget.step
    if budget.limit is None or (budget.unsealed and beside >= budget.step):
        return budget
    needed = peak(graph)
    large = smallest_worth_moving(needed)
    found = device.free_holes(budget.step if budget.unsealed else budget.free, large)
    fences, pieces = sum(found), "the device's free memory is in pieces"
    holes = tuple(size for size in found if size >= _LEAST_HOLE)[:_MOST_HOLES]
    holes = holes if beside < sum(holes) else ()
    why = budget.unsealed or pieces * (fences * _FENCED > needed)
    return replace(budget, holes=holes, fences=fences, unsealed=why)


def host_budget(settings: Settings, staged: Bytes) -> Bytes | None:
    """Host memory for swapped tensors; None where no limit is known.

    Args:
        settings: The user's knobs.
        staged: Bytes of a batch, which passes through pinned memory too.
    """
    free = free_host_bytes()
    limits = settings.host_memory, None if free is None else max(0, free - staged)
    return min((size for size in limits if size is not None), default=None)
