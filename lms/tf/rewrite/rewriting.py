"""Obey a plan: a new list of nodes with swap-outs, swap-ins, and an order.

    before                                   after
    conv ──> relu                            conv ──> relu
      │                                        ├──> out
      └────────> conv_grad                     ┆     ┆(ends before `release` starts)
                                               in <─(starts after `trigger`)
                                               └────────> conv_grad

The nodes given are never changed. Ops that only give a buffer another shape (aliases)
are recomputed on each copy, for the readers of that copy.

The ops of the plan's chain run in its order, by control inputs:

    op 0 ──> op 1 ──> op 2 ──> ...

An ordered op waits for the op before it, for the swap-outs whose memory it needs, and
until the swap-ins that start beside it have their memory. A swap-in waits for its
trigger and for the memory that is freed for it. Copies are TensorFlow's own ops for
Grappler's swapper: they run on the GPU, so the step is not partitioned.

A copy to the device waits for all kernels launched before it. So launches must not run
ahead while a swap-in has its trigger but not yet its tensor:

    trigger, swap-out ──> begin ──> swap-in            takes memory, queues the copy
                            └─────> settled ──> the op after the trigger

`begin` ends in the launching thread, which runs the swap-in before the ops that wait
for `settled`: memory is taken in the planned order.

Sources: TensorFlow's `gpu_swapping_kernels.cc` (both copy ops), `gpu_util.cc` (what
copies wait for), `executor.cc` (`inline_ready`: first come, first served).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

import tensorflow as tf

from lms.errors import PlanError
from lms.ir.graph import GraphView, op_of
from lms.ir.plan import SwapPlan
from lms.ir.resolved import ResolvedPlan, ResolvedSwap, ResolvedSwapIn, resolve
from lms.tf import compat
from lms.tf.lowering import TracedStep

__all__ = ["Waits", "rewrite", "wait_for"]


_SHOWN = 12  # ops of a cycle that a message names


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOps:
    """The ops of one copy: `end` completes a swap-out, or yields a swap-in's tensor.

    Ops ordered after `start` wait for `settled`: then the swap-in has its memory.
    """

    nodes: tuple[compat.NodeDef, ...]
    start: compat.NodeDef
    end: compat.NodeDef
    settled: compat.NodeDef | None = None


def swap_out(name: str, source: str, dtype: str, device: str) -> CopyOps:
    """Make a copy to pinned memory."""
    op = "_CopyFromGpuToHost"
    node = compat.made_node(name, op, [source], device, T=dtype)
    return CopyOps(nodes=(node,), start=node, end=node)


def swap_in(name: str, out: CopyOps, dtype: str, device: str) -> CopyOps:
    """Make a copy back to the device, queued once it may begin."""
    begin = compat.made_node(f"{name}/begin", "NoOp", [f"^{out.end.name}"], device)
    inputs = [out.end.name, f"^{begin.name}"]
    copy = compat.made_node(name, "_CopyFromHostToGpu", inputs, device, T=dtype)
    settled = compat.made_node(f"{name}/settled", "NoOp", [f"^{begin.name}"], device)
    nodes = (begin, copy, settled)
    return CopyOps(nodes=nodes, start=begin, end=copy, settled=settled)


def wait_for(node: compat.NodeDef, names: Sequence[str]) -> None:
    """Add the control inputs that a node does not have yet."""
    there = set(node.input)
    missing = (name for name in dict.fromkeys(names) if f"^{name}" not in there)
    node.input.extend(f"^{name}" for name in missing)


class Waits:
    """Collects control inputs, then writes them into the nodes.

    Args:
        resolved: A plan that `lms.ir.plan.validate_plan` accepts, resolved.

    Attributes:
        released: Ops by the chain position that waits for the memory they free.
    """

    def __init__(self, resolved: ResolvedPlan) -> None:
        self._plan = resolved
        self._chain = resolved.plan.chain
        self.released: dict[int, list[str]] = defaultdict(list)
        self._settled: dict[int, list[str]] = defaultdict(list)
        self._triggered: list[tuple[compat.NodeDef, int, int | None]] = []
        self._outside: list[tuple[str, str]] = []  # of ops outside the chain

    def leave(self, swap: ResolvedSwap, out: CopyOps) -> None:
        """Record the waits of a swap-out."""
        if swap.release_link is not None:
            self.released[swap.release_link].append(out.end.name)
        elif swap.release is not None:
            self._outside.append((self._name(swap.release), out.end.name))

    def come(self, copy: ResolvedSwapIn, back: CopyOps) -> None:
        """Record the waits of a swap-in."""
        if copy.trigger is not None:
            self._triggered.append((back.start, copy.trigger, copy.trigger_link))
        if back.settled is not None and copy.trigger_link is not None:
            self._settled[copy.trigger_link + 1].append(back.settled.name)

    def wire(self, nodes: Mapping[str, compat.NodeDef]) -> None:
        """Add the control inputs.

        By the `settled` ops each step asks the allocator in the planned order.

        Args:
            nodes: The step's own nodes, by name.
        """
        for start, trigger, at in self._triggered:
            wait_for(start, [self._name(trigger)])
            if at is not None:
                wait_for(start, self.released.get(at + 1, ()))
        for op, ended in self._outside:
            wait_for(nodes[op], [ended])
        before: Sequence[str] = ()
        for i, name in enumerate(self._chain):
            waits = *before, *self.released.get(i, ()), *self._settled.get(i, ())
            wait_for(nodes[name], waits)
            before = (name,)

    def _name(self, position: int) -> str:
        return self._plan.ops[position].name


def rewrite(
    step: TracedStep,
    plan: SwapPlan,
    commit_flag: Sequence[compat.NodeDef] = (),
    late: Sequence[str] = (),
) -> list[compat.NodeDef]:
    """The step's nodes with the plan built in.

    Args:
        step: The traced step.
        plan: A plan that `validate_plan` accepts for `step.graph`.
        commit_flag: Nodes of the commit point; the last one is on the device.
        late: Names of ops with deferred writes, which wait for the commit point.

    Returns:
        New nodes; names of the step's own nodes are kept, new ones begin with `lms/`.

    Raises:
        PlanError: If the plan would make ops wait for each other in a cycle.
    """
    nodes = {node.name: compat.copied(node) for node in step.nodes}
    resolved = resolve(step.graph, plan)
    waits = Waits(resolved)
    added: list[compat.NodeDef] = []
    for number, swap in enumerate(resolved.swaps):
        tensor = swap.buffer.root
        producer = nodes[op_of(tensor)]
        dtype = step.graph.tensors[tensor].dtype
        prefix = f"lms/{number}/{producer.name}"
        out = swap_out(f"{prefix}/out", tensor, dtype, producer.device)
        added += out.nodes
        waits.leave(swap, out)
        extender, at = _keeper(step.graph, swap, prefix, producer.device, resolved)
        if extender is not None:
            added.append(extender)
            waits.released[at].append(extender.name)
        for k, copy in enumerate(swap.swap_ins):
            back = swap_in(f"{prefix}/in{k}", out, dtype, producer.device)
            added += back.nodes
            waits.come(copy, back)
            readers = [plan.order[position] for position in copy.readers]
            added += _reroute(
                step.graph, nodes, readers, tensor, back.end.name, f"in{k}"
            )
    waits.wire(nodes)
    added += commit_flag
    for name in late:  # ops on the host wait there: a copy waits for the whole device
        begin = -1 if nodes[name].device in ("", step.device) else -2
        wait_for(nodes[name], [commit_flag[begin].name])
    result = [*nodes.values(), *added]
    _refuse_cycle(result, step.graph)
    return result


def _keeper(
    graph: GraphView,
    swap: ResolvedSwap,
    prefix: str,
    device: str,
    resolved: ResolvedPlan,
) -> tuple[compat.NodeDef | None, int]:
    """Make an op that holds the original until the plan frees its memory.

    A swap-out may end at any time before the op that waits for it. In each step other
    tensors would take the memory freed then, and fragment memory otherwise than
    planned. Element-wise readers would reuse the buffer, or not.

    Returns:
        The op and the chain position before which it must run; None where none is
        needed.
    """
    near = [resolved.ops[position] for position in swap.near]
    ordered = [op.name for op in near if op.name in resolved.link_of]
    last = max((resolved.link_of[name] for name in ordered), default=-1)
    until = swap.release_link or 0
    if until == 0 and (last < 0 or not any(op.inplace for op in near)):
        return None, 0
    names = [*ordered, *resolved.plan.chain[max(0, until - 1) : until]]
    inputs = [swap.buffer.root, *(f"^{name}" for name in dict.fromkeys(names))]
    types = {"T": graph.tensors[swap.buffer.root].dtype, "out_type": tf.int32}
    extender = compat.made_node(f"{prefix}/keep", "Shape", inputs, device, **types)
    return extender, max(last + 1, until)


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
            alias = compat.copied(nodes[op.name])
            alias.name = f"{copy}/{suffix}/{op.name}"
            alias.input[0] = moved(op.alias or root)
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
    """Refuse a cycle of ops; a loop's exits count as waiting for its body.

    TensorFlow would not complain: a step whose ops wait in a cycle ends without them.
    """
    types = {node.name: node.op for node in nodes}
    waits: TopologicalSorter[str] = TopologicalSorter()
    for node in nodes:
        sources = {name.removeprefix("^").partition(":")[0] for name in node.input}
        sources = {n for n in sources if types.get(n, "") not in ("", "NextIteration")}
        if node.op == "Exit" and node.name in graph.by_name:
            sources |= set(graph.by_name[node.name].controls) & types.keys()
        waits.add(node.name, *sorted(sources))
    try:
        waits.prepare()
    except CycleError as error:
        *cycle, _ = error.args[1]  # ends with its first op
        raise PlanError(
            f"Could not obey the plan: {len(cycle)} ops wait in a cycle, each for the "
            f"op before: {_shortened(cycle)}. Report the model, or plan the step again."
        ) from error


def _shortened(names: Sequence[str]) -> str:
    shown = [repr(name) for name in names[:_SHOWN]]
    return ", ".join(shown + ["..."] * (len(names) > _SHOWN))
