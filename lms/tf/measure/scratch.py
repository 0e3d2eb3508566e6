"""Memory that ops need besides their inputs and outputs, and what cuDNN's layers keep.

    is it worth a run? ──> room for it here? ──yes──> run alone: the allocator's peak
                                │no                   less what is in use afterwards
                                └──> as its first rows that have room

What cuDNN and cuBLAS choose for an op, they choose once in a process, by what is free
then: so convolutions and products are run in each process, with room, before any step.
Ops are run alone on arguments of their shapes, equal ones once in a process.

Known weakness: ops that cannot be run alone, and those in loops, are not measured.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import tensorflow as tf

from lms.ir.graph import GraphView, Op
from lms.machine.costs import moved_bytes
from lms.report.progress import track
from lms.simulation.allocator import SmallPool
from lms.tf import compat
from lms.tf.capture.op_facts import COLLECTIVE, LOOPS, RESERVED, RESERVES
from lms.tf.lowering import TracedStep
from lms.tf.measure.devices import Device
from lms.tf.measure.measurements import Measurements, measurements_of
from lms.tf.measure.microbenchmark import Bench
from lms.tf.nodes import COPY_IN
from lms.tf.passes.compiled import compiled_scratch, is_compiled
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

# Only ops that make or read a tensor of this size are run.
_LARGE = 64 * KIB

# An op whose scratch is not known is run alone only where there is room for so many
# times what it reads and makes: as a whole, or its first rows. Such a share of that
# counts where neither can be.
_TIMES, _USUAL_SHARE = 3, 0.5

# Bytes known to be needed must be free so many times: a chunk is not split that is
# less than twice as large.
_SPLIT = 2

# Benches whose libraries have chosen how they run them, in this process.
_chosen: set[str] = set()

# Functions of one op hold constants. While ops are measured there are free chunks for
# so many: what stays behind does not lie scattered over what is planned.
LEFT_BEHIND = SmallPool(sizes=(256,) * 1024)


def measure_scratch(step: TracedStep, device: Device) -> dict[str, int]:
    """Bytes that large ops need beside their inputs and outputs, by op name.

    Args:
        step: The traced step.
        device: The step's device.

    Returns:
        Scratch of the ops that were run, here or where there is room; and what those
        are taken to need that were not. Empty without allocator statistics.
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
    """An op, the op alone, and the bytes that it reads and makes."""

    op: Op
    bench: Bench
    moved: int


def _measure(
    cases: Sequence[Case], device: Device, measured: Measurements
) -> tuple[set[str], dict[str, Bytes]]:
    """Run ops whose scratch is not known, here or where there is room.

    Returns:
        The keys of those that cannot be run on values that are made up, and the scratch
        of those of which only the first rows have room.
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
    """Scratch of an op, as that of its first rows grows; None if too few have room."""
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
    """Bytes that a layer of cuDNN's leaves for all steps, as for the first that fit."""
    if case.op.type not in RESERVES:
        return None
    bench, part = case.bench.of_first_steps(free / _SPLIT / case.moved)
    made = bench.output_bytes()
    return None if made is None else math.ceil(made[RESERVED] / part)


def _is_to_run(case: Case, measured: Measurements) -> bool:
    """Tell whether an op's scratch is not known, or its library is yet to choose."""
    key = case.bench.key
    is_chosen = not case.op.flops or key in _chosen
    is_known = case.op.type not in RESERVES or key in measured.reserved
    return not (is_chosen and is_known and key in measured.scratch)


def _scratch_of_compiled(
    step: TracedStep, nodes: Mapping[str, compat.NodeDef], measured: Measurements
) -> dict[str, int]:
    """Scratch of the calls that XLA compiles, which says so before they run."""
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

    A chunk for what comes from the neighbour at each step: all but one part of the
    input (ring_reducer.cc). NCCL's lies beside TensorFlow's allocator.
    """
    return {
        op.name: graph.tensors[op.inputs[0]].size
        for op in graph.ops
        if op.type in COLLECTIVE
        and compat.attribute(nodes[op.name], "communication_hint").s != b"nccl"
    }


def has_room(case: Case, device: Device, free: float) -> bool:
    """Tell whether what an op reads, makes and needs has room beside what is there.

    If not, TensorFlow would wait ten seconds for some before it gives up
    (its allocator_retry.cc, as bfc_allocator.cc calls it).

    Args:
        case: The op.
        device: Its device.
        free: Bytes that its allocator has left.
    """
    less = case.op.inplace and case.op.cheap  # than is counted is made
    if less or case.op.type in RESERVES:
        return case.moved <= free
    scratch = measurements_of(device).scratch.get(case.bench.key)
    if scratch is not None:
        return (case.moved + scratch) * _SPLIT <= free
    return case.moved * _TIMES <= free


def with_reserved(step: TracedStep, device: Device) -> TracedStep:
    """The step in which what cuDNN's layers keep is as large as it was measured.

    Their gradients work on as much again, as gradients of the gates are (Appleyard et
    al., arXiv:1604.01946, for the products of all steps at once), and at least on the
    scratch of the forward op: on an H200 cuDNN asked the same for both, to the byte, in
    five layers. The gradient itself cannot be run alone.

    Args:
        step: A step whose scratch was measured.
        device: Its device.
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
    """An op that makes a tensor whose size is known now; so it may move."""
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
    if "PyFunc" in op.type:  # the user's own function must not see what is made up
        return False
    # It would wait for others, begin with a copy to the host, or run for ever.
    return op.type not in COLLECTIVE | LOOPS | {COPY_IN}


def is_worth_a_run(graph: GraphView, op: Op) -> bool:
    """Tell whether an op is large, and may be run on made-up values."""
    if not _can_run_alone(op):
        return False
    sizes = [graph.tensors[name].size for name in op.inputs]
    sizes += [tensor.size for tensor in op.outputs]
    return max(sizes, default=0) >= _LARGE
