"""Measured seconds of ops on the present device.

Each distinct op runs alone, once in a process, on arguments of its shapes: where its
scratch is measured, or here. Its time is that of a call less that of an idle call.

Known weakness: ops that cannot be run alone, and those in loops, are not measured. Time
on a GPU is that of calls that follow each other: kernels shorter than a call are not
resolved.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lms.ir.graph import GraphView, Op
from lms.machine.hardware import Costs, Hardware, roofline
from lms.report.progress import track
from lms.tf.lowering import TracedStep
from lms.tf.measure.bench import Bench, timed_once
from lms.tf.measure.device_rates import measure_hardware, small_kernel_seconds
from lms.tf.measure.devices import Device
from lms.tf.measure.lone_op import LoneOp, forget_functions, lone_ops
from lms.tf.measure.scratch import is_worth_a_run
from lms.units import Bytes, Seconds

__all__ = ["measure_costs"]

# Only a call longer than 1.3 idle calls resolves its op's time.
_RESOLVED = 1.3

# Ops that only move bytes are not run below 1/4 of an idle call, nor below 1/200 of the
# step where an op of their type takes longer.
_HIDDEN, _PARTS = 4, 200

# The longest ops, of 75 % of the step, are timed again after all others, and the faster
# time counts: a moment in which the machine was busy must not decide.
_TWICE_PERCENT = 75


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
