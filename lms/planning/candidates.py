"""Which tensors may move, and which ops are ordered.

A tensor may move when it belongs to the step, is large enough to be worth a copy, no
loop or branch touches it, and the user's filters let it. An op is ordered when it
touches a large tensor: TensorFlow starts any op that is ready, so without an order
peaks wander; small ops are left to the runtime because an edge costs more than they do.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

from lms.ir.graph import GraphView, Op, op_of
from lms.ir.liveness import buffers, new_value, peak
from lms.planning.problem import Filters
from lms.planning.tuning import TUNING
from lms.simulation.allocator import SmallPool, rounded_up

__all__ = ["check_scopes", "large_ops", "movable", "small_pool_for"]
__all__ += ["smallest_worth_moving"]


def check_scopes(graph: GraphView, filters: Filters) -> None:
    """Refuse scopes and types that no op has: most often a typing error.

    Raises:
        ValueError: If no op has one; names it, and some that exist.
    """
    for scope in (*filters.include_scopes, *filters.exclude_scopes):
        if not any(map(Filters(include_scopes=(scope,)).accepts, graph.ops)):
            known = sorted({part for op in graph.ops for part in op.name.split("/")})
            raise ValueError(
                f"a scope filter must match an op of the graph, got {scope!r}. "
                f"Scopes here are, among others: {', '.join(_sample(known))}"
            )
    types = {op.type for op in graph.ops}
    for kind in (*filters.include_types, *filters.exclude_types):
        if kind not in types:
            raise ValueError(
                f"a type filter must name an op type of the graph, got {kind!r}. "
                f"Types here are, among others: {', '.join(_sample(sorted(types)))}"
            )


def _sample(names: Sequence[str], count: int = 12) -> Sequence[str]:
    return names[:: max(1, len(names) // count)][:count]


def smallest_worth_moving(step_peak: int) -> int:
    """Return the least bytes of a tensor that moves, or whose ops are ordered.

    Small models get a smaller size, so that smaller tensors are a small part of a peak.
    """
    least = min(TUNING.worth_moving_most, step_peak // TUNING.worth_moving_part)
    return max(TUNING.worth_moving_least, least)


def movable(
    graph: GraphView, *, min_bytes: int, filters: Filters | None = None
) -> frozenset[str]:
    """Return the names of the root tensors of at least `min_bytes` that may move."""
    allowed = filters or Filters()
    return frozenset(
        buffer.root
        for buffer in buffers(graph)
        if not buffer.pinned and buffer.size >= min_bytes and buffer.uses
        if allowed.accepts(graph.by_name[op_of(buffer.root)])
    )


def small_pool_for(graph: GraphView, *, min_bytes: int) -> SmallPool:
    """Return chunks for buffers below `min_bytes`: of each size, the most live at once.

    Constants get chunks, as they take memory when the step first runs, and one step's
    new values of variables, which stay where they were made.
    """
    changes: dict[int, list[tuple[int, int]]] = {}
    sizes: dict[str, int] = {}
    for buffer in buffers(graph):
        sizes[buffer.root] = chunk = rounded_up(buffer.size)
        if buffer.size < min_bytes:
            end = len(graph.ops) if buffer.kept else buffer.last + 1
            changes.setdefault(chunk, []).extend([(buffer.producer, 1), (end, -1)])
    values = (new_value(op) for op in graph.ops)
    new = [sizes.get(graph.roots[name], 0) for name in values if name is not None]
    few = sum(new) <= peak(graph) // TUNING.new_value_part
    counts = Counter(chunk for chunk in new if few or chunk < min_bytes)
    counts.update(_scratch_chunks(graph, min_bytes))
    constants = [made.size for op in graph.ops if op.constant for made in op.outputs]
    counts.update(rounded_up(size) for size in constants if 0 < size < min_bytes)
    del counts[0]  # new values that are no buffers of the step
    for chunk, moments in changes.items():
        live = max(accumulate(change for _, change in sorted(moments)))
        counts[chunk] += live * TUNING.small_chunks_percent // 100 + 1
    chunks = sorted(counts.elements(), reverse=True)
    return SmallPool(sizes=tuple(chunks), below=min_bytes)


def _scratch_chunks(graph: GraphView, min_bytes: int) -> list[int]:
    """Return chunks for small scratch: as it is asked for, or in one piece and in two.

    Ops with scratch run one after the other.
    """
    asked: Counter[int] = Counter()
    for op in graph.ops:
        sizes = (rounded_up(size) for size in op.asks if 0 < size < min_bytes)
        asked |= Counter(sizes)
    rest = [op.scratch for op in graph.ops if not op.asks]
    small = [size for size in rest if 0 < size < min_bytes]
    halved = [size for size in rest if 0 < size < 2 * min_bytes]
    whole = [rounded_up(max(small))] if small else []
    whole += [rounded_up(-(-max(halved) // 2))] * 2 if halved else []
    return [*asked.elements(), *whole]


def large_ops(graph: GraphView, *, min_bytes: int) -> tuple[str, ...]:
    """Return the ops to be ordered, one after the other, as the graph lists them.

    These make or read a buffer of at least `min_bytes`, or need as much scratch.
    """
    roots = graph.roots
    large = {buffer.root for buffer in buffers(graph) if buffer.size >= min_bytes}

    def is_large(op: Op) -> bool:
        names = (*op.inputs, *(tensor.name for tensor in op.outputs))
        return op.scratch >= min_bytes or any(roots[name] in large for name in names)

    can_be = [op for op in graph.ops if not (op.fixed or op.alias or op.persistent)]
    return tuple(op.name for op in can_be if is_large(op))
