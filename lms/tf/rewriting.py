"""Obey a plan: a new list of nodes with copies out, copies in, and an order.

    before                                   after
    conv ──> relu                            conv ──> relu
      │                                        ├──> out
      └────────> conv_grad                     ┆     ┆(ends before `release` starts)
                                               in <─(starts after `trigger`)
                                               └────────> conv_grad

The nodes given are never changed. Ops that only give a buffer another shape (aliases)
are made again on each copy, for the readers of that copy.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from lms.errors import PlanError
from lms.graph import GraphView, Op, op_of
from lms.plan import Swap, SwapPlan
from lms.tf import compat
from lms.tf.specialising import TracedStep
from lms.tf.transports import Transport, Travel

__all__ = ["rewrite"]


def rewrite(
    step: TracedStep,
    plan: SwapPlan,
    transport: Transport,
    beginning: compat.NodeDef | None = None,
    late: Sequence[str] = (),
) -> list[compat.NodeDef]:
    """The step's nodes with the plan built in.

    Args:
        step: The traced step.
        plan: A plan that `validate_plan` accepts for `step.graph`.
        transport: Makes the nodes that carry tensors.
        beginning: A node that writes wait for, None if none does.
        late: Names of the ops that wait for it.

    Returns:
        New nodes; names of the step's own nodes are kept, new ones begin with `lms/`.

    Raises:
        PlanError: If the plan would make ops wait for each other in a circle.
    """
    nodes = {node.name: _copy(node) for node in step.nodes}
    chain = _Chain.of(plan)
    added: list[compat.NodeDef] = []
    released: dict[int, list[str]] = defaultdict(list)
    settled: dict[int, list[str]] = defaultdict(list)
    starts: list[tuple[compat.NodeDef, str | None]] = []
    for number, swap in enumerate(plan.swaps):
        producer = nodes[op_of(swap.tensor)]
        spec = _spec(step.graph, swap.tensor)
        prefix = f"lms/{number}/{producer.name}"
        out = transport.swap_out(
            f"{prefix}/out",
            swap.tensor,
            spec,
            device=producer.device,
            copies=len(swap.swap_ins),
        )
        added += out.nodes
        if out.settled is not None:
            settled[chain.following(producer.name)].append(out.settled.name)
        _release(nodes, swap, out, chain, released)
        keeper, at = _keeper(step.graph, swap, prefix, producer.device, plan, chain.at)
        if transport.takes_room_first and keeper is not None:
            added.append(keeper)
            released[at].append(keeper.name)
        for k, copy in enumerate(swap.swap_ins):
            back = transport.swap_in(
                f"{prefix}/in{k}", out, spec, device=producer.device
            )
            starts.append((back.start, copy.trigger))
            if back.settled is not None and copy.trigger in chain.at:
                settled[chain.at[copy.trigger] + 1].append(back.settled.name)
            chain.run_late(back, chain.before(copy.readers))
            added += back.nodes
            added += _reroute(
                step.graph, nodes, copy.readers, swap.tensor, back.end.name, f"in{k}"
            )
    for start, trigger in starts:
        _start_after(start, trigger, plan, chain.at, released)
    _chain(nodes, plan, released, settled)
    if beginning is not None:
        added.append(beginning)
        for name in late:
            _wait(nodes[name], [beginning.name])
    result = [*nodes.values(), *added]
    _refuse_cycle(result, step.graph)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chain:
    """The groups of a plan's chain, and where they are in its order.

    Args:
        groups: Names of ops.
        at: The group of each op that is in one.
        position: Of all ops.
        starts: Position of each group's first op.
        ends: Position of each group's last op.
    """

    groups: Sequence[Sequence[str]]
    at: Mapping[str | None, int]
    position: Mapping[str, int]
    starts: Sequence[int]
    ends: Sequence[int]

    @classmethod
    def of(cls, plan: SwapPlan) -> "_Chain":
        position = {name: i for i, name in enumerate(plan.order)}
        places = [[position[name] for name in group] for group in plan.chain]
        return cls(
            groups=plan.chain,
            at={name: i for i, group in enumerate(plan.chain) for name in group},
            position=position,
            starts=list(map(min, places)),
            ends=list(map(max, places)),
        )

    def following(self, op: str) -> int:
        """The first group that comes after an op."""
        return bisect_right(self.starts, self.position[op])

    def before(self, ops: Sequence[str]) -> int:
        """How many groups come before all of some ops."""
        return bisect_left(self.ends, min(self.position[op] for op in ops))

    def run_late(self, travel: Travel, groups: int) -> None:
        """Let what holds a thread run when so many groups have ended.

        The next op would wait for the copy too.
        """
        if travel.wait is not None and groups > 0:
            _wait(travel.wait, self.groups[groups - 1])


def _copy(node: compat.NodeDef) -> compat.NodeDef:
    copy = compat.NodeDef()
    copy.CopyFrom(node)
    return copy


def _spec(graph: GraphView, name: str) -> tf.TensorSpec:
    tensor = graph.tensors[name]
    return tf.TensorSpec(tensor.shape, tf.as_dtype(tensor.dtype))


def _wait(node: compat.NodeDef, names: Sequence[str]) -> None:
    """Add control inputs; those that are there already are not repeated."""
    there = set(node.input)
    node.input.extend(f"^{name}" for name in names if f"^{name}" not in there)


def _release(
    nodes: Mapping[str, compat.NodeDef],
    swap: Swap,
    out: Travel,
    chain: _Chain,
    released: Mapping[int, list[str]],
) -> None:
    """Let the op that needs the room wait for the end of a copy out."""
    if swap.release in chain.at:
        released[chain.at[swap.release]].append(out.end.name)
        chain.run_late(out, chain.at[swap.release])
    elif swap.release is not None:
        _wait(nodes[swap.release], [out.end.name])


def _keeper(
    graph: GraphView,
    swap: Swap,
    prefix: str,
    device: str,
    plan: SwapPlan,
    group_at: Mapping[str | None, int],
) -> tuple[compat.NodeDef | None, int]:
    """An op that holds the original until its room is to be free.

    A copy out may end at any time before the op that waits for it. If the room were
    free from then on, other tensors would take it, other ones each time, and the
    allocator would end up with other holes than were planned. Element-wise readers
    would write over it, or not.

    Returns:
        The op and the group before which it must run; None where there is no choice.
    """
    far = {name for copy in swap.swap_ins for name in copy.readers}
    near = [op for op in _readers(graph, swap.tensor) if op.name not in far]
    last = max((group_at.get(op.name, -1) for op in near), default=-1)
    until = group_at.get(swap.release or "", 0)
    if until == 0 and (last < 0 or not any(op.inplace for op in near)):
        return None, 0
    names = [op.name for op in near if op.name in group_at]
    names += plan.chain[until - 1] if until else ()
    keeper = compat.NodeDef(name=f"{prefix}/keep", op="Shape", device=device)
    keeper.input.append(swap.tensor)
    keeper.input.extend(f"^{name}" for name in dict.fromkeys(names))
    dtype = tf.as_dtype(graph.tensors[swap.tensor].dtype)
    keeper.attr["T"].type = dtype.as_datatype_enum
    keeper.attr["out_type"].type = tf.int32.as_datatype_enum
    return keeper, max(last + 1, until)


def _readers(graph: GraphView, tensor: str) -> list[Op]:
    """The ops that read a buffer, by its own name or by an alias."""
    found: list[Op] = []
    for op in graph.consumers[tensor]:
        if op.alias == tensor:
            for output in op.outputs:
                found += _readers(graph, output.name)
        else:
            found.append(op)
    return found


def _start_after(
    start: compat.NodeDef,
    trigger: str | None,
    plan: SwapPlan,
    group_at: Mapping[str | None, int],
    released: Mapping[int, Sequence[str]],
) -> None:
    """A copy in waits for its trigger, and for the room that is freed for it."""
    if trigger is None:
        return
    if trigger not in group_at:
        _wait(start, [trigger])
        return
    at = group_at[trigger]
    _wait(start, [*plan.chain[at], *released.get(at + 1, ())])


def _chain(
    nodes: Mapping[str, compat.NodeDef],
    plan: SwapPlan,
    released: Mapping[int, Sequence[str]],
    settled: Mapping[int, Sequence[str]],
) -> None:
    """Each group waits for the one before it and for the copies it releases.

    It also waits for what must be settled, so that the device's allocator is asked in
    the order that was planned, in every step: copies in that start beside it have their
    room, originals that may not be written over are free. All ops of a group get the
    same control inputs: only then may the runtime fuse them.
    """
    before: Sequence[str] = ()
    for i, group in enumerate(plan.chain):
        for name in group:
            _wait(nodes[name], [*before, *released.get(i, ()), *settled.get(i, ())])
        before = group


def _reroute(
    graph: GraphView,
    nodes: Mapping[str, compat.NodeDef],
    readers: Sequence[str],
    root: str,
    copy: str,
    suffix: str,
) -> list[compat.NodeDef]:
    """Let readers read the copy; returns the alias ops that were made for them."""
    on_copy = {root: f"{copy}:0"}
    made: list[compat.NodeDef] = []

    def moved(tensor: str) -> str:
        if tensor not in on_copy:
            op = graph.by_name[op_of(tensor)]
            alias = _copy(nodes[op.name])
            alias.name = f"{copy}/{suffix}/{op.name}"
            source = moved(op.alias or root)
            rest = list(alias.input[1:])
            del alias.input[:]
            alias.input.extend([source, *rest])
            made.append(alias)
            on_copy[tensor] = f"{alias.name}:{tensor.rpartition(':')[2]}"
        return on_copy[tensor]

    for reader in readers:
        node = nodes[reader]
        for i, name in enumerate(node.input):
            full = name if ":" in name or name[0] == "^" else f"{name}:0"
            if full[0] != "^" and graph.roots.get(full) == root:
                node.input[i] = moved(full)
    return made


def _refuse_cycle(nodes: Sequence[compat.NodeDef], graph: GraphView) -> None:
    """Kahn's algorithm; a loop's back edges count as its ends waiting for its body.

    TensorFlow would not complain: a step whose ops wait in a circle ends without them.
    """
    types = {node.name: node.op for node in nodes}
    followers: dict[str, list[str]] = defaultdict(list)
    waiting: dict[str, int] = {}
    for node in nodes:
        sources = {name.removeprefix("^").partition(":")[0] for name in node.input}
        sources = {n for n in sources if types.get(n, "") not in ("", "NextIteration")}
        if node.op == "Exit" and node.name in graph.by_name:
            sources |= set(graph.by_name[node.name].controls) & types.keys()
        waiting[node.name] = len(sources)
        for source in sources:
            followers[source].append(node.name)
    ready = [name for name, count in waiting.items() if count == 0]
    done = 0
    while ready:
        done += 1
        for follower in followers[ready.pop()]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                ready.append(follower)
    if done != len(nodes):
        stuck = next(name for name, count in waiting.items() if count > 0)
        raise PlanError(f"the plan makes ops wait in a circle, at {stuck!r}")
