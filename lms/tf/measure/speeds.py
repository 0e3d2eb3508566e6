"""Measured speeds of the present device: seconds of ops, rates, its link to the host.

Each distinct op runs alone, once in a process, on arguments of its shapes: where its
scratch is measured, or here. Its time is that of a call less that of an idle call.

Known weakness: ops that cannot be run alone, and those in loops, are not measured. Time
on a GPU is that of calls that follow each other: kernels shorter than a call are not
resolved.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import tensorflow as tf

from lms.errors import OutOfMemoryError
from lms.ir.graph import GraphView, Op
from lms.machine.hardware import Costs, Hardware, roofline
from lms.report.progress import track
from lms.tf import compat
from lms.tf.failures import ran_out
from lms.tf.lowering import TracedStep
from lms.tf.measure.bench import Bench, measurements_of, seconds_of, timed_once
from lms.tf.measure.devices import Device
from lms.tf.measure.free_memory import available_host_bytes
from lms.tf.measure.lone_op import LoneOp, built, forget_functions, lone_ops
from lms.tf.measure.scratch import is_worth_a_run
from lms.tf.nodes import COPY_IN, COPY_OUT
from lms.units import KIB, MIB, Bytes, Seconds, format_bytes

__all__ = ["measure_costs", "measure_hardware", "small_kernel_seconds"]

_LOG = logging.getLogger("lms")

# Only a call longer than 1.3 idle calls resolves its op's time.
_RESOLVED = 1.3

# Ops that only move bytes are not run below 1/4 of an idle call, nor below 1/200 of the
# step where an op of their type takes longer.
_HIDDEN, _PARTS = 4, 200

# The longest ops, of 75 % of the step, are timed again after all others, and the faster
# time counts: a moment in which the machine was busy must not decide.
_TWICE_PERCENT = 75

# Length of the chain that times a small op; key of the result.
_CHAINED, _SMALL = 1024, "small"

# Length of the chain behind matmuls; time of the matmuls over launches of the chain;
# most matmuls; key of the result.
_BEHIND, _AHEAD, _MOST_PRODUCTS, _KERNEL = 256, 1.5, 64, "kernel"

# Rates are measured on tensors of 128 MiB, at most 1/32 of the device's memory: a GPU
# copies a few MiB in less time than the request takes.
_COPIED, _PART = 128 * MIB, 32

# A copy of 1 KiB takes no longer than the latency of any copy; key of the result.
_FEW, _LATENCY = KIB, "latency"

# Where 4 tensors of 128 MiB do not fit, smaller ones are measured, of 64 KiB or more.
_LEAST_COPIED, _HELD = 64 * KIB, 4

# Most rows of the square matrices whose product measures the compute rate.
_SQUARE = 4096

# An op of less than 0.1 seconds is timed as the difference of two calls, of one op and
# of several: on a fast card a call of one takes longer to start and to wait for than to
# run. The others take 0.1 seconds, and are at most 32. The fastest of 2 timings counts.
_ALONE, _MORE, _TIMINGS = 0.1, 32, 2

_COPY_OPS = {"d2h": COPY_OUT, "h2d": COPY_IN}


def measure_costs(step: TracedStep, device: Device) -> Costs:
    """Seconds of each op on the present device.

    Ops with a tensor of at least 64 KiB are run alone. Ops that only move few bytes
    are not: they exceed their roofline by the factor of the largest op of their type.
    Ops that cannot run, do not fit, or take about as long as an idle call, take a
    roofline of the device's measured rates. Small ops take their time in a chain.
    """
    hardware = measure_hardware(device)
    least = roofline(step.graph, hardware)
    large = [op for op in step.graph.ops if is_worth_a_run(step.graph, op)]
    with Bench(device) as bench:
        minor = _minor(large, least, bench.idle_seconds(1))
        ops = lone_ops(step, (op for op in large if op.name not in minor))
        _time(ops, bench)
        timed: dict[str, Seconds] = {}
        for op in ops:
            if (taken := bench.measured.seconds.get(op.key)) is not None:
                idle, bound = (
                    bench.idle_seconds(len(op.arguments)),
                    least.of(op.op.name),
                )
                # A call that hardly takes longer than an idle one resolves no op.
                hidden = min(bound, taken) if taken <= _RESOLVED * idle else 0.0
                timed[op.op.name] = max(hidden, taken - idle)
        forget_functions()
    small = small_kernel_seconds(device)
    over = _over_roofline([op.op for op in ops], timed, least)
    own = (op for op in step.graph.ops if not op.persistent and op.alias is None)
    seconds = {op.name: small for op in own}
    for op in large:
        times_over = over.get(op.type, 1.0) if op.name in minor else 1.0
        untimed = least.of(op.name) * times_over
        seconds[op.name] = max(small, timed.get(op.name, untimed))
    for name, link in _over_link(step, hardware).items():
        seconds[name] = max(seconds.get(name, small), link)
    return Costs(seconds=seconds, source="measured")


def _over_link(step: TracedStep, hardware: Hardware) -> dict[str, Seconds]:
    """Seconds that the link takes for variables on the host, by the waiting op."""
    graph = step.graph
    handles = {f"{a.name}:0": a.variable for a in step.arguments if a.lies_on_host}
    reads = {
        f"{op.name}:0": handles[op.inputs[0]]
        for op in graph.ops
        if op.reads_state and op.inputs[0] in handles
    }
    found: dict[str, Seconds] = {}
    for op in graph.ops:
        read = [_bytes(reads[name], op, graph) for name in op.inputs if name in reads]
        written = [_bytes(handles[n], op, graph) for n in op.writes if n in handles]
        if (read or written) and op.alias is None:
            # A variable that is added to is read first.
            into = sum(read) + sum(written)
            found[op.name] = into / hardware.h2d + sum(written) / hardware.d2h
    return found


def _bytes(spec: Any, op: Op, graph: GraphView) -> Bytes:
    """Bytes of a variable that an op needs; gathers and scatters need some rows."""
    size = spec.shape.num_elements() * spec.dtype.size
    if not any(word in op.type for word in ("Gather", "Scatter", "Sparse")):
        return size
    rows = [graph.tensors[name].size for name in op.inputs[1:]]
    return min(size, max([tensor.size for tensor in op.outputs] + rows))


def _minor(large: Sequence[Op], least: Costs, idle: Seconds) -> set[str]:
    """Names of ops that are not run, as they only move bytes, and few.

    Few bytes: an idle call hides their copy, or they take a small share of the step
    where another op of the type moves more.
    """
    share = sum(least.of(op.name) for op in large) / _PARTS
    by_size = sorted(large, key=lambda op: least.of(op.name))
    longest = {op.type: least.of(op.name) for op in by_size}
    return {
        op.name
        for op in large
        if not op.flops
        and least.of(op.name) < max(idle / _HIDDEN, min(share, longest[op.type]))
    }


def _over_roofline(
    ops: Sequence[Op], timed: Mapping[str, Seconds], least: Costs
) -> dict[str, float]:
    """Time over roofline of the largest timed op of each type."""
    known = (op for op in ops if op.name in timed and least.of(op.name) > 0)
    by_size = sorted(known, key=lambda op: least.of(op.name))
    return {op.type: timed[op.name] / least.of(op.name) for op in by_size}


def _time(ops: Sequence[LoneOp], bench: Bench) -> None:
    """Time each distinct op that was not timed before and fits; the longest twice."""
    seconds, distinct = bench.measured.seconds, {op.key: op for op in ops}
    new = [op for key, op in distinct.items() if key not in seconds]
    for op in track("measuring ops", [op for op in new if bench.has_room(op)]):
        bench.time(op)
    uses = Counter(op.key for op in ops if op.key in seconds)
    share = {key: seconds[key] * count for key, count in uses.items()}
    left = sum(share.values()) * _TWICE_PERCENT / 100
    for key in sorted(share, key=lambda key: -share[key]):
        if left > 0 and key in timed_once and bench.has_room(distinct[key]):
            bench.time(distinct[key])
        left -= share[key]
    timed_once.difference_update(distinct)


def measure_hardware(device: Device) -> Hardware:
    """The present device and its link, measured."""
    return Hardware(
        name=device.name,
        memory=device.limit or available_host_bytes() or 1,
        flops=_rate(device, "flops"),
        memory_bandwidth=_rate(device, "bandwidth"),
        h2d=_rate(device, "h2d"),
        d2h=_rate(device, "d2h"),
        latency=_latency(device),
        launch=small_op_seconds(device),
        source="measured",
    )


def _rate_at(device: Device, kind: str, size: int) -> float:
    """Measure a rate on tensors of `size` bytes.

    `flops` are those of a product of two square matrices; `bandwidth` counts the bytes
    that the device reads and writes when it copies a tensor; `d2h` and `h2d` are copies
    to the host, and back from its pinned memory.
    """
    if kind == "flops":
        square = _square(device, size)
        return 2 * square.shape[0] ** 3 / _seconds_each(device, "MatMul", square)
    if kind == "bandwidth":
        return 2 * size / _seconds_each(device, "DeepCopy", _zeros(device, size))
    each = _copy_seconds(device, kind, size)
    return size / max(each - _latency(device), each / 2)


def _square(device: Device, size: int) -> Any:
    """The largest square matrix within `size` bytes, of at most 4,096 rows."""
    rows = min(_SQUARE, int((size / 4) ** 0.5) // 64 * 64 or 64)
    with tf.device(device.full_name):
        return tf.ones([rows, rows])


def _latency(device: Device) -> Seconds:
    """Seconds of the smallest copies, one after the other."""
    seconds = measurements_of(device).seconds
    if _LATENCY not in seconds:
        each = (_copy_seconds(device, direction, _FEW) for direction in _COPY_OPS)
        seconds[_LATENCY] = min(each)
    return seconds[_LATENCY]


def _copy_seconds(device: Device, direction: str, size: int) -> Seconds:
    """Seconds of a copy as swaps make it; without a GPU, of one within memory.

    Copies of eager tensors differ: they take pageable memory, first wait for the whole
    device, and the copy of an op's input is kept (`CopyToDevice` in tensor_handle.cc,
    `mirror` in execute.cc, both in TensorFlow's common_runtime/eager).
    """
    source = _zeros(device, size)
    if direction == "h2d":  # what a function copies to the host lies in pinned memory
        host = compat.device_name("CPU:0")
        node = compat.made_node("last", "Identity", ["x"], host, T=source.dtype)
        source = _call([node], x=source)()[0]
    op = _COPY_OPS[direction] if device.is_gpu else "DeepCopy"
    return _seconds_each(device, op, source)


def _zeros(device: Device, size: int) -> Any:
    with tf.device(device.full_name):
        return tf.zeros([size], tf.uint8)


def _seconds_each(device: Device, op: str, tensor: Any) -> Seconds:
    """Seconds of an op on a tensor, without the overhead of a call."""

    def seconds(count: int) -> Seconds:
        call = _repeated(device, op, tensor, count)
        return min(seconds_of(call) for _ in range(_TIMINGS))

    one = seconds(1)
    if one >= _ALONE:
        return one
    more = min(_MORE, math.ceil(_ALONE / one))
    many = seconds(1 + more)
    # Something else may have held the short call up: at least half of the long call
    # counts.
    return max((many - one) / more, many / (1 + more) / 2)


def _repeated(device: Device, op: str, tensor: Any, count: int) -> Callable[[], Any]:
    """A call that runs an op on a tensor `count` times.

    A shape is returned: the bytes of a copied tensor would be copied again.
    """
    nodes = _nodes(device, op, tensor.dtype, count)
    read = ["x", *(f"^{node.name}" for node in nodes[-2:])]
    # An eager tensor names the job `localhost`, also within a worker of a cluster.
    place = compat.device_name(tensor.backing_device.rpartition("device:")[2])
    shape = compat.made_node("last", "Shape", read, place, T=tensor.dtype)
    return _call([*nodes, shape], x=tensor, y=tensor)


def _nodes(device: Device, op: str, dtype: tf.DType, count: int) -> list[Any]:
    """Nodes that run an op `count` times on the arguments `x` and `y` in turn.

    Each waits for the last but one, so that the device never waits for the host.
    TensorFlow would run ops once that wait for the same and read the same argument.
    """
    nodes: list[compat.NodeDef] = []
    for i in range(count):
        read = ["xy"[i % 2]] * (2 if op == "MatMul" else 1)
        after = [f"^run_{i - 2}"] if i > 1 else []
        place = device.full_name
        nodes.append(compat.made_node(f"run_{i}", op, read + after, place, T=dtype))
    return nodes


def _call(nodes: list[compat.NodeDef], **tensors: Any) -> Callable[[], Any]:
    """A call of nodes that read tensors by name; returns the output of `last`."""
    specs = [(n, tf.TensorSpec(x.shape, x.dtype), None) for n, x in tensors.items()]
    return partial(built(nodes, specs, ["last:0"]), *tensors.values())


def _rate(device: Device, kind: str) -> float:
    """A rate of the device, measured on tensors that fit its free memory.

    An earlier rate of the kind, measured on tensors at least as large, counts instead.
    Raises if not even small tensors fit.
    """
    usual = size = min(_COPIED, (device.limit or _COPIED * _PART) // _PART)
    free, known = device.free_bytes, measurements_of(device).rates
    while size > _LEAST_COPIED and size * _HELD > free:
        size //= 2
    while kind not in known or known[kind][0] < size:
        try:
            known[kind] = size, _rate_at(device, kind, size)
        except tf.errors.OpError as error:
            if not ran_out(error):
                raise
            if kind in known:
                break
            if size <= _LEAST_COPIED:
                raise OutOfMemoryError(
                    f"Could not measure {device.name}: tensors of {format_bytes(size)} "
                    "do not fit. Delete other models and tensors on the device, or use "
                    "a smaller model."
                ) from error
            size = max(_LEAST_COPIED, size // _HELD)
        else:
            if size < usual:
                sizes = format_bytes(size), format_bytes(usual)
                _LOG.warning("Measured on %s, as %s do not fit (%s).", *sizes, kind)
    return known[kind][1]


def small_op_seconds(device: Device) -> Seconds:
    """Return seconds of a small op within a chain of small ops."""
    seconds = measurements_of(device).seconds
    if _SMALL not in seconds:
        one, many = (seconds_of(_chain(device, count)) for count in (1, _CHAINED))
        # Something else may have held the short call up; no op takes no time at all.
        seconds[_SMALL] = (many - one if many > one else many) / (_CHAINED - 1)
    return seconds[_SMALL]


def small_kernel_seconds(device: Device) -> Seconds:
    """Seconds that a small op keeps the device busy, without its launch.

    Measured in a chain of small ops, all launched while matmuls keep the device busy.
    Where the matmuls do not fit, or are too short, the time of a launch counts.
    """
    measured, launch = measurements_of(device), small_op_seconds(device)
    if _KERNEL not in measured.seconds and device.is_gpu:
        rate, size = _rate(device, "flops"), measured.rates["flops"][0]
        if size * _HELD > device.free_bytes:
            return launch
        square = _square(device, size)
        each = 2 * square.shape[0] ** 3 / rate
        products = math.ceil(_AHEAD * _BEHIND * launch / each)
        if products > _MOST_PRODUCTS:
            return launch
        behind = square, products
        none, many = (seconds_of(_chain(device, n, *behind)) for n in (1, _BEHIND))
        alone = (many - none) / (_BEHIND - 1)  # not above 0 where noise hides it
        measured.seconds[_KERNEL] = alone if alone > 0 else launch
    return min(launch, measured.seconds.get(_KERNEL, launch))


def _chain(
    device: Device, count: int, square: Any = None, products: int = 0
) -> Callable[[], Any]:
    """A call of `count` small ops, each on the last result, behind matmuls."""
    with tf.device(device.full_name):
        small = tf.ones([])
    square = small if square is None else square
    nodes = _nodes(device, "MatMul", small.dtype, products)
    after = [f"^{node.name}" for node in nodes[-2:]]
    names = ["small", *(f"small_{i}" for i in range(1, count)), "last"]
    nodes += [
        compat.made_node(name, "Sin", [read, *after], device.full_name, T=small.dtype)
        for read, name in pairwise(names)
    ]
    return _call(nodes, small=small, x=square, y=square)
