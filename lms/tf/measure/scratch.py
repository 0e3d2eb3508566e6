"""Scratch of ops beside their inputs and outputs, and reserve space of cuDNN's layers.

    worth a run? ──> fits here? ──yes──> run alone: the allocator's peak
                         │no             less the bytes in use afterwards
                         └──> run the first rows that fit

Each distinct op runs alone, once in a process, on arguments of its shapes. Ops with
scratch run again in a session of TensorFlow's profiler, which tells the order of their
requests: the allocator reports each chunk (`AddTraceMe` in bfc_allocator.cc). There one
op of each kind that may write in place runs on copies of its inputs: a kernel that asks
for its output all the same, as oneDNN's Softmax, never writes in place.

cuDNN's workspace has a limit: the bytes that fast convolutions need, if they fit.
TensorFlow turns convolutions of float32 to NCHW; cuDNN's fast kernels compute in NHWC,
on copies of the tensors, in the workspace. Where the limit is below the copies, a
kernel without tensor cores runs: on an H200 a step of a U-Net took eight times as long
(docs/gpu.md, "What a card showed"). So the limit is the bytes that the largest
convolution reads and makes. Where copies do not fit beside the tensors of their
convolution, the limit for all is the bytes left beside these tensors. A step that fits
keeps TensorFlow's limit, so that its kernels and bits are plain Keras's.

TensorFlow reads the limit once in a process, when the first convolution runs
(`GetDnnWorkspaceLimitOrDefault` in conv_ops_gpu.h): the first step that is planned
decides for all.

Known weaknesses: ops that cannot be run alone, and those in loops, are not measured.
The rule of the limit is fitted to 247 convolutions of two networks on one card.
"""

import math
import os
import tempfile
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

import tensorflow as tf

from lms.ir.graph import GraphView, Op
from lms.ir.liveness import peak
from lms.planning.candidates import smallest_worth_moving
from lms.report.progress import track
from lms.simulation.allocator import rounded_up
from lms.tf import compat
from lms.tf.capture.ops import COLLECTIVE, LOOPS, RESERVED, RESERVES
from lms.tf.lowering import TracedStep
from lms.tf.measure.bench import TIMES, Bench, Measurements, measurements_of
from lms.tf.measure.devices import Device
from lms.tf.measure.lone_op import COPIED, LoneOp, lone_ops
from lms.tf.nodes import COPY_IN
from lms.tf.passes.compiled import is_compiled
from lms.units import GIB, KIB, MIB, Bytes

__all__ = ["VARIABLE", "is_worth_a_run", "limit_workspace", "measure_scratch"]
__all__ += ["with_reserved", "with_scratch", "workspace_limit"]

# The first rows of an op, first more and then fewer, each with its share of all rows.
_Parts: TypeAlias = list[tuple[LoneOp, float]]

# Ops are timed alone only if they make or read a tensor of at least 64 KiB.
_LARGE = 64 * KIB

# The 3 smallest large ops of a kind may be tried for whether they write in place.
_TRIED = 3

# Events of TensorFlow's allocator: the first takes a chunk, the other gives it back.
_CHUNKS = {"MemoryAllocation": 1, "MemoryDeallocation": -1}

# Scratch of an op that does not fit, nor do its first rows: 0.5 of the bytes that it
# reads and makes. A GPU's convolution takes at most 1.4 of these, as its workspace
# (experiments/results/h200/findings.md, 1), and at most the workspace's limit.
_USUAL_SHARE, _OF_CONVOLUTION = 0.5, 1.4

VARIABLE = "TF_CUDNN_WORKSPACE_LIMIT_IN_MB"

# The limit is at least 1/4 of the step's memory: some kernels take more than copies,
# and the next step of the process may have larger convolutions.
_WORKSPACE_PART = 4

# Where copies do not fit, the limit is at least 1/16 of the step's memory: no step was
# refused for that. In any case it is at most TensorFlow's own limit, 8 GiB.
_WORKSPACE_LEAST, _WORKSPACE_MOST = 16, 8 * GIB


def measure_scratch(
    step: TracedStep, device: Device
) -> tuple[dict[str, int], dict[str, tuple[int, ...]], set[str]]:
    """Return what large ops need beside their inputs and outputs, by op name.

    Returns:
        Bytes, which are estimated for ops that cannot run for lack of memory; requests
        in order (`Op.asks`); and kinds of ops that never write in place (`_kind_of`).
        All are empty without allocator statistics.
    """
    if device.current_bytes is None:
        return {}, {}, set()
    nodes = {node.name: node for node in step.nodes}
    compiled = {name: node for name, node in nodes.items() if is_compiled(node)}
    found = _scratch_of_compiled(step, compiled, measurements_of(device))
    found |= _scratch_of_collectives(step.graph, nodes)
    least = smallest_worth_moving(peak(step.graph))
    large = (
        op
        for op in step.graph.ops
        # Ops that work on each element, or move elements, need none: none was logged
        # in eight models that `profiling.allocations` compared; Slice takes none either
        # (slice_op.cc). A GPU's Softmax takes two tensors as large as its input
        # (softmax_op_gpu.cu.cc).
        if not (op.name in found or op.cheap or op.type == "Slice")
        and is_worth_a_run(step.graph, op, least=0 if op.name in compiled else least)
    )
    ops = lone_ops(step, large)
    with Bench(device) as bench:
        forwards = bench.measured.forwards
        trials = _trials_in_place(step, forwards, least) if device.is_gpu else {}
        known, asks = _measure(ops, trials, bench)
    found |= {op.op.name: known[op.key] for op in ops if op.key in known}
    named = {op.op.name: asks[op.key] for op in ops if op.key in asks}
    return found, named, {kind for kind, writes in forwards.items() if not writes}


def workspace_limit(graph: GraphView, room: Bytes) -> int:
    """The limit for a step in `room` bytes: whole MiB that one convolution may take."""
    needs = [*_needs(graph)]
    left = [room - own for copies, own in needs if copies + own > room]
    if left:  # their kernels must not exceed `room`
        return max(1, max(room // _WORKSPACE_LEAST, min(left)) // MIB)
    largest = max((copies for copies, _ in needs), default=0)
    return min(max(room // _WORKSPACE_PART, largest + MIB), _WORKSPACE_MOST) // MIB


def limit_workspace(graph: GraphView, room: Bytes | None) -> None:
    """Set the limit, if there is one and neither the user nor an earlier step did."""
    if room is not None:
        os.environ.setdefault(VARIABLE, str(workspace_limit(graph, room)))


def _needs(graph: GraphView) -> Iterator[tuple[Bytes, Bytes]]:
    """Yield (bytes of copies, bytes of tensors) of each convolution."""
    for op in graph.ops:
        if op.flops and "Conv" in op.type:
            tensors = [*(graph.tensors[name] for name in op.inputs), *op.outputs]
            sizes = [tensor.size for tensor in tensors if tensor.size]
            if sizes:  # the filter twice, as some kernels have it
                yield sum(sizes) + min(sizes), sum(sizes)


def _trials_in_place(
    step: TracedStep, known: Container[str], least: Bytes
) -> dict[str, LoneOp]:
    """Return by kind the smallest large op to try that could write over an input."""
    tensors, kinds = step.graph.tensors, dict[str, list[tuple[Bytes, Op]]]()
    for op in step.graph.ops:
        if (made := op.reusing) is not None and (kind := _kind_of(op)) not in known:
            read = Counter(op.inputs).items()  # an input that is read twice stays
            once = (tensors[name].size for name, times in read if times == 1)
            if made.size >= least and made.size in once:
                kinds.setdefault(kind, []).append((made.size, op))
    found = dict[str, LoneOp]()
    for kind, ops in kinds.items():
        likely = (op for _, op in sorted(ops, key=itemgetter(0))[:_TRIED])
        worth = (op for op in likely if is_worth_a_run(step.graph, op, least=least))
        if lone := lone_ops(step, worth):
            found[kind] = lone[0].on_copies()
    return found


def _measure(
    ops: Sequence[LoneOp], trials: Mapping[str, LoneOp], bench: Bench
) -> tuple[dict[str, Bytes], dict[str, tuple[int, ...]]]:
    """Run ops whose scratch is not known; returns scratch and requests by key.

    Those of ops that do not fit are estimated by their first rows.
    """
    unknown = {op.key: op for op in ops if not bench.knows_scratch(op)}
    estimates, parts = dict[str, Bytes](), dict[str, _Parts]()
    for key, op in track("measuring the scratch of ops", [*unknown.items()]):
        if op.op.type in RESERVES and not bench.has_room(op):
            reserve = _by_first_rows(op, bench, bench.measured.reserved)
            if reserve is not None:
                bench.measured.reserved[key] = reserve[0]
        if has_room := bench.has_room(op):
            bench.measure_scratch(op)
        if key not in bench.measured.scratch and (bench.ran_out or not has_room):
            if (found := _by_first_rows(op, bench, bench.measured.scratch)) is None:
                estimates[key] = _usual(op, bench)
            else:
                estimates[key], parts[key] = found
    scratch, asks = bench.measured.scratch, bench.measured.asks
    fresh = (op for op in ops if op.key in unknown or op.key not in asks)
    can_run = {op.key: op for op in fresh if op.key in scratch and bench.has_room(op)}
    rows = {part.key: part for each in parts.values() for part, _ in each}
    _measure_asks(can_run | rows, trials, bench)
    estimated = {key: _whole_of(each, asks) for key, each in parts.items()}
    # Its own first run at full size will try the kernel that takes these bytes.
    unsure = (op for op in ops if op.tried and not bench.knows_scratch(op))
    tried = {op.key: rounded_up(op.tried) for op in unsure if bench.device.is_gpu}
    estimated = {key: each for key, each in estimated.items() if each}
    estimated |= {key: (0, size) for key, size in tried.items()}
    return estimates | scratch | tried, asks | estimated


def _whole_of(parts: _Parts, asks: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Extrapolate requests from an op's first rows; empty if the parts are unlike."""
    (more, share), (less, smaller) = parts
    larger, lesser = asks.get(more.key, ()), asks.get(less.key, ())
    if len(larger) != len(lesser):
        return ()
    both = [*zip(larger, lesser, strict=True)]
    if any(a != b and min(a, b) <= 0 for a, b in both):
        return ()
    further = (1 - share) / (share - smaller)
    sizes = (a + max(0, a - b) * further if a > 0 else a for a, b in both)
    return tuple(rounded_up(round(size)) if size > 0 else int(size) for size in sizes)


def _measure_asks(
    ops: Mapping[str, LoneOp], trials: Mapping[str, LoneOp], bench: Bench
) -> None:
    """Record in which order ops, by key, ask for scratch and outputs.

    One session of the profiler, whose begin takes long on a GPU, records all ops and
    trials, by kind; there is none beside a session of the user's own.
    """
    fitting = {kind: op for kind, op in trials.items() if bench.fits(2 * op.moved)}
    run = {**ops, **fitting}
    space = bench.tried(lambda: _recorded(run, bench)) if run else None
    for key, chunks in _chunks(space, run) if space else ():
        if key in trials:
            bench.measured.forwards[key] = _forwards(trials[key].op, chunks)
            continue
        asks, most = _asks([chunk[1:] for chunk in chunks])
        made = sum(1 for output in ops[key].op.outputs if output.size)
        is_exact = most == bench.measured.scratch[key] and asks.count(0) == made
        bench.measured.asks[key] = asks if any(asks) and is_exact else ()


def _recorded(ops: Mapping[str, LoneOp], bench: Bench) -> Any:
    """Return the XSpace of a session in which ops run, each in a mark of its key."""
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            for key, op in ops.items():
                bench.tried(partial(_run_marked, key, op))
        (file,) = Path(folder).rglob("*.xplane.pb")
        return compat.XSpace.FromString(file.read_bytes())


def _run_marked(key: str, op: LoneOp) -> None:
    call = op.call()
    with tf.profiler.experimental.Trace(key):
        results = call()
    del results  # they are given back outside of the mark


def _chunks(
    space: Any, keys: Container[str]
) -> Iterator[tuple[str, list[tuple[str, int, Bytes]]]]:
    """Yield (key of a mark, its chunks' ops, addresses and bytes, below 0 if freed)."""
    marks, chunks = list[tuple[int, int, str]](), list[tuple[int, str, int, Bytes]]()
    for plane in space.planes:
        known = plane.stat_metadata
        for line, event in ((row, one) for row in plane.lines for one in row.events):
            name = plane.event_metadata[event.metadata_id].name
            begin = line.timestamp_ns * 1000 + event.offset_ps
            if name in keys:
                marks.append((begin, begin + event.duration_ps, name))
            elif name in _CHUNKS:
                facts = {known[one.metadata_id].name: one for one in event.stats}
                if known[facts["allocator_name"].ref_value].name.startswith("GPU_"):
                    size = facts["allocation_bytes"].int64_value * _CHUNKS[name]
                    op = known[facts["tf_op"].ref_value].name if size > 0 else ""
                    chunks.append((begin, op, facts["addr"].int64_value, size))
    chunks.sort()
    for begin, end, key in marks:
        yield key, [chunk[1:] for chunk in chunks if begin <= chunk[0] <= end]


def _asks(chunks: Sequence[tuple[int, Bytes]]) -> tuple[tuple[int, ...], Bytes]:
    """Return (`Op.asks`, the most bytes at once beside chunks that stay)."""
    last = {address: place for place, (address, _) in enumerate(chunks)}
    asks, numbers, now, most = list[int](), dict[int, int](), 0, 0
    for place, (address, size) in enumerate(chunks):
        if size < 0 and address not in numbers:
            continue  # taken before
        if size > 0 and place < last[address]:
            asks.append(size)
            numbers[address] = sum(ask > 0 for ask in asks)
        else:
            asks.append(0 if size > 0 else -numbers.pop(address))
        now += size
        most = max(most, now)
    while asks and asks[-1] < 0:
        asks.pop()
    return tuple(asks), most - now


def _forwards(op: Op, chunks: Sequence[tuple[str, int, Bytes]]) -> bool:
    """Tell whether an op writes in place, which also counts where no copy was made."""
    last = {address: (name, size) for name, address, size in chunks}
    held = [size for name, size in last.values() if size > 0 and name == op.name]
    is_tried = any(name.endswith(COPIED) for name, *_ in chunks)
    made = op.reusing.size if op.reusing else 0
    return not is_tried or max(held, default=0) < made


def _usual(op: LoneOp, bench: Bench) -> Bytes:
    if bench.device.is_gpu and op.op.flops and "Conv" in op.op.type:
        bench.take_guards_off()  # the convolution runs first within a full step
        limit = int(os.environ.get(VARIABLE, _WORKSPACE_MOST // MIB)) * MIB
        return min(math.ceil(_OF_CONVOLUTION * op.moved), limit)
    return math.ceil(_USUAL_SHARE * op.moved)


def _by_first_rows(
    op: LoneOp, bench: Bench, known: Mapping[str, Bytes]
) -> tuple[Bytes, _Parts] | None:
    """Scratch or reserve space by an op's first rows; None if too few rows fit.

    The bench writes what it measures of these rows into `known`.

    Returns:
        Bytes, extrapolated from two numbers of rows; and these parts of the op.
    """
    part, tried = bench.free / TIMES / op.moved, list[tuple[float, Bytes]]()
    parts: _Parts = []
    for rows in (part, part / 2):  # some scratch is the same for any rows
        if (found := op.first_rows(rows)) is None:
            return None
        first, kept = found
        bench.measure_scratch(first)
        if first.key not in known:
            return None
        tried.append((kept, known[first.key]))
        parts.append(found)
    (more, most), (less, least) = tried
    size = math.ceil(most + max(0, most - least) / (more - less) * (1 - more))
    return size, parts


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
    if not layers:
        return step
    known = [op for op in lone_ops(step, layers) if op.key in reserved]
    sizes = {op.op.name: reserved[op.key] for op in known}
    needs = {
        op.outputs[RESERVED].name: max(op.scratch, sizes.get(op.name, 0))
        for op in layers
    }

    def measured_op(op: Op) -> Op:
        if op.name in sizes:  # it may be offloaded, now that its size is known
            outputs, reserve = [*op.outputs], op.outputs[RESERVED]
            size = sizes[op.name]
            shape = (size // tf.as_dtype(reserve.dtype).size,)
            outputs[RESERVED] = replace(reserve, size=size, shape=shape)
            return replace(op, outputs=tuple(outputs), varies=False)
        need = max((needs.get(name, 0) for name in op.inputs), default=0)
        return replace(op, scratch=max(op.scratch, need))

    ops = tuple(map(measured_op, step.graph.ops))
    return replace(step, graph=GraphView(ops=ops, results=step.graph.results))


def _kind_of(op: Op) -> str:
    """Return an op's type and the type of its output that may be written in place."""
    return op.type if op.reusing is None else f"{op.type} {op.reusing.dtype}"


def with_scratch(
    graph: GraphView,
    scratch: Mapping[str, int],
    asks: Mapping[str, tuple[int, ...]],
    never_in_place: Container[str] = (),
) -> GraphView:
    """The graph with what `measure_scratch` returns written into its ops."""

    def measured(op: Op) -> Op:
        if op.name in scratch:
            op = replace(op, scratch=scratch[op.name], asks=asks.get(op.name, ()))
        if op.inplace and _kind_of(op) in never_in_place:
            op = replace(op, inplace=False)
        return op

    return GraphView(ops=tuple(map(measured, graph.ops)), results=graph.results)


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
