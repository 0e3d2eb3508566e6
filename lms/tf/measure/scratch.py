"""Scratch of ops beside their inputs and outputs, and reserve space of cuDNN's layers.

    worth a run? ──> fits here? ──yes──> run alone: the allocator's peak
                         │no             less the bytes in use afterwards
                         └──> run the first rows that fit

Each distinct op runs alone, once in a process, on arguments of its shapes.

Known weakness: ops that cannot be run alone, and those in loops, are not measured.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import tensorflow as tf

from lms.ir.graph import GraphView, Op
from lms.report.progress import track
from lms.tf import compat
from lms.tf.capture.ops import COLLECTIVE, LOOPS, RESERVED, RESERVES
from lms.tf.lowering import TracedStep
from lms.tf.measure.bench import Bench, Measurements, measurements_of
from lms.tf.measure.devices import Device
from lms.tf.measure.lone_op import LoneOp, lone_ops
from lms.tf.measure.workspace import limit_in_force
from lms.tf.nodes import COPY_IN
from lms.tf.passes.compiled import is_compiled
from lms.units import KIB, Bytes

__all__ = ["is_worth_a_run", "measure_scratch", "with_reserved", "with_scratch"]

# Ops run alone only if they make or read a tensor of at least 64 KiB.
_LARGE = 64 * KIB

# Scratch of an op that does not fit, nor do its first rows: 0.5 of the bytes that it
# reads and makes. A GPU's convolution takes at most 1.4 of these, as its workspace
# (experiments/results/h200/findings.md, 1), and at most the workspace's limit.
_USUAL_SHARE, _OF_CONVOLUTION = 0.5, 1.4


def measure_scratch(step: TracedStep, device: Device) -> dict[str, int]:
    """Bytes that large ops need beside their inputs and outputs, by op name.

    Estimated for ops that cannot run for lack of memory. Empty without allocator
    statistics.
    """
    if device.memory.current_bytes is None:
        return {}
    nodes = {node.name: node for node in step.nodes}
    compiled = {name: node for name, node in nodes.items() if is_compiled(node)}
    found = _scratch_of_compiled(step, compiled, measurements_of(device))
    found |= _scratch_of_collectives(step.graph, nodes)
    large = (
        op
        for op in step.graph.ops
        # Ops that work on each element, or move elements, need none: none was logged
        # in eight models that `profiling.allocations` compared. A GPU's Softmax takes
        # two tensors as large as its input (softmax_op_gpu.cu.cc).
        if not (op.name in found or op.cheap)
        and is_worth_a_run(step.graph, op, least=0 if op.name in compiled else _LARGE)
    )
    ops = lone_ops(step, large)
    with Bench(device) as bench:
        known = _measure(ops, bench) | bench.measured.scratch
    return found | {op.op.name: known[op.key] for op in ops if op.key in known}


def _measure(ops: Sequence[LoneOp], bench: Bench) -> dict[str, Bytes]:
    """Run ops whose scratch is not known; returns estimates of ops that do not fit."""
    unknown = {op.key: op for op in ops if not bench.knows_scratch(op)}
    estimates: dict[str, Bytes] = {}
    for key, op in track("measuring the scratch of ops", [*unknown.items()]):
        if op.op.type in RESERVES and not bench.has_room(op):
            reserve = _by_first_rows(op, bench, bench.measured.reserved)
            if reserve is not None:
                bench.measured.reserved[key] = reserve
        if has_room := bench.has_room(op):
            bench.measure_scratch(op)
        if key not in bench.measured.scratch and (bench.ran_out or not has_room):
            scratch = _by_first_rows(op, bench, bench.measured.scratch)
            estimates[key] = _usual(op, bench) if scratch is None else scratch
    return estimates


def _usual(op: LoneOp, bench: Bench) -> Bytes:
    if bench.device.is_gpu and op.op.flops and "Conv" in op.op.type:
        bench.take_guards_off()  # the convolution runs first within a full step
        return min(math.ceil(_OF_CONVOLUTION * op.moved), limit_in_force())
    return math.ceil(_USUAL_SHARE * op.moved)


def _by_first_rows(
    op: LoneOp, bench: Bench, known: Mapping[str, Bytes]
) -> Bytes | None:
    """Scratch or reserve space by an op's first rows; None if too few rows fit.

    The bench writes what it measures of these rows into `known`.
    """
    part, tried = bench.share_with_room(op), list[tuple[float, Bytes]]()
    for rows in (part, part / 2):  # some scratch is the same for any rows
        if (found := op.first_rows(rows)) is None:
            return None
        first, kept = found
        bench.measure_scratch(first)
        if first.key not in known:
            return None
        tried.append((kept, known[first.key]))
    (more, most), (less, least) = tried
    return math.ceil(most + max(0, most - least) / (more - less) * (1 - more))


def _scratch_of_compiled(
    step: TracedStep, nodes: Mapping[str, compat.NodeDef], measured: Measurements
) -> dict[str, int]:
    """Scratch of the calls that XLA compiles, as its compiler reports it."""
    found: dict[str, int] = {}
    ops = [op for op in step.graph.ops if op.name in nodes]
    for op in ops:
        node, tensors = nodes[op.name], [step.graph.tensors[n] for n in op.inputs]
        specs = tuple(tf.TensorSpec(t.shape, tf.as_dtype(t.dtype)) for t in tensors)
        name = compat.attribute(node, "f").func.name
        if (scratch := compat.compiled_scratch(name, specs, node.device)) is not None:
            found[op.name] = scratch
    for lone in lone_ops(step, (op for op in ops if op.name in found)):
        measured.scratch[lone.key] = found[lone.op.name]
    return found


def _scratch_of_collectives(
    graph: GraphView, nodes: Mapping[str, compat.NodeDef]
) -> dict[str, int]:
    """Scratch of reductions over workers, in TensorFlow's own ring.

    A buffer for each chunk from the neighbour: all but one part of the input
    (ring_reducer.cc). NCCL's scratch lies outside TensorFlow's allocator.
    """
    return {
        op.name: graph.tensors[op.inputs[0]].size
        for op in graph.ops
        if op.type in COLLECTIVE
        and compat.attribute(nodes[op.name], "communication_hint").s != b"nccl"
    }


def with_reserved(step: TracedStep, device: Device) -> TracedStep:
    """The step with the measured reserve space of cuDNN's layers.

    A layer's gradient gets scratch of the size of the reserve space, as gradients of
    the gates need (Appleyard et al., arXiv:1604.01946, for the products of all steps at
    once), and at least the forward op's scratch: on an H200 cuDNN asked equal bytes for
    both in five layers. The gradient itself cannot be run alone.
    """
    reserved = measurements_of(device).reserved
    layers = [op for op in step.graph.ops if op.type in RESERVES]
    known = [op for op in lone_ops(step, layers) if op.key in reserved]
    sizes = {op.op.name: reserved[op.key] for op in known}
    needs = {
        op.outputs[RESERVED].name: max(op.scratch, sizes.get(op.name, 0))
        for op in layers
    }

    def measured_op(op: Op) -> Op:
        if op.name in sizes:
            return _with_reserve(op, sizes[op.name])
        need = max((needs.get(name, 0) for name in op.inputs), default=0)
        return replace(op, scratch=max(op.scratch, need))

    ops = tuple(map(measured_op, step.graph.ops))
    return replace(step, graph=GraphView(ops=ops, results=step.graph.results))


def _with_reserve(op: Op, size: Bytes) -> Op:
    """The layer with reserve space of a known size, which may now be offloaded."""
    outputs, reserve = [*op.outputs], op.outputs[RESERVED]
    shape = (size // tf.as_dtype(reserve.dtype).size,)
    outputs[RESERVED] = replace(reserve, size=size, shape=shape)
    return replace(op, outputs=tuple(outputs), varies=False)


def with_scratch(graph: GraphView, scratch: Mapping[str, int]) -> GraphView:
    """The graph with measured scratch written into its ops."""
    ops = (
        replace(op, scratch=scratch[op.name]) if op.name in scratch else op
        for op in graph.ops
    )
    return GraphView(ops=tuple(ops), results=graph.results)


def is_worth_a_run(graph: GraphView, op: Op, *, least: Bytes = _LARGE) -> bool:
    """Tell whether an op is large, and may be run on made-up values."""
    if op.fixed or op.persistent or op.alias is not None:
        return False
    if (op.varies or op.from_host) and op.type not in RESERVES:
        return False
    if "PyFunc" in op.type:  # the user's own function must not see made-up values
        return False
    # Alone, an op of these would wait for workers, copy from the host, or run for ever.
    if op.type in COLLECTIVE | LOOPS | {COPY_IN}:
        return False
    sizes = [graph.tensors[name].size for name in op.inputs]
    return max([*sizes, *(tensor.size for tensor in op.outputs)], default=0) >= least
