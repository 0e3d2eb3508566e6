"""Compare the bits of a split op's parts with the whole op's, on the present device.

    random numbers ─┬> op ───────────────> y
                    └> in parts ──> op ──> the same bits, part by part?

A library chooses its order of summation by shapes and addresses, not by values: an
answer for random values holds for all, unless results are rounded to 16 bits.

Known weakness: ops that do not fit the free memory as a whole count as having other
bits in parts.
"""

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from lms.ir.graph import GraphView, Op
from lms.tf import compat
from lms.tf.measure.bench import Bench
from lms.tf.measure.devices import find_device
from lms.tf.measure.lone_op import LoneOp
from lms.tf.passes.split_rules import Cut

__all__ = ["keeps_bits"]

# Ops whose order of summation depends on other readers of an input (aggregate_ops.cc).
_BY_READERS = {"AddN"}

# Types to which sums of 32 bits are rounded: another order shows in one of 65,536
# elements for some values, in none for others.
_ROUNDED = {"float16", "bfloat16"}

# Answers by the whole op's key, cut and number of parts; a process keeps them.
_known: dict[tuple[str, str, int], bool] = {}


def keeps_bits(
    graph: GraphView, nodes: Mapping[str, compat.NodeDef], op: Op, cut: Cut, parts: int
) -> bool:
    """Tell whether an op's parts have the whole op's bits; False if unknown.

    The op has no resources, and its inputs may be any numbers.
    """
    if op.type in _BY_READERS or cut.counter is not None:
        return False
    if any(tensor.dtype in _ROUNDED for tensor in op.outputs):
        return False
    whole = LoneOp.of(graph, nodes, op)
    if whole is None:
        return False
    key = whole.key, repr(cut), parts
    dtypes = [graph.tensors[name].dtype for name in op.inputs]
    if key not in _known:
        with Bench(find_device()) as bench:
            ask = partial(_same, whole, cut, parts, dtypes)
            same = bench.fits(whole.moved) and bench.tried(ask)
        _known[key] = bool(same)
        gc.collect()  # memory freed later would fragment what is planned
    return _known[key]


def _same(op: LoneOp, cut: Cut, parts: int, dtypes: Sequence[str]) -> bool:
    specs = {name: spec for name, spec, _ in op.arguments}
    node = compat.copied(op.nodes[0])
    if not specs.keys() <= set(node.input):
        return False  # a maker of small inputs reads an argument
    random = np.random.default_rng(0)
    values = {
        name: random.standard_normal(
            op.shapes[name], np.float64 if spec.dtype == tf.float64 else np.float32
        ).astype(spec.dtype.as_numpy_dtype, copy=False)
        for name, spec in specs.items()
    }
    constants, arguments, given = [], list[compat.Input](), list[list[Any]]()
    for i, name in enumerate(node.input):
        axis = cut.inputs[i]
        if i in cut.constants:
            dtype = tf.as_dtype(dtypes[i])
            constants.append(compat.constant(f"size_{i}", cut.constants[i], dtype))
            node.input[i] = constants[-1].name
        elif name in specs:
            x = values[name]
            given.append([x] * parts if axis is None else np.split(x, parts, axis))
            spec = tf.TensorSpec(given[-1][0].shape, specs[name].dtype)
            node.input[i] = f"piece_{i}"
            arguments.append((node.input[i], spec, None))
        elif axis is not None:
            return False
    part = replace(
        op, nodes=(node, *constants, *op.nodes[1:]), arguments=tuple(arguments)
    ).function()
    whole = _run(op.function(), values.values())
    expected = [
        np.split(y, parts, axis) for y, axis in zip(whole, cut.outputs, strict=True)
    ]
    return all(
        found.tobytes() == wanted[number].tobytes()
        for number in range(parts)
        for found, wanted in zip(
            _run(part, [each[number] for each in given]), expected, strict=True
        )
    )


def _run(function: Callable[..., Any], values: Iterable[Any]) -> list[Any]:
    return [each.numpy() for each in function(*map(tf.constant, values))]
