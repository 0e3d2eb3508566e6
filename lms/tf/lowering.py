"""Turn a traced function and the shapes of one call into plain data for planners.

      optimised graph + shapes of a batch ──specialise──> TracedStep (GraphView, nodes)

Assumptions
    - An iterator argument is cut off: outputs of `IteratorGetNext` become arguments, so
      that their shapes are known, and a last partial batch is planned by itself.
    - A tensor whose shape depends on values counts as its bound. The tensor is neither
      moved nor recomputed, as copies have a fixed size.
    - Ops inside loops and branches (between Switch and Merge, Enter and Exit) are
      `fixed`: a control edge into or out of a dead branch would carry its deadness.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from typing import Any

import tensorflow as tf

from lms.errors import UnsupportedError
from lms.ir.graph import GraphView, Op, Tensor
from lms.ir.liveness import peak
from lms.planning.candidates import smallest_worth_moving
from lms.tf import compat
from lms.tf.capture import device_orders
from lms.tf.capture import ops as kinds
from lms.tf.capture.bound_values import is_open, known_shape
from lms.tf.capture.loops import control_flow, loop_ends
from lms.tf.capture.shapes import filled_shapes, inferred_shapes, told_shapes
from lms.tf.capture.tracing import TracedFunction
from lms.tf.nodes import (
    OPAQUE,
    Nodes,
    bytes_of,
    data_of,
    full_name,
    source_of,
    waits_of,
)
from lms.tf.passes import Pass, Step, host_transfers
from lms.tf.passes.assign_in_place import ASSIGN_IN_PLACE, NOTHING, PLACED
from lms.tf.passes.branches import ONE_BRANCH
from lms.tf.passes.chosen_writes import CHOOSE_WRITES
from lms.tf.passes.compiled import OPEN_COMPILED
from lms.tf.passes.constant_folding import WAIT_FOR_NO_CONSTANT, with_folded
from lms.tf.passes.copy_on_read import COPY_OFF, copying, with_copies_counted
from lms.tf.passes.host_variables import COPY_HOST_VARIABLES, lies_on_host
from lms.tf.passes.splitting import SLICE, OpSize, regions, with_slices
from lms.tf.passes.tensor_lists import LISTS_ON_HOST, HostLists, ListFinder, Lists
from lms.units import Bytes

__all__ = ["Argument", "TracedStep", "specialise"]

_NO_EDGES = dict[str, tuple[str, ...]]()
_AXES = 3  # axes along which an op may be split, one after the other
_PAIR = 2  # inputs of a sum that has equal bits in both orders


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One flat argument of a step.

    Args:
        name: Name of its node.
        spec: Its type and static shape.
        variable: For a variable's handle: the variable's type and shape.
        captured: The captured tensor that is always passed; None for an input.
        lies_on_host: Whether it is a variable of the device that lies on the host.
        readers: Full names of the devices of the ops that read it.
    """

    name: str
    spec: tf.TensorSpec
    variable: tf.TensorSpec | None = None
    captured: tf.Tensor | None = None
    lies_on_host: bool = False
    readers: frozenset[str] = frozenset()

    def is_of_another(self, device: str) -> bool:
        """Tell whether it takes memory of other GPUs alone."""
        places = self.readers
        if self.captured is not None and self.captured.device:
            places = {self.captured.device}
        return bool(places) and all("GPU" in p and p != device for p in places)

    @property
    def size(self) -> Bytes:
        """Bytes of the variable's value, or of the tensor."""
        return _described("captured", self.variable or self.spec).size


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """A traced function for one signature, with all shapes known.

    Args:
        graph: The graph for planners.
        nodes: TensorFlow's nodes of the graph's ops, arguments and results excluded.
        library: Functions that the nodes call (loop bodies, data sets).
        arguments: Inputs first, then captures.
        outputs: Names of the tensors to return.
        device: Name of the device that memory is planned for.
        own: The step as TensorFlow would run it; None if no pass changed the step.
        unknown_loops: Names of the loops that keep tensors for an unknown number of
            rounds; the graph leaves out these bytes.
        guessed: Names of the ops whose outputs may have any size; the graph guesses it.
        lists: Lists of loops that may move to the host.
        ops_cut: Number of ops that were split into parts.
        here: Positions of the inputs that lie on the device before the step is called.
    """

    graph: GraphView
    nodes: tuple[compat.NodeDef, ...]
    library: Any
    arguments: tuple[Argument, ...]
    outputs: tuple[str, ...]
    device: str
    own: "TracedStep | None" = None
    unknown_loops: tuple[str, ...] = ()
    guessed: tuple[str, ...] = ()
    lists: tuple[HostLists, ...] = ()
    ops_cut: int = 0
    here: frozenset[int] = frozenset()

    @property
    def unknown_memory(self) -> tuple[str, ...]:
        """Names of the loops and ops whose memory is unknown."""
        return self.unknown_loops + self.guessed

    @property
    def draws_noise(self) -> bool:
        """Tell whether kernels draw random numbers by a seed and a state of their own.

        A kernel built anew begins with its seed, if any (not 0), again. cuDNN's
        recurrent layers draw numbers for dropout alone.
        """
        inner = self.library.function if self.library else ()
        nodes = chain(self.nodes, *(function.node_def for function in inner))
        drawing = (node.attr for node in nodes if "seed" in node.attr)
        seeded = (e for e in drawing if e["seed"].i or ("seed2" in e and e["seed2"].i))
        return any("dropout" not in each or each["dropout"].f > 0 for each in seeded)

    @property
    def signature(self) -> str:
        """Shapes of the inputs, as text for people."""
        shapes = ["x".join(map(str, a.spec.shape)) for a in self._inputs]
        return ", ".join(shape or "scalar" for shape in shapes)

    @property
    def inputs_of_types(self) -> list[tuple[int, str]]:
        """Bytes and type of each input that the device receives."""
        inputs = self._inputs
        names = (f"{inputs[i].name}:0" for i in self.received)
        tensors = map(self.graph.tensors.__getitem__, names)
        return [(tensor.size, tensor.dtype) for tensor in tensors]

    @property
    def input_bytes(self) -> int:
        """Bytes of the inputs."""
        return sum(size for size, _ in self.inputs_of_types)

    @property
    def captured_bytes(self) -> int:
        """Bytes on the device of the variables and tensors that the step captures."""
        return sum(
            a.size
            for a in self.arguments
            if a.captured is not None
            and a.captured.device in ("", self.device)
            and not a.lies_on_host
        )

    @property
    def held_bytes(self) -> int:
        """Bytes of captures, inputs and constants on the device before the step."""
        own = self.captured_bytes + self.input_bytes
        return own + self.graph.constant_bytes

    @property
    def variables(self) -> dict[str, tuple[tf.Tensor, tf.DType]]:
        """Handles and types of the captured variables, by names in the graph."""
        return {
            f"{a.name}:0": (a.captured, a.variable.dtype)
            for a in self.arguments
            if a.captured is not None and a.variable is not None
        }

    @property
    def received(self) -> list[int]:
        """Positions of the inputs that the device receives."""
        own = (not a.is_of_another(self.device) for a in self._inputs)
        return [i for i, is_own in enumerate(own) if is_own and i not in self.here]

    @property
    def _inputs(self) -> list[Argument]:
        return [a for a in self.arguments if a.captured is None]


PASSES = (
    ONE_BRANCH,
    host_transfers.SIGNS_ON_DEVICE,
    OPEN_COMPILED,
    WAIT_FOR_NO_CONSTANT,
    COPY_OFF,
    COPY_HOST_VARIABLES,
    ASSIGN_IN_PLACE,
    LISTS_ON_HOST,
)
"""Passes before planning, in this order."""


def specialise(  # noqa: PLR0913 - one for each rewrite
    traced: TracedFunction,
    inputs: Sequence[Any],
    *,
    device: str,
    lists: Sequence[HostLists] = (),
    on_host: Sequence[Any] = (),
    sizes: Sequence[tuple[str, OpSize]] = (),
    guesses: bool = False,
    behind: Sequence[Sequence[str]] = (),
) -> TracedStep:
    """Give a traced function the shapes of one call.

    Args:
        traced: The traced function.
        inputs: The flat inputs or their specs, all shapes known.
        device: Full name of the device that memory is planned for.
        lists: Lists of loops to move to the host.
        on_host: Handles of variables that count as lying on the host.
        sizes: By full name of a device the limit of an op's bytes there; larger ops are
            split, as far as they can be.
        guesses: Whether sizes that depend on values are guessed, not bounded.
        behind: Names of ops that run in this order, for each device planned before.

    Returns:
        The step as plain data beside its nodes.

    Raises:
        UnsupportedError: If an input's shape is not known.
    """
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]
    cut, arguments, outputs = _cut(traced, specs, {id(handle) for handle in on_host})
    numbers = device_orders.numbers_in({a.name: a.captured for a in arguments})

    def step_of(
        nodes: Sequence[compat.NodeDef],
        library: Any,
        own: TracedStep | None,
        device: str = device,
        edges: Mapping[str, Sequence[str]] = _NO_EDGES,
    ) -> TracedStep:
        inputs = [(a.name, a.spec, a.variable) for a in arguments]
        shapes = inferred_shapes(nodes, library, inputs, stacked=guesses)
        shapes = told_shapes(shapes, traced.concrete.graph) | {
            name: [tf.TensorSpec([0], spec.dtype) for spec in specs]
            for name, specs in shapes.items()
            if name.endswith(NOTHING)  # the value that empties a variable
        }
        graph, ordered, found, guessed = _seen(
            nodes, arguments, outputs, shapes, device, edges, guesses=guesses
        )
        return TracedStep(
            graph=graph,
            nodes=tuple(ordered),
            library=library,
            arguments=arguments,
            outputs=tuple(outputs),
            device=device,
            own=own,
            unknown_loops=found.unknown
            + tuple(node.name for node in ordered if node.op in kinds.LOOPS),
            guessed=guessed,
            lists=found.movable,
        )

    own = step_of(cut, traced.graph_def.library, None)
    chosen = Nodes(own.nodes, own.library)
    variables = {a.name: a.variable for a in arguments if a.variable is not None}
    begun = Step(device=device, fixed=control_flow(own.nodes), variables=variables)
    CHOOSE_WRITES.run(chosen, begun)
    if (nodes := tuple(chosen)) != own.nodes:
        own = step_of(nodes, chosen.library, None)
    known = Step(
        device=device,
        ends=loop_ends(own.nodes),
        fixed=control_flow(own.nodes),
        outputs=outputs,
        taken=frozenset(device_orders.always_true(own.nodes, numbers)),
        variables=variables,
        on_host=frozenset(a.name for a in arguments if a.lies_on_host),
        pushes={name for one in lists for name in one.pushes},
        pops=dict(pop for one in lists for pop in one.pops),
    )

    def rewritten(passes: Sequence[Pass]) -> TracedStep:
        graph = Nodes(own.nodes, own.library)
        for one in passes:
            one.run(graph, known)
        nodes = tuple(graph)
        return own if nodes == own.nodes else step_of(nodes, graph.library, own)

    step = rewritten(PASSES)
    if set(step.guessed) - set(own.guessed):  # an assigned value's shape is open
        step = rewritten([one for one in PASSES if one is not ASSIGN_IN_PLACE])
    number = 0
    for place, size in sizes:
        is_here = place == device
        there = step if is_here else step_of(step.nodes, step.library, own, place)
        for _ in range(_AXES):
            found = regions(there.graph, there.nodes, size)
            if not found:
                break
            cut = with_slices(there.nodes, there.graph, found, number)
            names = (name for each in found for name in each.cuts)
            count = there.ops_cut + sum(name in own.graph.by_name for name in names)
            there = replace(step_of(cut, step.library, own, place), ops_cut=count)
            number += 1
        step = there if is_here else step_of(there.nodes, step.library, own)
    between = device_orders.edges_between(step.nodes, device, numbers, behind)
    if between:
        seen = step_of(step.nodes, step.library, own, edges=between)
        return replace(seen, ops_cut=step.ops_cut)
    return step


def refuse_guesses(step: TracedStep) -> None:
    """Refuse a step with guessed sizes, whose memory need is unknown.

    Raises:
        UnsupportedError: If the size of an op's output was guessed.
    """
    if step.guessed:
        name = step.guessed[0]
        others = f" and {len(step.guessed) - 1} others" if step.guessed[1:] else ""
        raise UnsupportedError(
            f"Could not plan the step: outputs of op {name!r}{others} may have any "
            "size. Compute them at a fixed size, such as with a mask in place of "
            "`tf.boolean_mask`; split text in the input pipeline; or train without "
            "large model support."
        )


def _seen(  # noqa: PLR0913 - the facts of a step, not yet a value
    nodes: Sequence[compat.NodeDef],
    arguments: Sequence[Argument],
    outputs: Sequence[str],
    shapes: Mapping[str, list[tf.TensorSpec]],
    device: str,
    edges: Mapping[str, Sequence[str]],
    *,
    guesses: bool,
) -> tuple[GraphView, list[compat.NodeDef], Lists, tuple[str, ...]]:
    """Return (graph, nodes in order, lists of loops, ops of guessed shapes)."""
    ordered = _sorted(nodes, arguments, {})
    ends = {**loop_ends(ordered)}
    for name, before in edges.items():
        ends[name] = (*ends.get(name, ()), *before)
    if ends:
        ordered = _sorted(nodes, arguments, ends)
    fixed = control_flow(ordered)
    shapes, varying, guessed = filled_shapes(ordered, shapes, fixed, guesses=guesses)
    fixed |= {node.name for node in ordered if node.op in kinds.BY_REFERENCE}
    lists = ListFinder(ordered, shapes, guesses=guesses).found()
    fixed |= lists.sizes.keys() | lists.shared
    given = (
        (a.name, _described(f"{a.name}:0", a.spec, counted=not a.is_of_another(device)))
        for a in arguments
    )
    ops = [
        Op(name=name, type="Placeholder", outputs=(tensor,), persistent=True)
        for name, tensor in given
    ]
    back_edges = frozenset(n.name for n in ordered if n.op == "NextIteration")
    ops += [_op(n, shapes, fixed, back_edges, device, lists) for n in ordered]
    ops = _with_views(ops, varying)
    moving = varying - fixed
    # An input that an op overwrites may be smaller than the output: count both.
    how = {"varies": True, "inplace": False, "repeatable": False}
    ops = [replace(op, **how) if op.name in moving else op for op in ops]
    variables = {a.name: a for a in arguments if a.variable is not None}
    here = [node for node in ordered if not _is_elsewhere(node, device)]
    copied = copying(here, variables.keys()).items()
    sizes = {name: sum(variables[n].size for n in names) for name, names in copied}
    ops = with_copies_counted(ops, sizes)
    ops = host_transfers.with_host_memory(ops, ordered, device)
    others = {n.name: n.device for n in ordered if _is_elsewhere(n, device)}
    cards = {name for name, place in others.items() if "GPU" in place}
    ops = host_transfers.with_received(ops, others.keys(), cards)
    ops = [
        replace(op, controls=(*op.controls, *ends[op.name])) if op.name in ends else op
        for op in ops
    ]
    ops = with_folded(ops, ordered, outputs)
    is_alone = len(device_orders.devices_of(ordered)) <= 1
    if not (is_alone and any(a.lies_on_host for a in arguments)):  # else never sealed
        sent = host_transfers.with_sent(ops, ordered, device)
        if cards:
            large = smallest_worth_moving(peak(GraphView(ops=tuple(sent))))
            sent = host_transfers.with_sent(ops, ordered, device, large)
        ops = sent
    graph = GraphView(ops=tuple(ops), results=tuple(dict.fromkeys(outputs)))
    handles = [f"{a.name}:0" for a in arguments if a.variable is not None]
    graph = kinds.with_flops(kinds.with_writes(graph, handles), ordered)
    return graph, ordered, lists, guessed


def _cut(
    traced: TracedFunction, inputs: Sequence[tf.TensorSpec], moved: Collection[int]
) -> tuple[list[compat.NodeDef], tuple[Argument, ...], list[str]]:
    """Return (inner nodes, arguments, names of results) of the optimised graph."""
    args, results = _numbered(traced, "_Arg"), _numbered(traced, "_Retval")
    inner = [n for n in traced.graph_def.node if n.op not in ("_Arg", "_Retval")]
    names = [
        args[i].name if i in args else f"lms_unused_{i}"  # the runtime leaves it out
        for i in range(len(traced.concrete.inputs))
    ]
    renamed: dict[str, str] = {}
    if traced.iterator_spec is not None:
        draw = _draw(inner, names[0])
        inner.remove(draw)
        names = [f"lms_input_{i}" for i in range(len(inputs))] + names[1:]
        renamed = {f"{draw.name}:{i}": names[i] for i in range(len(inputs))}
        renamed[f"^{draw.name}"] = ""
    renamed |= {f"^{name}": "" for name in names}
    nodes, readers = [_renamed(node, renamed) for node in inner], defaultdict(set)
    for node in nodes:
        for name in node.input:
            readers[source_of(name)].add(node.device)
    arguments = [
        Argument(name=name, spec=spec, readers=frozenset(readers[name]))
        for name, spec in zip(names[: len(inputs)], inputs, strict=True)
    ]
    arguments += [
        Argument(
            name=name,
            spec=tf.TensorSpec(capture.shape, capture.dtype),
            variable=compat.handle_spec(capture),
            captured=capture,
            lies_on_host=id(capture) in moved or lies_on_host(capture),
        )
        for name, capture in zip(names[len(inputs) :], traced.captures, strict=True)
    ]
    outputs = [full_name(results[i].input[0]) for i in range(len(results))]
    whole = [full_name(renamed.get(name, name)) for name in outputs]
    return nodes, tuple(arguments), whole


def _numbered(traced: TracedFunction, kind: str) -> dict[int, compat.NodeDef]:
    nodes = (node for node in traced.graph_def.node if node.op == kind)
    return {compat.attribute(node, "index").i: node for node in nodes}


def _draw(nodes: Sequence[compat.NodeDef], iterator: str) -> compat.NodeDef:
    """Return the op that draws the step's batch from the iterator argument."""
    drawing = (node for node in nodes if node.op == "IteratorGetNext")
    draws = [node for node in drawing if source_of(node.input[0]) == iterator]
    if len(draws) != 1:
        raise UnsupportedError(
            f"a step must draw one batch from its iterator, got {len(draws)} draws. "
            "Draw once, and split the batch in the step."
        )
    return draws[0]


def _renamed(node: compat.NodeDef, renamed: Mapping[str, str]) -> compat.NodeDef:
    """Copy a node with renamed inputs, and without attributes of earlier passes."""
    names = (renamed.get(full_name(name), name) for name in node.input)
    copy = compat.copied(node, filter(None, names))
    for key in ("_output_shapes", "_class", "_XlaHasReferenceVars"):
        copy.attr.pop(key, None)
    copy.ClearField("experimental_debug_info")
    return copy


def _sorted(
    nodes: Sequence[compat.NodeDef],
    arguments: Sequence[Argument],
    ends: Mapping[str, Sequence[str]],
) -> list[compat.NodeDef]:
    """Sort nodes first come, first served, about as TensorFlow's ready queue does.

    Edges from NextIteration back to Merge are left out; edges from `ends` are added.
    """
    by_name = {node.name: node for node in nodes}
    given = {argument.name for argument in arguments}
    order: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(by_name, ()))
    for node in nodes:
        sources = {source_of(name) for name in node.input} - given
        if node.op == "Merge":
            sources = {n for n in sources if by_name[n].op != "NextIteration"}
        order.add(node.name, *sources.union(ends.get(node.name, ())))
    try:
        return [by_name[name] for name in order.static_order()]
    except CycleError as error:
        raise UnsupportedError(
            "Could not sort the ops: a cycle is outside of loops. Please report it."
        ) from error


def _op(
    node: compat.NodeDef,
    specs: Mapping[str, Sequence[tf.TensorSpec]],
    fixed: frozenset[str],
    back_edges: frozenset[str],
    device: str,
    lists: Lists,
) -> Op:
    data = [full_name(n) for n in data_of(node) if source_of(n) not in back_edges]
    controls = map(source_of, waits_of(node))
    elsewhere = _is_elsewhere(node, device)
    placed = node.name.endswith(PLACED)  # lies in a variable's memory
    held = 0 if elsewhere else lists.sizes.get(node.name, 0)
    shares = (node.op in kinds.ALIAS and not held) or node.name in lists.shared
    outputs = [
        _described(f"{node.name}:{i}", spec, counted=not (elsewhere or placed))
        for i, spec in enumerate(specs[node.name])
    ]
    if held:
        outputs[0] = replace(outputs[0], size=held)
    return Op(
        name=node.name,
        type=node.op,
        inputs=tuple(data),
        controls=tuple(dict.fromkeys(controls)),
        outputs=tuple(outputs),
        alias=data[0] if shares and not elsewhere else None,
        inplace=node.op in kinds.INPLACE,
        scratch=sum(t.size for t in outputs) if node.op in kinds.LOOPS else 0,
        persistent=node.op in kinds.PERSISTENT or elsewhere,
        fixed=node.name in fixed,
        repeatable=_is_repeatable(node, data, outputs)
        and not (elsewhere or node.name in fixed),
        cheap=node.op in kinds.CHEAP or node.op == "AddN",
        constant=node.op in kinds.CONSTANT,
        reads_state=node.op in kinds.READS_STATE,
        replaces_state=node.op in kinds.REPLACES_STATE and not elsewhere,
    )


def _is_elsewhere(node: compat.NodeDef, device: str) -> bool:
    return bool(node.device) and node.device != device


def _is_repeatable(
    node: compat.NodeDef, data: Sequence[str], outputs: Sequence[Tensor]
) -> bool:
    """Tell whether a node makes equal bits of equal inputs in every run."""
    if node.op == "AddN":
        return len(data) == _PAIR
    if node.name.endswith(SLICE):
        return True
    if node.op in kinds.NOT_REPEATABLE or node.op in kinds.BY_REFERENCE:
        return False
    makes_data = all(tensor.dtype not in OPAQUE for tensor in outputs)
    return bool(data) and makes_data and compat.is_pure(node)


def _with_views(ops: Sequence[Op], varying: Collection[str]) -> list[Op]:
    """Return ops in which a reduction that reduces nothing shares its input's buffer.

    A loss whose labels are as large as its gradient counts as not in place, as
    TensorFlow overwrites the logits only.
    """
    tensors = {tensor.name: tensor for op in ops for tensor in op.outputs}

    def seen(op: Op) -> Op:
        if not op.inputs or op.persistent or op.name in varying:
            return op
        read = [tensors[name] for name in op.inputs]
        if op.type == kinds.LOSS:
            return replace(op, inplace=read[1].size != op.outputs[1].size)
        elements = {math.prod(tensor.shape) for tensor in (read[0], *op.outputs)}
        if op.type in kinds.REDUCTIONS and len(elements) == 1:
            return replace(op, alias=read[0].name)
        return op

    return [seen(op) for op in ops]


def _described(name: str, spec: tf.TensorSpec, *, counted: bool = True) -> Tensor:
    """Describe a tensor as plain data; handles and variants count 0 bytes."""
    if is_open(spec):
        raise UnsupportedError(
            f"Could not plan the step: tensor {name!r} has no largest shape, only "
            f"{spec.shape}. Compute the tensor at a fixed size, or train without "
            "large model support."
        )
    shape, size = known_shape(spec) or (), bytes_of(spec) if counted else 0
    return Tensor(name=name, size=size, shape=shape, dtype=spec.dtype.name)
