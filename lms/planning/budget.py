"""The budget planner: walk the order, and free memory for each op.

The walk (`lms.planning.eviction`) finds the steps at which tensors leave and return.
This file turns the steps into a plan, which names ops.

Known weakness: copies are free, and tensors are back just before they are read;
`lms.planning.prefetch` moves the copies afterwards, knowing seconds.
"""

from collections.abc import Callable, Mapping, Sequence

from lms.ir.graph import GraphView, per_graph
from lms.ir.liveness import Buffer, buffers
from lms.ir.plan import Swap, SwapIn, SwapPlan
from lms.planning.candidates import large_ops
from lms.planning.eviction import (
    EvictionRules,
    Step,
    SwapHistory,
    needs,
    split_into_steps,
    walk_within,
)
from lms.simulation.allocator import BestFitAllocator

__all__ = ["least_room", "plan_within"]


def plan_within(
    graph: GraphView,
    arena: Callable[[], BestFitAllocator],
    *,
    movable: frozenset[str],
    min_bytes: int,
    rules: EvictionRules | None = None,
) -> SwapPlan | None:
    """Plan a step whose own memory never exceeds an arena.

    Args:
        graph: The graph in the execution order to obey.
        arena: Makes the allocator that tensors are placed in.
        movable: Names of the root tensors that may move.
        min_bytes: Ops that touch a tensor of at least this size are ordered.
        rules: Rules of eviction; by default the farthest next use.

    Returns:
        A plan, without swaps if everything fits; None if there is none.
    """
    chain, steps = _outline(graph, min_bytes)
    walk = walk_within(graph, steps, movable, arena, rules)
    if walk is None:
        return None
    return SwapPlan(
        planner="budget",
        order=tuple(op.name for op in graph.ops),
        chain=chain,
        swaps=_swaps(graph, steps, walk.histories),
    )


def least_room(
    graph: GraphView, *, movable: frozenset[str], min_bytes: int
) -> tuple[int, str]:
    """Return a lower bound on the bytes of any plan, and the op that needs them.

    An op needs its inputs, outputs and scratch, and all live tensors that may not move.
    """
    _, steps = _outline(graph, min_bytes)
    needed = needs(steps, buffers(graph), movable)
    most = max(needed, default=0)
    largest = steps[needed.index(most)].op if steps else ""
    return most, largest or "the step's small ops"


@per_graph()
def _outline(
    graph: GraphView, min_bytes: int
) -> tuple[tuple[str, ...], Sequence[Step]]:
    """Return the chain and its steps."""
    chain = large_ops(graph, min_bytes=min_bytes)
    return chain, split_into_steps(graph, chain)


def _swaps(
    graph: GraphView, steps: Sequence[Step], histories: Mapping[int, SwapHistory]
) -> tuple[Swap, ...]:
    """Turn histories, which number steps, into swaps, which name ops.

    Nothing leaves in the first step, the only one that may have no ordered op.
    """
    step_at = [number for number, step in enumerate(steps) for _ in range(step.length)]

    def readers(buffer: Buffer, reads: Sequence[int]) -> tuple[str, ...]:
        within = set(reads)
        uses = (use for use in buffer.uses if step_at[use] in within)
        return tuple(graph.ops[use].name for use in uses)

    return tuple(
        Swap(
            tensor=buffer.root,
            size=buffer.size,
            release=steps[histories[i].evicted].op,
            swap_ins=tuple(
                SwapIn(trigger=steps[reads[0] - 1].op, readers=readers(buffer, reads))
                for reads in histories[i].reads
            ),
        )
        for i, buffer in enumerate(buffers(graph))
        if i in histories
    )
