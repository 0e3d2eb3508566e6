"""What the host's memory holds, and which swapped tensors wait in a file instead.

Those that stay away the longest go first: their copies have the most time.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

from lms.ir.graph import GraphView
from lms.ir.liveness import buffers
from lms.ir.plan import SwapPlan
from lms.planning.memory_budget import HostBudget
from lms.simulation.memory import simulate_memory
from lms.units import Bytes

__all__ = ["host_bytes", "with_file", "without_file"]


def with_file(
    plan: SwapPlan, held: Callable[[SwapPlan], Bytes], room: Bytes
) -> SwapPlan:
    """A plan in which so many tensors wait in a file that the host holds the others.

    Args:
        plan: The plan.
        held: Bytes that the host must have for a plan.
        room: Bytes that the host has.

    Returns:
        The plan with all of them in the file, if even then the host has not enough.
    """
    position = {name: place for place, name in enumerate(plan.order)}

    def away(number: int) -> int:
        swap = plan.swaps[number]
        made = position[swap.tensor.rpartition(":")[0]]
        reads = [position[name] for copy in swap.swap_ins for name in copy.readers]
        return max(reads, default=made) - made

    movable = [*range(len(plan.swaps))]
    movable.sort(key=lambda number: (-away(number), number))
    least, most = 0, len(movable)
    while least < most:  # the host holds the less, the more are in the file
        middle = (least + most) // 2
        if held(_marked(plan, movable[:middle])) <= room:
            most = middle
        else:
            least = middle + 1
    return _marked(plan, movable[:least])


def without_file(plan: SwapPlan) -> SwapPlan:
    """The same plan with all tensors in the host's memory."""
    return _marked(plan, [])


def _marked(plan: SwapPlan, numbers: list[int]) -> SwapPlan:
    chosen = set(numbers)
    swaps = (
        replace(swap, in_file=number in chosen)
        for number, swap in enumerate(plan.swaps)
    )
    return replace(plan, swaps=tuple(swaps))


def host_bytes(graph: GraphView, plan: SwapPlan, host: HostBudget) -> Bytes:
    """What the host must have for swapped tensors.

    Args:
        graph: The planned step.
        plan: Its plan.
        host: How the host keeps tensors.
    """
    if host.by_size:
        return _buffers_by_size(graph, plan)
    return simulate_memory(graph, plan).host_peak


def _buffers_by_size(graph: GraphView, plan: SwapPlan) -> Bytes:
    """Bytes of the host's buffers, each used again only for tensors of its size."""
    moved = {s.tensor for s in plan.swaps if not s.in_file}
    moments: dict[Bytes, list[tuple[int, int]]] = defaultdict(list)
    for buffer in buffers(graph.reordered(plan.order)):
        if buffer.root in moved:
            moments[buffer.size] += [(buffer.producer, 1), (buffer.last + 1, -1)]
    return sum(
        size * max(accumulate(change for _, change in sorted(changes)))
        for size, changes in moments.items()
    )
