"""Scratch of ops beside their inputs and outputs, and reserve space of cuDNN's layers.

    worth a run? ──> fits here? ──yes──> run alone: the allocator's peak
                         │no             less the bytes in use afterwards
                         └──> run the first rows that fit

cuDNN and cuBLAS choose a kernel for an op once in a process, by the bytes free at that
moment: so convolutions and products run in each process, with ample memory, before any
step. Each distinct op runs alone, once in a process, on arguments of its shapes.

Known weakness: ops that cannot be run alone, and those in loops, are not measured.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import tensorflow as tf

from lms.ir.graph import GraphView, Op
from lms.machine.hardware import moved_bytes
from lms.report.progress import track
from lms.simulation.allocator import SmallPool
from lms.tf import compat
from lms.tf.capture.op_facts import COLLECTIVE, LOOPS, RESERVED, RESERVES
from lms.tf.lowering import TracedStep
from lms.tf.measure.devices import Device
from lms.tf.measure.measurements import Measurements, measurements_of
from lms.tf.measure.microbenchmark import Bench
from lms.tf.passes.compiled import compiled_scratch, is_compiled
from lms.tf.passes.host_variables import COPY_IN
from lms.units import KIB, Bytes

__all__ = [
    "LEFT_BEHIND",
    "Case",
    "free_bytes",
    "has_room",
    "is_worth_a_run",
    "measure_scratch",
    "with_reserved",
    "with_scratch",
]

# Ops run alone only if they make or read a tensor of at least 64 KiB.
_LARGE = 64 * KIB

# An op of unknown scratch runs alone, whole or in its first rows, only if 3 times the
# bytes that it reads and makes are free. Else its scratch counts as 0.5 of these bytes.
_TIMES, _USUAL_SHARE = 3, 0.5

# An op of known scratch runs alone only if 2 times its bytes are free: the allocator
# does not split chunks below twice the request.
_SPLIT = 2

# Keys of benches for which a library has chosen its kernel in this process.
_chosen: set[str] = set()

# Free chunks for constants that functions of one op hold: 1,024 of 256 bytes. Elsewhere
# constants that stay behind would fragment the memory that is planned.
LEFT_BEHIND = SmallPool(sizes=(256,) * 1024)


def measure_scratch(step: TracedStep, device: Device) -> dict[str, int]:
    """Bytes that large ops need beside their inputs and outputs, by op name.

    Args:
        step: The traced step.
        device: The step's device.

    Returns:
        Measured scratch, and estimates for ops that cannot run for lack of memory.
        Empty without allocator statistics.
    """
    if device.memory.current_bytes is None:
        return {}
    measured = measurements_of(device)
    nodes = {node.name: node for node in step.nodes}
    found = _scratch_of_compiled(step, nodes, measured)
    found |= _scratch_of_collectives(step.graph, nodes)
    cases = [
        Case(op=op, bench=bench, moved=moved_bytes(step.graph, op))
        for op in step.graph.ops
        # Ops that work on each element, or move elements, need none: none was logged
        # in eight models that `profiling.allocations` compared. A GPU's Softmax takes
        # two tensors as large as its input (softmax_op_gpu.cu.cc).
        if not (op.name in found or op.cheap)
        and _may_need_much(step.graph, nodes, op)
        and (bench := Bench.of(step.graph, nodes, op)) is not None
    ]
    failed, by_rows = _measure(cases, device, measured)
    for case in cases:
        known = measured.scratch.get(case.bench.key, by_rows.get(case.bench.key))
        if known is not None:
            found[case.op.name] = known
        elif case.bench.key not in failed:
            found[case.op.name] = math.ceil(_USUAL_SHARE * case.moved)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An op, its bench, and the bytes that it reads and makes."""

    op: Op
    bench: Bench
    moved: int


def _measure(
    cases: Sequence[Case], device: Device, measured: Measurements
) -> tuple[set[str], dict[str, Bytes]]:
    """Run ops whose scratch is not known, whole or in their first rows.

    Returns:
        The keys of ops that cannot run on made-up values, and by key the scratch of ops
        of which only the first rows fit.
    """
    unknown = {case.bench.key: case for case in cases if _is_to_run(case, measured)}
    by_rows: dict[str, Bytes] = {}
    if not unknown:
        return set(), by_rows
    gathered = device.keep_pool(LEFT_BEHIND)
    free = free_bytes(device)
    failed: set[str] = set()
    for key, case in track("measuring the scratch of ops", [*unknown.items()]):
        if not has_room(case, device, free):
            reserved = _reserved_by_part(case, free)
            if reserved is None:
                if (scratch := _by_rows(case, device, measured, free)) is not None:
                    by_rows[key] = scratch
                continue
            measured.reserved[key] = reserved
            if case.moved - case.op.outputs[RESERVED].size + reserved > free:
                continue
        found = case.bench.scratch(device.memory, case.moved)
        if found is None:
            failed.add(key)
            continue
        measured.scratch[key] = found
        _chosen.add(key)
        if case.op.type in RESERVES and (made := case.bench.output_bytes()):
            measured.reserved[key] = made[RESERVED]
    del gathered
    return failed, by_rows


def _by_rows(
    case: Case, device: Device, measured: Measurements, free: float
) -> Bytes | None:
    """Scratch of an op, extrapolated from its first rows; None if too few rows fit."""
    if case.op.type in RESERVES or case.bench.key in measured.scratch:
        return None
    part, tried = free / _TIMES / case.moved, list[tuple[float, Bytes]]()
    for rows in (part, part / 2):  # some scratch is the same for any rows
        if (found := case.bench.of_first_rows(rows)) is None:
            return None
        bench, kept = found
        if bench.key not in measured.scratch:
            scratch = bench.scratch(device.memory, math.ceil(case.moved * kept))
            if scratch is None:
                return None
            measured.scratch[bench.key] = scratch
        tried.append((kept, measured.scratch[bench.key]))
    (more, most), (less, least) = tried
    return math.ceil(most + max(0, most - least) / (more - less) * (1 - more))


def _reserved_by_part(case: Case, free: float) -> Bytes | None:
    """Reserve space of a cuDNN layer, extrapolated from the first steps that fit."""
    if case.op.type not in RESERVES:
        return None
    bench, part = case.bench.of_first_steps(free / _SPLIT / case.moved)
    made = bench.output_bytes()
    return None if made is None else math.ceil(made[RESERVED] / part)


def _is_to_run(case: Case, measured: Measurements) -> bool:
    """Tell whether an op's scratch is unknown, or its library has chosen no kernel."""
    key = case.bench.key
    is_chosen = not case.op.flops or key in _chosen
    is_known = case.op.type not in RESERVES or key in measured.reserved
    return not (is_chosen and is_known and key in measured.scratch)


def _scratch_of_compiled(
    step: TracedStep, nodes: Mapping[str, compat.NodeDef], measured: Measurements
) -> dict[str, int]:
    """Scratch of the calls that XLA compiles, as its compiler reports it."""
    found: dict[str, int] = {}
    for op in step.graph.ops:
        if op.name not in nodes or not is_compiled(nodes[op.name]):
            continue
        tensors = [step.graph.tensors[name] for name in op.inputs]
        specs = [tf.TensorSpec(t.shape, tf.as_dtype(t.dtype)) for t in tensors]
        scratch = compiled_scratch(nodes[op.name], specs, nodes[op.name].device)
        if scratch is None:
            continue
        found[op.name] = scratch
        if (bench := Bench.of(step.graph, nodes, op)) is not None:
            measured.scratch[bench.key] = scratch
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


def has_room(case: Case, device: Device, free: float) -> bool:
    """Tell whether an op's inputs, outputs and scratch fit the free bytes.

    If not, TensorFlow would wait ten seconds for memory before it gives up
    (its allocator_retry.cc, as bfc_allocator.cc calls it).

    Args:
        case: The op.
        device: The op's device.
        free: Bytes that the device's allocator has left.
    """
    less = case.op.inplace and case.op.cheap  # makes less than `moved` counts
    if less or case.op.type in RESERVES:
        return case.moved <= free
    scratch = measurements_of(device).scratch.get(case.bench.key)
    if scratch is not None:
        return (case.moved + scratch) * _SPLIT <= free
    return case.moved * _TIMES <= free


def with_reserved(step: TracedStep, device: Device) -> TracedStep:
    """The step with the measured reserve space of cuDNN's layers.

    A layer's gradient gets scratch of the size of the reserve space, as gradients of
    the gates need (Appleyard et al., arXiv:1604.01946, for the products of all steps at
    once), and at least the forward op's scratch: on an H200 cuDNN asked equal bytes for
    both in five layers. The gradient itself cannot be run alone.

    Args:
        step: A step whose scratch was measured.
        device: The step's device.
    """
    measured, nodes = measurements_of(device), {node.name: node for node in step.nodes}
    sizes: dict[str, Bytes] = {}
    for op in step.graph.ops:
        bench = Bench.of(step.graph, nodes, op) if op.type in RESERVES else None
        if bench is not None and bench.key in measured.reserved:
            sizes[op.outputs[RESERVED].name] = measured.reserved[bench.key]
    made = {o.outputs[RESERVED].name: o for o in step.graph.ops if o.type in RESERVES}
    needs = {name: max(op.scratch, sizes.get(name, 0)) for name, op in made.items()}

    def measured_op(op: Op) -> Op:
        need = max((needs.get(name, 0) for name in op.inputs), default=0)
        return (
            replace(op, scratch=max(op.scratch, need)) if need else _resized(op, sizes)
        )

    ops = tuple(map(measured_op, step.graph.ops))
    return replace(step, graph=GraphView(ops=ops, results=step.graph.results))


def _resized(op: Op, sizes: Mapping[str, Bytes]) -> Op:
    """The op with measured sizes of its outputs, which may now be offloaded."""
    if not any(tensor.name in sizes for tensor in op.outputs):
        return op
    outputs = (
        replace(t, size=size, shape=(size // tf.as_dtype(t.dtype).size,))
        if (size := sizes.get(t.name))
        else t
        for t in op.outputs
    )
    return replace(op, outputs=tuple(outputs), varies=False)


def with_scratch(graph: GraphView, scratch: Mapping[str, int]) -> GraphView:
    """The graph with measured scratch written into its ops."""
    ops = (
        replace(op, scratch=scratch[op.name]) if op.name in scratch else op
        for op in graph.ops
    )
    return GraphView(ops=tuple(ops), results=graph.results)


def free_bytes(device: Device) -> float:
    """Bytes that a device's allocator has left; infinite where it has no limit."""
    if device.limit is None:
        return math.inf
    return device.limit - (device.memory.current_bytes or 0)


def _may_need_much(
    graph: GraphView, nodes: Mapping[str, compat.NodeDef], op: Op
) -> bool:
    """Tell whether an op is large, or compiled by XLA, and can run alone."""
    if op.name in nodes and is_compiled(nodes[op.name]):
        return _can_run_alone(op)
    return is_worth_a_run(graph, op)


def _can_run_alone(op: Op) -> bool:
    if op.fixed or op.persistent or op.alias is not None:
        return False
    if (op.varies or op.from_host) and op.type not in RESERVES:
        return False
    if "PyFunc" in op.type:  # the user's own function must not see made-up values
        return False
    # Alone, an op of these would wait for workers, copy from the host, or run for ever.
    return op.type not in COLLECTIVE | LOOPS | {COPY_IN}


def is_worth_a_run(graph: GraphView, op: Op) -> bool:
    """Tell whether an op is large, and may be run on made-up values."""
    if not _can_run_alone(op):
        return False
    sizes = [graph.tensors[name].size for name in op.inputs]
    sizes += [tensor.size for tensor in op.outputs]
    return max(sizes, default=0) >= _LARGE
