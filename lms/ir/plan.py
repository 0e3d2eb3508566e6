"""A swap plan: which tensors leave the device, when, and when they come back.

A plan is a value: comparable, printable, JSON both ways. It does not say how a tensor
is copied. The rewriter obeys it, the simulator predicts its memory and time,
`validate_plan` checks it against its graph.

    producer ──> near readers ... release          trigger ... far readers
        └──> swap-out ─────────────┘                  └──> swap-in ──┘

The swap-out starts as soon as the tensor exists. The op named `release` waits for its
end, and may then use the tensor's memory. The swap-in starts when the op named
`trigger` has ended. The swap-in also waits for every swap-out whose release is the
next ordered op, since it may use the memory freed there.

Simulators, planners and the rewriter read a plan resolved: by positions and spans in
its order, instead of names.

    producer ── near readers ── release      trigger ── far readers
    └─ original ───────────────┘                  └─ copy ────────┘
       [producer, leaves)                            [starts, last_read + 1)

Positions count the plan's order from 0; spans are half-open. A swap-out is taken to end
at its release, or without one right after the last near reader. A swap-in is taken to
hold memory from the next ordered op on, since ops that are not ordered may run before
the trigger or after it.
"""

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from lms.errors import PlanError
from lms.ir.graph import GraphView, Op, op_of, per_graph
from lms.ir.liveness import Buffer, Residency, buffers, staying
from lms.ir.recompute import Recomputed, with_recomputed
from lms.storage.files import from_json

__all__ = ["ResolvedPlan", "ResolvedSwap", "ResolvedSwapIn", "Swap", "SwapIn"]
__all__ += ["SwapPlan", "planned_graph", "resolve", "validate_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapIn:
    """One copy to the device.

    Args:
        trigger: Name of the op after which the copy starts; None starts it as soon
            as the swap-out has ended.
        readers: Names of the ops that read this copy.
    """

    trigger: str | None
    readers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """A tensor that leaves the device once and comes back one or more times.

    Args:
        tensor: Name of the buffer's root tensor.
        size: Bytes of one copy.
        release: Name of the op that waits for the end of the swap-out, or None.
        swap_ins: The swap-ins, in execution order.
    """

    tensor: str
    size: int
    release: str | None
    swap_ins: tuple[SwapIn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapPlan:
    """An execution order and the swaps made within it.

    Args:
        planner: Name of the planner that made it, for reports.
        order: Names of all ops in the execution order that was planned for.
        chain: Ops that are made to run in this order, each after the one before it.
            Empty leaves the order to the runtime.
        swaps: The swaps, ordered by the tensor's producer.
        recomputed: Ops that are recomputed. `order` lists their copies too: the plan is
            one for the graph with the copies (`planned_graph`).
        chain_is_partial: Whether large ops may be out of the chain: then it is unknown
            which large op runs last.
        chosen: Knobs of the planner that were given or tuned, readable.

    Example:
        >>> plan = SwapPlan(planner="budget", order=("a", "b"), chain=("a", "b"))
        >>> SwapPlan.from_json(plan.to_json()) == plan
        True
    """

    planner: str
    order: tuple[str, ...]
    chain: tuple[str, ...] = ()
    swaps: tuple[Swap, ...] = ()
    recomputed: tuple[Recomputed, ...] = ()
    chain_is_partial: bool = False
    chosen: str = ""

    @property
    def is_empty(self) -> bool:
        """Tell whether the plan changes nothing of TensorFlow's own way."""
        return not (self.chain or self.swaps or self.recomputed)

    @property
    def swapped_out_bytes(self) -> int:
        """Bytes copied from device to host in one step."""
        return sum(swap.size for swap in self.swaps)

    @property
    def swapped_in_bytes(self) -> int:
        """Bytes copied from host to device in one step."""
        return sum(swap.size * len(swap.swap_ins) for swap in self.swaps)

    @property
    def moved_bytes(self) -> int:
        """Bytes copied either way in one step."""
        return self.swapped_out_bytes + self.swapped_in_bytes

    def __repr__(self) -> str:
        return (
            f"<SwapPlan by {self.planner!r}: {len(self.order)} ops, "
            f"{len(self.swaps)} swaps, {len(self.recomputed)} recomputed>"
        )

    def to_json(self, *, indent: int | None = None) -> str:
        """Write the plan as JSON text."""
        fields = asdict(self)
        for name in ("chosen", "chain_is_partial"):
            if not fields[name]:
                del fields[name]
        return json.dumps(fields, indent=indent)

    @classmethod
    def from_json(cls, text: str) -> "SwapPlan":
        """Read a plan that `to_json` wrote.

        Raises:
            PlanError: If the text is no plan.
        """
        try:
            return from_json(text, cls)
        except ValueError as error:
            raise PlanError(
                f"`text` must be a plan written by SwapPlan.to_json, got: {error}. "
                "Make it again, with `python -m lms plan ... --output`."
            ) from error


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


def planned_graph(graph: GraphView, plan: SwapPlan) -> GraphView:
    """Add the recomputed ops of a plan to the step's graph, as it was traced.

    Returns:
        The step's ops in the plan's order, on which near and far depend, with each
        copy before its first reader. `graph` itself if nothing is recomputed.

    Raises:
        PlanError: If an op may not be recomputed.
    """
    if not plan.recomputed:
        return graph
    ordered = graph.reordered(name for name in plan.order if name in graph.by_name)
    return with_recomputed(ordered, plan.recomputed)


def validate_plan(graph: GraphView, plan: SwapPlan) -> None:
    """Check that a graph can obey a plan for it (`planned_graph`).

    Rules: the order is an execution order of exactly the graph's ops, and the chain
    follows it. A swapped tensor is a root of the step that the device makes, that no
    loop or branch touches, that does not outlive the step, and that is swapped once. A
    copy starts after its tensor was made and before its readers. Every reader of a
    copy reads the tensor, and one copy at most.

    Raises:
        PlanError: If a rule is broken; names the first one, with op or tensor.
    """
    _check_names(graph, plan.order)
    try:
        graph.reordered(plan.order)
    except ValueError as error:
        raise PlanError(f"the plan's order cannot be executed: {error}") from error
    position = {name: i for i, name in enumerate(plan.order)}
    _check_chain(graph, plan.chain, position)
    live = {buffer.root: buffer for buffer in buffers(graph)}
    seen: set[str] = set()
    for swap in plan.swaps:
        if swap.tensor in seen:
            raise PlanError(f"tensor {swap.tensor!r} must be swapped once, got twice")
        seen.add(swap.tensor)
        _check_swap(graph, swap, position, live.get(swap.tensor))


def _check_names(graph: GraphView, order: Sequence[str]) -> None:
    counts = Counter(order)
    wrong = {
        "without op": [op.name for op in graph.ops if op.name not in counts],
        "with an unknown op": [name for name in counts if name not in graph.by_name],
        "that repeats op": [name for name, count in counts.items() if count > 1],
    }
    for words, names in wrong.items():
        if names:
            raise PlanError(
                "the plan's order must list exactly the graph's ops, each once, got "
                f"one {words} {names[0]!r}"
            )


def _check_chain(
    graph: GraphView, chain: Sequence[str], position: Mapping[str, int]
) -> None:
    last = -1
    for name in chain:
        if name not in position:
            raise PlanError(f"chain names an unknown op {name!r}")
        if graph.by_name[name].fixed:
            raise PlanError(f"op {name!r} is in a loop or branch: not orderable")
        if position[name] <= last:
            raise PlanError(f"chain must follow the order, got {name!r} too late")
        last = position[name]


def _check_swap(
    graph: GraphView, swap: Swap, position: Mapping[str, int], buffer: Buffer | None
) -> None:
    tensor = graph.tensors.get(swap.tensor)
    if tensor is None or graph.roots[swap.tensor] != swap.tensor:
        raise PlanError(f"{swap.tensor!r} must be a tensor that owns its buffer")
    producer = graph.by_name[op_of(swap.tensor)]
    if tensor.size != swap.size:
        rule = f"size of {swap.tensor!r} must be {tensor.size}"
        raise PlanError(f"{rule}, got {swap.size}")
    if (producer.from_host and not producer.from_card) or producer.to_host:
        whence = "from" if producer.from_host else "to"
        raise PlanError(f"{swap.tensor!r} cannot move: it is copied {whence} the host")
    if buffer is None or buffer.kept:
        raise PlanError(f"{swap.tensor!r} cannot move: it lives outside of the step")
    if buffer.pinned:
        raise PlanError(f"{swap.tensor!r} cannot move: a loop or branch touches it")
    made = position[producer.name]
    if swap.release is not None and position.get(swap.release, -1) <= made:
        raise PlanError(f"release of {swap.tensor!r} must be an op after its producer")
    readers, taken = {graph.ops[use].name for use in buffer.uses}, set[str]()
    for copy in swap.swap_ins:
        _check_copy(swap, copy, readers, position, taken)


def _check_copy(
    swap: Swap,
    copy: SwapIn,
    readers: Collection[str],
    position: Mapping[str, int],
    taken: set[str],
) -> None:
    if not copy.readers:
        raise PlanError(f"a swap-in of {swap.tensor!r} must have readers, got none")
    for name in copy.readers:
        if name not in readers:
            raise PlanError(f"{name!r} must read {swap.tensor!r} to read its copy")
        if name in taken:
            raise PlanError(f"{name!r} must read one copy of {swap.tensor!r}, got two")
        taken.add(name)
    first = min(position[name] for name in copy.readers)
    if copy.trigger is not None and not (
        position[op_of(swap.tensor)] <= position.get(copy.trigger, -1) < first
    ):
        raise PlanError(
            f"trigger of {swap.tensor!r} must lie between its producer and its "
            f"readers, got {copy.trigger!r}"
        )


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
