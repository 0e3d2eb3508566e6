"""Addresses for all large chunks of a planned step, decided before it runs.

    plan ──> turns ──> spans ──> packing ──> spacers

A spacer is no smaller than the chunks that are planned, and larger than all chunks for
small tensors: else it would lie among these. So two chunks touch, or are that far
apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from lms.ir.graph import GraphView, per_graph
from lms.ir.liveness import buffers, new_value, old_readers, peak
from lms.ir.plan import SwapPlan
from lms.planning.candidates import smallest_worth_moving
from lms.planning.packing import pack
from lms.simulation.allocator import SmallPool
from lms.simulation.turns import find_turns, spans
from lms.units import Bytes

__all__ = ["Placed", "place", "why_unsealed", "why_variables_move"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Addresses of a step's large chunks.

    Args:
        height: Bytes of the arena that they need.
        addresses: The address of each chunk in the arena, by its key.
    """

    height: Bytes
    addresses: Mapping[int, int]


@per_graph(most=6)
def place(
    graph: GraphView,
    plan: SwapPlan,
    pool: SmallPool,
    room: Bytes,
    tries: int,
    again: int = 0,
) -> Placed | None:
    """Find addresses for the large chunks of a step in `room` bytes.

    Another number `again` gives other addresses.

    Returns:
        None if no packing fits the room.
    """
    turns = find_turns(graph, plan, pool.below, pool.spacer)
    each = spans(turns)
    if not each:
        return Placed(height=0, addresses={})
    sizes, starts, ends = zip(*each.values(), strict=True)
    packed = pack(sizes, starts, ends, room, tries=tries, gap=pool.spacer, again=again)
    if packed is None:
        return None
    addresses = dict(zip(each, packed.offsets, strict=True))
    return Placed(height=packed.height, addresses=addresses)


@per_graph()
def why_unsealed(graph: GraphView) -> str | None:
    """Tell why the addresses of a step cannot be planned, as far as its graph says."""
    large = smallest_worth_moving(peak(graph))
    size = {b.root: b.size for b in buffers(graph)}
    new_values = 0  # the old values' memory may become one free fragment
    if any(size.get(graph.roots[name], 0) >= large for name in graph.results):
        return "the step returns large tensors"
    for op in graph.ops:
        made = max((tensor.size for tensor in op.outputs), default=0)
        if op.fixed and made >= large:
            return f"no order is planned for loop or branch {op.name!r}"
        if op.varies and made >= large:
            return f"the size of op {op.name!r} depends on values"
        if op.to_host and op.reusing is not None and op.reusing.size >= large:
            return f"op {op.name!r} writes in place what the host reads"
        new_values += size.get(graph.roots.get(new_value(op) or "", ""), 0)
        if new_values >= large:
            return f"op {op.name!r} gives a variable new memory"
    return None


def why_variables_move(graph: GraphView, large: Bytes) -> str | None:
    """Tell which op writes variables whose old values are read later.

    TensorFlow gives such variables new memory. The places that they leave may become
    one free fragment, which tensors of `large` bytes fit.

    Args:
        graph: The step in its planned order.
        large: Bytes of the smallest chunk with a planned address.
    """
    left = 0
    for position, size, readers in old_readers(graph):
        op = graph.ops[position]
        if max(readers, default=0) > position and not op.replaces_state:
            left += size
        if left >= large:
            return f"op {op.name!r} gives a variable new memory"
    return None
