"""A plan by positions and spans in its order, instead of names.

    producer ── near readers ── release      trigger ── far readers
    └─ original ───────────────┘                  └─ copy ────────┘
       [producer, leaves)                            [starts, last_read + 1)

Simulators, planners and the rewriter read plans in this form. Positions count the
plan's order from 0; spans are half-open.

A swap-out is taken to end at its release, or without one right after the last near
reader. A swap-in is taken to hold memory from the next ordered op on, since ops that
are not ordered may run before the trigger or after it.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lms.ir.graph import GraphView, Op, per_graph
from lms.ir.liveness import Buffer, Residency, buffers, staying
from lms.ir.plan import Swap, SwapIn, SwapPlan

__all__ = ["ResolvedPlan", "ResolvedSwap", "ResolvedSwapIn", "resolve"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSwapIn:
    """One copy to the device.

    Args:
        readers: Positions of the ops that read it, as the plan lists them.
        trigger: Position of the op after which it starts, or None.
        trigger_link: The trigger's number in the chain, or None.
        starts: Position from which on it holds memory: that of the trigger's next op
            in the chain, else of the next op at all, at most the first reader's.
            Without a trigger the producer counts as one.
    """

    readers: tuple[int, ...]
    first_read: int
    last_read: int
    trigger: int | None
    trigger_link: int | None
    starts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSwap:
    """A tensor that leaves the device and comes back.

    Args:
        buffer: The tensor's buffer as if it stayed.
        near: Positions of the readers of the original, ascending.
        last_near: The last near reader's position, or else the producer's.
        release: Position of the op that waits for the end of the swap-out, or None.
        release_link: The release's number in the chain, or None.
        leaves: First position at which the original's memory is free.
        swap_ins: The swap-ins, in the plan's order.
    """

    buffer: Buffer
    near: tuple[int, ...]
    last_near: int
    release: int | None
    release_link: int | None
    leaves: int
    swap_ins: tuple[ResolvedSwapIn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPlan:
    """A plan, by positions of its order.

    Args:
        ops: All ops in the plan's order. The graph is left out: its memo has this.
        chain: Positions of the ops of the chain, ascending.
        link_of: The number in the chain of each chained op, by the op's name.
        buffers: The step's buffers by their roots, in the order in which they are made.
        swaps: The swaps, as the plan lists them.
        residencies: Residencies of each buffer, in the order of `buffers`: of one that
            moves, the original and then each swap-in.
    """

    plan: SwapPlan
    ops: tuple[Op, ...]
    chain: tuple[int, ...]
    link_of: Mapping[str, int]
    buffers: Mapping[str, Buffer]
    swaps: tuple[ResolvedSwap, ...]
    residencies: tuple[Residency, ...]


@per_graph(most=1)
def resolve(graph: GraphView, plan: SwapPlan) -> ResolvedPlan:
    """Turn the names of a valid plan for a graph into positions and spans.

    All swapped tensors take memory. The graph may have any execution order.
    """
    ordered = graph.reordered(plan.order)
    position, known = ordered.position, _by_root(ordered)
    chain = tuple(position[name] for name in plan.chain)
    link_of = {name: i for i, name in enumerate(plan.chain)}
    swaps = tuple(
        _swap(swap, known[swap.tensor], position, link_of, chain) for swap in plan.swaps
    )
    return ResolvedPlan(
        plan=plan,
        ops=ordered.ops,
        chain=chain,
        link_of=link_of,
        buffers=known,
        swaps=swaps,
        residencies=_residencies(staying(ordered), swaps),
    )


@per_graph()
def _by_root(ordered: GraphView) -> Mapping[str, Buffer]:
    """Return the buffers by their roots, which all plans share."""
    return {buffer.root: buffer for buffer in buffers(ordered)}


def _swap(
    swap: Swap,
    buffer: Buffer,
    position: Mapping[str, int],
    link_of: Mapping[str, int],
    chain: Sequence[int],
) -> ResolvedSwap:
    copies = tuple(
        _swap_in(copy, buffer.producer, position, link_of, chain)
        for copy in swap.swap_ins
    )
    far = {read for copy in copies for read in copy.readers}
    near = tuple(use for use in buffer.uses if use not in far)
    last_near = near[-1] if near else buffer.producer
    release = None if swap.release is None else position[swap.release]
    return ResolvedSwap(
        buffer=buffer,
        near=near,
        last_near=last_near,
        release=release,
        release_link=link_of.get(swap.release or ""),
        leaves=max(last_near + 1, release or 0),
        swap_ins=copies,
    )


def _swap_in(
    copy: SwapIn,
    producer: int,
    position: Mapping[str, int],
    link_of: Mapping[str, int],
    chain: Sequence[int],
) -> ResolvedSwapIn:
    readers = tuple(position[name] for name in copy.readers)
    first = min(readers)
    trigger = None if copy.trigger is None else position[copy.trigger]
    after = producer if trigger is None else trigger
    following = bisect_right(chain, after)
    starts = chain[following] if following < len(chain) else after + 1
    return ResolvedSwapIn(
        readers=readers,
        first_read=first,
        last_read=max(readers),
        trigger=trigger,
        trigger_link=link_of.get(copy.trigger or ""),
        starts=min(starts, first),
    )


def _residencies(
    unmoved: tuple[Residency, ...], swaps: Sequence[ResolvedSwap]
) -> tuple[Residency, ...]:
    moved = {swap.buffer.root: swap for swap in swaps}
    if not moved:
        return unmoved
    lives: list[Residency] = []
    for life in unmoved:
        swap = moved.get(life.root)
        lives.append(replace(life, end=swap.leaves, dies_at=None) if swap else life)
        for copy in swap.swap_ins if swap else ():
            last = copy.last_read
            new = replace(life, start=copy.starts, end=last + 1, dies_at=last)
            lives.append(new)
    return tuple(lives)
