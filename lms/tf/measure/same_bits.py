"""Compare the bits of a split op's parts with the whole op's, on the present device.

    random numbers ─┬> op ───────────────> y
                    └> in parts ──> op ──> the same bits, part by part?

A library chooses its order of summation by shapes and addresses, not by values: an
answer for random values holds for all, unless results are rounded to 16 bits.

Known weakness: ops that do not fit the free memory as a whole count as having other
bits in parts.
"""

import gc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from lms.ir.graph import GraphView, Op
from lms.machine.hardware import moved_bytes
from lms.tf import compat
from lms.tf.measure.devices import find_device
from lms.tf.measure.microbenchmark import Bench, sizes_of
from lms.tf.measure.scratch import LEFT_BEHIND, free_bytes
from lms.tf.passes.split_rules import Cut

__all__ = ["keeps_bits"]

# An op runs if 1.1 times the bytes that it reads and makes are free.
_SPARE = 1.1

# Ops whose order of summation depends on other readers of an input (aggregate_ops.cc).
_BY_READERS = {"AddN"}

# Types to which sums of 32 bits are rounded: another order shows in one of 65,536
# elements for some values, in none for others.
_ROUNDED = {"float16", "bfloat16"}

# Answers by the whole op's bench, cut and number of parts; a process keeps them.
_known: dict[tuple[str, str, int], bool] = {}


def keeps_bits(
    graph: GraphView, nodes: Mapping[str, compat.NodeDef], op: Op, cut: Cut, parts: int
) -> bool:
    """Tell whether an op's parts have the whole op's bits; False if unknown.

    Args:
        graph: The step.
        nodes: Its nodes by names.
        op: The op, which has no resources and whose inputs may be any numbers.
        cut: Axes and constants of the split.
        parts: Number of parts.
    """
    if op.type in _BY_READERS or cut.counter is not None:
        return False
    if any(tensor.dtype in _ROUNDED for tensor in op.outputs):
        return False
    bench = Bench.of(graph, nodes, op)
    if bench is None:
        return False
    key = bench.key, repr(cut), parts
    if key not in _known:
        device = find_device()
        gathered = device.keep_pool(LEFT_BEHIND)
        dtypes = [graph.tensors[name].dtype for name in op.inputs]
        has_room = _SPARE * moved_bytes(graph, op) <= free_bytes(device)
        try:
            _known[key] = has_room and _same(bench, cut, parts, dtypes)
        except (tf.errors.OpError, ValueError, MemoryError):  # not alone, or too large
            _known[key] = False
        del gathered
        gc.collect()  # memory freed later would fragment what is planned
    return _known[key]


def _same(bench: Bench, cut: Cut, parts: int, dtypes: Sequence[str]) -> bool:
    specs = {name: spec for name, spec, _ in bench.arguments}
    node = compat.copied(bench.nodes[0])
    if not specs.keys() <= set(node.input):
        return False  # another op of the bench reads an argument
    constants, arguments, pieces = [], list[compat.Input](), []
    for i, name in enumerate(node.input):
        axis = cut.inputs[i]
        if i in cut.constants:
            dtype = tf.as_dtype(dtypes[i])
            constants.append(compat.constant(f"size_{i}", cut.constants[i], dtype))
            node.input[i] = constants[-1].name
        elif name in specs:
            shape = sizes_of(specs[name])
            if axis is not None:
                shape[axis] //= parts
            node.input[i] = f"piece_{i}"
            spec = tf.TensorSpec(shape, specs[name].dtype)
            arguments.append((f"piece_{i}", spec, None))
            pieces.append((name, axis))
        elif axis is not None:
            return False
    part = replace(
        bench,
        nodes=(node, *constants, *bench.nodes[1:]),
        arguments=tuple(arguments),
    )
    random = np.random.default_rng(0)
    values = {
        name: random.standard_normal(
            sizes_of(spec), np.float64 if spec.dtype == tf.float64 else np.float32
        ).astype(spec.dtype.as_numpy_dtype, copy=False)
        for name, spec in specs.items()
    }
    whole = _run(bench, [values[name] for name in specs])
    expected = [
        np.split(y, parts, axis) for y, axis in zip(whole, cut.outputs, strict=True)
    ]
    given = [_split(values[name], parts, axis) for name, axis in pieces]
    return all(
        found.tobytes() == wanted[number].tobytes()
        for number in range(parts)
        for found, wanted in zip(
            _run(part, [each[number] for each in given]), expected, strict=True
        )
    )


def _split(value: Any, parts: int, axis: int | None) -> list[Any]:
    return [value] * parts if axis is None else np.split(value, parts, axis)


def _run(bench: Bench, values: list[Any]) -> list[Any]:
    function = compat.build_function(
        compat.graph_def(bench.nodes, None), bench.arguments, bench.outputs
    )
    with compat.planned_as_is():
        results = function.call_flat(*map(tf.constant, values))
    return [each.numpy() for each in results]
