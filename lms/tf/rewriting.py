"""Obey a plan: new nodes with swap-outs, swap-ins and an order, made callable again.

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

An ordered op waits for the one before it, for the swap-outs whose room it needs, and
until the swap-ins that start beside it have theirs. A swap-in waits for its trigger and
for the room that is freed for it. Copies are TensorFlow's own ops for swaps, which
Grappler's swapper left: ops of a GPU, so a step stays in one piece.

A copy to the device waits for all that was launched before it. So launches must not run
ahead while a swap-in has its trigger but not yet its tensor:

    trigger, swap-out ──> begin ──> swap-in            takes its room, queues the copy
                            └─────> settled ──> the link after the trigger

`begin` ends in the thread that launches, which then goes on with the swap-in before
what waits for `settled`: room is taken in the order that was planned.

In a sealed step, swap-ins that start beside one op begin one after the other, and
spacers (`lms.planning.spacers`) come before each:

    op 0 ──> spacer ──> begin ──> settled ──> spacer ──> op 1
               └──────> keep, which holds the spacer until its room is needed

A recomputed op reads the inputs of its op in the planned graph. Control inputs are not
copied: the ops that the first run waited for have ended long before, and the plan's
order says when the op is recomputed.

Sources: TensorFlow's `gpu_swapping_kernels.cc` (both copy ops), `gpu_util.cc` (what
copies wait for), `executor.cc` (`inline_ready`: first come, first served).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

import tensorflow as tf

from lms.errors import PlanError
from lms.ir.graph import GraphView, Op, op_of
from lms.ir.liveness import old_readers
from lms.ir.plan import ResolvedSwap, ResolvedSwapIn, SwapPlan, resolve
from lms.ir.recompute import original_name
from lms.planning.addresses import CHUNK, Turn
from lms.planning.problem import UNLIMITED
from lms.planning.spacers import Spacer
from lms.simulation.allocator import SmallPool
from lms.tf import compat
from lms.tf.capture.tracing import TracedFunction, input_specs
from lms.tf.lowering import TracedStep
from lms.tf.nodes import (
    COPY_IN,
    COPY_OUT,
    Nodes,
    data_of,
    full_name,
    source_of,
    waits_of,
)
from lms.tf.watch import Watch
from lms.units import Bytes

__all__ = ["RebuiltStep", "Seal", "guarded", "planned_step", "rebuild", "rewrite"]
__all__ += ["run_without_inputs", "with_constants"]

_SHOWN = 12  # ops of a cycle that a message names


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """Where the chunks of a sealed step lie.

    Args:
        spacers: The step's turns, each with the spacers before it.
        apart: Tensors of ops without order: they come before the step's first ordered
            op, and stay until its last one has ended.
        addresses: Planned address in the arena of each chunk, by its key.
        below: Smaller tensors, in bytes, have no planned address.
    """

    spacers: Sequence[tuple[Turn, Sequence[Spacer]]] = ()
    apart: Sequence[str] = ()
    addresses: Mapping[int, int] = field(default_factory=dict[int, int])
    below: Bytes = UNLIMITED


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltStep:
    """A step that runs exactly the nodes it was built from.

    Args:
        function: The runtime's function of flat tensors.
        captures: Tensors that every call passes after its inputs.
        concrete: The traced function, whose output structure is given back.
    """

    function: Any
    captures: tuple[tf.Tensor, ...]
    concrete: Any

    def __call__(self, inputs: Sequence[tf.Tensor]) -> Any:
        """Run the step on flat inputs; return results structured as traced."""
        with compat.planned_as_is():
            outputs = self.function.call_flat(*inputs, *self.captures)
        return compat.pack_outputs(self.concrete, outputs)


def planned_step(step: TracedStep, graph: GraphView) -> TracedStep:
    """The step with `graph`, to which a plan has added ops; its nodes stay as given.

    Nodes that other devices' plans have added stay too.
    """
    if graph is step.graph:
        return step
    given = {node.name: node for node in step.nodes}
    before = step.graph.by_name
    nodes = tuple(
        given[op.name] if before.get(op.name) == op else _reading(given, op)
        for op in graph.ops
        if op.name in given or before.get(op.name) != op  # arguments have no nodes
    )
    others = (node for node in step.nodes if node.name not in graph.by_name)
    return replace(step, graph=graph, nodes=(*nodes, *others))


def rewrite(
    step: TracedStep,
    plan: SwapPlan,
    seal: Seal | None = None,
    *,
    number: int = 0,
    watch: Watch | None = None,
) -> list[compat.NodeDef]:
    """The step's nodes with the plan of its device built in.

    Args:
        step: The traced step.
        plan: A plan that `lms.ir.plan.validate_plan` accepts for `step.graph`.
        seal: Where the chunks of a sealed step lie.
        number: Number of the device among those of the step.
        watch: Compares the tensors that leave the device; None to compare none.

    Returns:
        New nodes; names of the step's own nodes are kept, new ones begin with `lms`.

    Raises:
        PlanError: If the plan would make ops wait for each other in a cycle.
    """
    rewriter = _Rewriter(step, plan, f"{number or ''}", watch)
    nodes = rewriter.nodes
    rewriter.move()
    rewriter.wire(seal or Seal())
    rewriter.hold_back()
    if not (plan.is_empty or plan.chain_is_partial):
        rewriter.write_in_place()
    if watch is not None:
        watch.pack(nodes)
    result = [*nodes]
    _refuse_cycle(result, step.graph)
    return result


def guarded(
    nodes: Sequence[compat.NodeDef],
    graph: GraphView,
    device: str,
    guards: Iterable[tuple[Sequence[compat.NodeDef], Sequence[str]]],
) -> list[compat.NodeDef]:
    """The step's nodes with writes that wait.

    Args:
        nodes: The step's nodes.
        graph: Their graph.
        device: Full name of the device of nodes without one.
        guards: New nodes, and names of the ops that wait for the last on their device,
            or for the host's.

    Raises:
        PlanError: If ops would wait for each other in a cycle.
    """
    found = Nodes(nodes)
    for made, writers in guards:
        for node in made:
            found.add(node)
        ends = {node.device: node.name for node in made if node.op == "Identity"}
        host = next((node.name for node in made if node.op == "PyFunc"), "")
        for name in writers:  # host at once: the way back waits for the whole device
            found.wait(found[name], [ends.get(found[name].device or device, host)])
    result = [*found]
    _refuse_cycle(result, graph)
    return result


def rebuild(
    traced: TracedFunction,
    step: TracedStep,
    nodes: Sequence[compat.NodeDef],
    *,
    as_traced: bool = False,
) -> RebuiltStep:
    """Make rewritten nodes of a traced step callable.

    With `as_traced` the callable takes all shapes of the trace, not only the step's.
    """
    graph_def = compat.graph_def(nodes, step.library)
    opened = input_specs(traced) if as_traced else []
    specs = [*opened, *(a.spec for a in step.arguments[len(opened) :])]
    pairs = zip(step.arguments, specs, strict=True)
    arguments = [(a.name, spec, a.variable) for a, spec in pairs]
    return RebuiltStep(
        function=compat.build_function(graph_def, arguments, step.outputs),
        captures=traced.captures,
        concrete=traced.concrete,
    )


def run_without_inputs(step: TracedStep) -> None:
    """Run all ops of a step that depend on no input, for their writes."""
    reached = {a.name for a in step.arguments if a.captured is None}
    rest, before = list(step.nodes), -1
    while len(rest) != before:  # loops have edges back
        before = len(rest)
        for node in rest:
            if not reached.isdisjoint(map(source_of, node.input)):
                reached.add(node.name)
        rest = [node for node in rest if node.name not in reached]
    captured = [a for a in step.arguments if a.captured is not None]
    arguments = [(a.name, a.spec, a.variable) for a in captured]
    graph_def = compat.graph_def(rest, step.library)
    function = compat.build_function(graph_def, arguments, ())
    function.call_flat(*(a.captured for a in captured))


def with_constants(pool: SmallPool, added: Sequence[compat.NodeDef]) -> SmallPool:
    """The pool with a chunk for each constant among the nodes that a plan adds."""
    if not pool.sizes:
        return pool
    count = sum(node.op == "Const" for node in added)
    return replace(pool, sizes=pool.sizes + (1,) * count)


def _reading(given: Mapping[str, compat.NodeDef], op: Op) -> compat.NodeDef:
    """The node of an op that is recomputed, or that reads a recomputed tensor."""
    own = given[original_name(op.name)]
    is_copy = own.name != op.name
    node = compat.copied(own, [*op.inputs, *(() if is_copy else waits_of(own))])
    node.name = op.name
    return node


class _Rewriter:
    """Adds copies to nodes, and collects what waits for what."""

    def __init__(
        self, step: TracedStep, plan: SwapPlan, label: str, watch: Watch | None
    ) -> None:
        self.nodes, self._graph = Nodes(step.nodes), step.graph
        self._watch = watch
        self._label = label  # tells the devices' nodes apart
        self._device = step.device
        self.plan = resolve(step.graph, plan)
        # By link of the chain, what it waits for: ops whose room it needs, and swap-ins
        # that have theirs.
        self._released: dict[int, list[str]] = defaultdict(list)
        self._settled: dict[int, list[str]] = defaultdict(list)
        self._begun: list[tuple[compat.NodeDef, int]] = []  # swap-ins of a link
        self._starts: dict[str, compat.NodeDef] = {}  # of swap-ins, by their names
        self._spacers: dict[int, None] = {}  # not given back yet
        self._outside: list[tuple[str, str]] = []  # ops that are not ordered

    def move(self) -> None:
        """Add the copies of all swaps."""
        for number, swap in enumerate(self.plan.swaps):
            self._move(swap, self._copies_of(number))

    def _copies_of(self, number: int) -> str:
        root = self.plan.swaps[number].buffer.root
        return f"lms{self._label}/{number}/{op_of(root)}"

    def _move(self, swap: ResolvedSwap, prefix: str) -> None:
        tensor = swap.buffer.root
        is_received = self._graph.by_name[op_of(tensor)].from_card
        device = self._device if is_received else self.nodes[op_of(tensor)].device
        dtype = self._graph.tensors[tensor].dtype
        out = self.nodes.make(f"{prefix}/out", COPY_OUT, [tensor], device, T=dtype)
        if swap.release_link is not None:
            self._released[swap.release_link].append(out.name)
        elif swap.release is not None:
            self._outside.append((self.plan.ops[swap.release].name, out.name))
        self._hold(swap, f"{prefix}/keep", device)
        made = self._graph.tensors[tensor]
        if self._watch:
            self.nodes.wait(out, self._watch.add(self.nodes, prefix, tensor, made))
        for k, copy in enumerate(swap.swap_ins):
            name = f"{prefix}/in{k}"
            self._swap_in(copy, name, out)
            self._reroute(copy, tensor, name)
            if self._watch:
                readers = self.nodes.readers(name)
                digest = self._watch.add(self.nodes, name, name, made)
                for reader in readers:
                    self.nodes.wait(reader, digest)

    def _hold(self, swap: ResolvedSwap, name: str, device: str) -> None:
        """Add an op that holds the original until its room is to be free.

        A swap-out may end at any time before the op that waits for it. If the room were
        free from then on, other tensors would take it, other ones each time, and the
        allocator would end up with other holes than were planned. Element-wise readers
        would write over it, or not.
        """
        near = [self.plan.ops[position] for position in swap.near]
        ordered = [op.name for op in near if op.name in self.plan.link_of]
        last = max((self.plan.link_of[name] for name in ordered), default=-1)
        until = swap.release_link or 0
        if until == 0 and (last < 0 or not any(op.inplace for op in near)):
            return
        names = [*ordered, *self.plan.plan.chain[max(0, until - 1) : until]]
        dtype = self._graph.tensors[swap.buffer.root].dtype
        self._touch(name, swap.buffer.root, dtype, dict.fromkeys(names), device)
        self._released[max(last + 1, until)].append(name)

    def _swap_in(self, copy: ResolvedSwapIn, name: str, out: compat.NodeDef) -> None:
        """Add a copy to the device, queued once it may begin."""
        device, begin = out.device, f"{name}/begin"
        start = self.nodes.make(begin, "NoOp", [f"^{out.name}"], device)
        self._starts[name] = start
        inputs, settled = [out.name, f"^{begin}"], f"{name}/settled"
        self.nodes.make(name, COPY_IN, inputs, device, T=out.attr["T"].type)
        self.nodes.make(settled, "NoOp", inputs[1:], device)
        if copy.trigger is not None:
            self.nodes.wait(start, [self.plan.ops[copy.trigger].name])
        if copy.trigger_link is not None:
            self._begun.append((start, copy.trigger_link + 1))
            self._settled[copy.trigger_link + 1].append(settled)

    def _reroute(self, copy: ResolvedSwapIn, root: str, name: str) -> None:
        """Let readers read the copy, through aliases of their own."""
        nodes, on_copy = self.nodes, {root: f"{name}:0"}
        at = name.rpartition("/")[2]

        def moved(tensor: str) -> str:
            if tensor not in on_copy:
                op = self._graph.by_name[op_of(tensor)]
                source = moved(op.alias or root)
                alias = nodes.copy_of(nodes[op.name], f"{name}/{at}/{op.name}")
                nodes.give(alias, [source, *alias.input[1:]])
                on_copy[tensor] = f"{alias.name}:{tensor.rpartition(':')[2]}"
            return on_copy[tensor]

        for position in copy.readers:
            reader = nodes[self.plan.plan.order[position]]
            names, roots = map(full_name, data_of(reader)), self._graph.roots
            new = {each: moved(each) for each in names if roots.get(each) == root}
            nodes.redirect(new, [reader])

    def wire(self, seal: Seal) -> None:
        nodes, before = self.nodes, self._arrive(seal.apart)
        turns: dict[str, list[tuple[Turn, Sequence[Spacer]]]] = defaultdict(list)
        for turn, each in seal.spacers:
            turns[turn.op].append((turn, each))
        for start, link in self._begun:
            nodes.wait(start, self._released.get(link, ()))
        for op, ended in self._outside:
            nodes.wait(nodes[op], [ended])
        come_first, held = {op_of(tensor) for tensor in seal.apart}, [*seal.apart]
        for i, name in enumerate(self.plan.plan.chain):
            waits = [*before, *self._released.get(i, ())]
            for turn, each in turns.get(name, ()):
                waits = self._space(each, waits)
                if turn.copy is not None:
                    swap, number = turn.copy
                    copy = f"{self._copies_of(swap)}/in{number}"
                    nodes.wait(self._starts[copy], waits)
                    waits = [f"{copy}/settled"]
            waits += self._settled.get(i, ())
            if name in come_first:
                before = waits
                continue
            nodes.wait(nodes[name], waits)
            op = self._graph.by_name[name]
            large = [t.name for t in op.outputs if t.size >= seal.below]
            arrived = self._arrive(large if op.from_host else ())
            for hold in self._released.get(i + 1, ()):  # not before the memory is taken
                nodes.wait(nodes[hold], arrived)
            before = [name, *arrived, *self._sent(op)]
            before += self._watch.add_second_runs(nodes, op) if self._watch else ()
            held += large if op.to_host else ()
        end = [Spacer(number, 0) for number in self._spacers]
        kept = [self._look(tensor, f"lms{self._label}/kept", before) for tensor in held]
        ends = [*self._space(end, before), *kept]
        if end or held:
            waits = (f"^{name}" for name in ends)
            nodes.make(f"{compat.END}{self._label}", "NoOp", waits, self._device)

    def write_in_place(self) -> None:
        """Let writes to variables wait for the planned readers of the old values.

        A variable whose old value is held gets new memory: the old places of small
        ones, side by side, would be a free fragment that large tensors fit.
        """
        ordered, here = self._graph.reordered(self.plan.plan.order), ("", self._device)
        for position, _, readers in old_readers(ordered):
            writer, *held = (
                ordered.ops[i] for i in (position, *readers) if i <= position
            )
            waits = [
                one.name
                for one in held
                if not (one.fixed or one.persistent)
                and self.nodes[one.name].device in here
            ]
            if not writer.fixed and self.nodes[writer.name].device in here:
                self.nodes.wait(self.nodes[writer.name], waits)

    def _arrive(self, tensors: Sequence[str]) -> list[str]:
        """Wait for tensors from the host; returns what the chain waits for."""
        prefix = f"lms{self._label}/arrived"
        return [self._look(tensor, prefix, ()) for tensor in tensors]

    def _sent(self, op: Op) -> list[str]:
        """Wait for other cards to copy outputs; returns what the chain waits for."""
        prefix, found = f"lms{self._label}/sent", list[str]()
        for tensor in op.outputs if self.nodes[op.name].device == self._device else ():
            devices = {node.device for node in self.nodes.readers(tensor.name)}
            for i, device in enumerate(sorted(devices - {"", self._device})):
                if "GPU" in device and tensor.size:
                    looked = self._look(tensor.name, f"{prefix}{i}", (), device)
                    found.append(looked)
        return found

    def hold_back(self) -> None:
        """Let what waits for a swap-out wait for `_sent`'s ops of the tensor, too."""
        sent = [n for n in self.nodes if n.name.startswith("lms") and "/sent" in n.name]
        for node in sent:
            for out in self.nodes.readers(node.input[0]):
                if out.op == COPY_OUT and out.device == node.device:
                    self.nodes.replace_waits(out.name, [out.name, node.name])

    def _look(
        self, tensor: str, prefix: str, waits: Sequence[str], device: str = ""
    ) -> str:
        """Add an op on a device that reads a tensor's shape; returns its name.

        Numbers of int32 are read as float32: `Shape` takes int32 from the host
        (shape_ops.cc).
        """
        name = f"{prefix}/{tensor.replace(':', '_')}"
        dtype, device = self._graph.tensors[tensor].dtype, device or self._device
        if dtype == "int32":
            bits, types = f"{name}/bits", {"T": dtype, "type": tf.float32}
            self.nodes.make(bits, "Bitcast", [tensor], device, **types)
            tensor, dtype = bits, "float32"
        return self._touch(name, tensor, dtype, waits, device)

    def _touch(
        self, name: str, tensor: str, dtype: object, waits: Iterable[str], device: str
    ) -> str:
        """Add an op that holds a tensor until all of `waits` have ended."""
        inputs = [tensor, *(f"^{each}" for each in waits)]
        types = {"T": dtype, "out_type": tf.int32}
        return self.nodes.make(name, "Shape", inputs, device, **types).name

    def _space(self, spacers: Sequence[Spacer], waits: list[str]) -> list[str]:
        """Take spacers and give them back in order; returns what to wait for."""
        for spacer in spacers:
            name, device = f"lms{self._label}/spacer{spacer.number}", self._device
            if spacer.size:
                count = spacer.size // CHUNK  # of rows: TensorFlow counts to 2^31
                rows = f"lms{self._label}/rows{count}"
                if self.nodes.get(rows) is None:
                    shape = [count, CHUNK]
                    self.nodes.add(compat.constant(rows, shape, tf.int32, device))
                inputs = [rows, *(f"^{each}" for each in waits)]
                self.nodes.make(name, "Empty", inputs, device, dtype=tf.uint8)
                self._spacers[spacer.number] = None
                waits = [name]
            else:
                del self._spacers[spacer.number]
                waits = [self._touch(f"{name}/keep", name, tf.uint8, waits, device)]
        return waits


def _refuse_cycle(nodes: Sequence[compat.NodeDef], graph: GraphView) -> None:
    """Name a cycle; a loop's back edges count as its ends waiting for its body.

    TensorFlow would not complain: a step whose ops wait in a cycle ends without them.
    """
    types = {node.name: node.op for node in nodes}
    waits: TopologicalSorter[str] = TopologicalSorter()
    for node in nodes:
        sources = set(map(source_of, node.input))
        sources = {n for n in sources if types.get(n, "") not in ("", "NextIteration")}
        if node.op == "Exit" and node.name in graph.by_name:
            sources |= set(graph.by_name[node.name].controls) & types.keys()
        waits.add(node.name, *sorted(sources))
    try:
        waits.prepare()
    except CycleError as error:
        *cycle, _ = error.args[1]  # ends with its first op
        shown = [*map(repr, cycle[:_SHOWN]), *["..."] * (len(cycle) > _SHOWN)]
        raise PlanError(
            f"Could not obey the plan: {len(cycle)} ops wait in a cycle, each for the "
            f"op before: {', '.join(shown)}. Report the model, or plan the step again."
        ) from error
