"""Which plan a step gets: the plain one if it fits, else one by the settings."""

import math
from collections.abc import Callable
from operator import add

from lms.errors import BudgetError
from lms.ir.graph import GraphView
from lms.ir.liveness import buffers, memory_curve, old_values
from lms.ir.plan import SwapPlan
from lms.planning.problem import UNLIMITED, FittedPlan, MemoryBudget, Speeds, Workload
from lms.planning.settings import Settings
from lms.planning.strategies import plan_by_budget
from lms.planning.tflms_autotune import search_thresholds
from lms.planning.tuning import TUNING
from lms.simulation.allocator import NO_POOL
from lms.simulation.memory import allocator_peak
from lms.units import Bytes, format_bytes

__all__ = [
    "choose_plan",
    "fits",
    "fits_easily",
    "plain_plan",
    "workload_of",
]


def plain_plan(own: GraphView, kept: Bytes = 0) -> FittedPlan:
    """Return the plan of TensorFlow's own way, without order and swaps.

    Args:
        own: TensorFlow's own graph of the step.
        kept: Bytes of constants that only TensorFlow's own graph keeps, part of the
            peak.
    """
    plan = SwapPlan(planner="none", order=tuple(op.name for op in own.ops))
    reached = allocator_peak(own, plan, capacity=UNLIMITED) or 0
    curve = memory_curve(own)
    reached += max(map(add, curve, old_values(own)), default=0) - max(curve, default=0)
    beside = sum(sorted(op.scratch for op in own.ops)[-TUNING.concurrent_scratch : -1])
    if has_loops(own):
        beside += math.ceil(reached * TUNING.loop_excess)
    return FittedPlan(plan=plan, small_pool=NO_POOL, peak=kept + reached, beside=beside)


def workload_of(
    graph: GraphView, own: GraphView, speeds: Callable[[], Speeds]
) -> Workload:
    """Make a workload with its plain plan, from the fields of `Workload`."""
    kept = own.constant_bytes - graph.constant_bytes
    plain = plain_plan(own, kept)
    return Workload(graph=graph, own=own, plain=plain, speeds=speeds)


def choose_plan(
    workload: Workload, settings: Settings, budget: MemoryBudget
) -> FittedPlan:
    """Choose the plan that the settings ask for; the plain one if everything fits.

    Args:
        workload: The step.
        settings: The user's knobs.
        budget: Memory that the step may use.

    Raises:
        BudgetError: If no plan fits; names the op and the least budget.
    """
    graph, plain = workload.graph, workload.plain
    if not settings.plans_what_fits and fits(plain, budget):
        return plain
    try:
        if settings.thresholds is not None:
            return search_thresholds(graph, settings, budget)
        if has_loops(graph):
            return _beside_loops(graph, settings, budget, workload.speeds())
        return plan_by_budget(graph, settings, budget, workload.speeds())
    except BudgetError as error:
        raise _for_the_budget(error, plain, budget) from error


def has_loops(graph: GraphView) -> bool:
    """Tell whether loops or branches, whose ops have no order, make large tensors."""
    return any(
        op.fixed and any(tensor.size >= TUNING.loop_tensor for tensor in op.outputs)
        for op in graph.ops
    )


def _beside_loops(
    graph: GraphView, settings: Settings, budget: MemoryBudget, speeds: Speeds
) -> FittedPlan:
    """Plan into a part of the budget; the rest is for loops in other orders."""
    unordered = _unordered(graph)
    part = budget.step * TUNING.beside_loops_percent // 100
    part = max(part, budget.step - unordered)
    try:
        less = budget.of(budget.persistent + part)
        return plan_by_budget(graph, settings, less, speeds)
    except BudgetError as error:
        least = error.least_bytes or 0
        all_ = least * 100 // TUNING.beside_loops_percent
        raise BudgetError(
            str(error),
            op_name=error.op_name,
            least_bytes=min(all_, least + unordered),
        ) from error


def _unordered(graph: GraphView) -> Bytes:
    """Return the bytes that loops and branches make and read in one iteration.

    In any order their ops hold no more than this beside the planned bytes.
    """
    touched = {
        graph.roots[name]
        for op in graph.ops
        if op.fixed
        for name in (*op.inputs, *(tensor.name for tensor in op.outputs))
    }
    return sum(buffer.size for buffer in buffers(graph) if buffer.root in touched)


def fits(plain: FittedPlan, budget: MemoryBudget) -> bool:
    """Tell whether a step needs no plan, in any order of ops."""
    return _needed(plain) <= budget.step


def _needed(plain: FittedPlan) -> Bytes:
    """Return the bytes that suffice without a plan, in any order of ops."""
    return math.ceil(plain.peak * TUNING.unordered_factor) + plain.beside


def fits_easily(plain: FittedPlan, budget: MemoryBudget) -> bool:
    """Tell whether a step fits even if it needs much more than predicted."""
    return plain.peak * TUNING.surprising_factor + plain.beside <= budget.step


def _for_the_budget(
    error: BudgetError, plain: FittedPlan, budget: MemoryBudget
) -> BudgetError:
    """Restate an error about the step's bytes for the whole budget or device.

    The budget in the message never exceeds the step's need without a plan.
    """
    enough = _needed(plain)
    step = min(error.least_bytes or enough, enough)
    needed = budget.persistent + step
    cause = f"for op {error.op_name!r}" if error.op_name else "for IBM's rule"
    instead = "Use" if error.op_name else "Leave `thresholds` out, or use"
    why = (
        f"{cause}: {format_bytes(budget.persistent)} persistent bytes, and "
        f"{format_bytes(step)} for the step, fragmentation included"
    )
    if budget.limit is not None and budget.is_whole_device:
        needed = budget.device_for(needed)
        least = format_bytes(needed, at_least=True)
        rule = f"the device's memory must be at least {least} {why}, "
        rule += f"and a margin; got {format_bytes(budget.limit)}"
    else:
        least = format_bytes(needed, at_least=True)
        rule = f"`budget` must be at least {least} {why}; got "
        rule += format_bytes(budget.total or 0)
    return BudgetError(
        f"{rule}. {instead} a smaller batch or volume.",
        op_name=error.op_name,
        least_bytes=needed,
    )
