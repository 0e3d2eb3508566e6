"""Tensors in the host's memory that the device reads: they count where they arrive.

    host op ──send──> receive @device ──> device ops

TensorFlow receives a tensor once, as soon as it is made, and gives its room back after
the last reader on the device. So it counts as made by an op of the step, and stays.

Kernels of a GPU keep some tensors in the host's memory too: shapes, most of int32. They
count nothing, or if another kernel reads them from the device's memory, as received.

Known weakness: what an op in a loop or branch receives counts nothing.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import tensorflow as tf

from lms.ir.graph import Op, Tensor
from lms.tf import compat

__all__ = ["OPAQUE", "with_host_memory", "with_received"]

OPAQUE = ("resource", "variant", "string")  # types of no bytes on the device


def with_received(ops: Sequence[Op], elsewhere: Collection[str]) -> list[Op]:
    """Ops in which tensors that come to the device have their bytes.

    Args:
        ops: The ops of a step.
        elsewhere: Names of those that run on another device.

    Example:
        >>> w = Tensor(name="w:0", size=0, shape=(3, 2))
        >>> read = Op(name="w", type="ReadVariableOp", outputs=(w,), persistent=True)
        >>> add = Op(name="add", type="Neg", inputs=("w:0",))
        >>> made, _ = with_received([read, add], {"w"})
        >>> made.outputs[0].size, made.persistent
        (24, False)
    """
    read = {
        name
        for op in ops
        if op.name not in elsewhere and not op.fixed
        for name in op.inputs
    }
    return [
        _received(op, read) if op.name in elsewhere and not op.fixed else op
        for op in ops
    ]


def with_host_memory(
    ops: Sequence[Op], nodes: Sequence[compat.NodeDef], device: str
) -> list[Op]:
    """Ops in which what kernels keep in the host's memory takes no device memory.

    Args:
        ops: The ops of a step.
        nodes: Their nodes.
        device: Full name of the device; only GPUs have a memory beside the host's.
    """
    if "GPU" not in device:
        return list(ops)
    kept = {n.name: compat.host_memory(n) for n in nodes if n.device in ("", device)}
    read = {
        name
        for op in ops
        if op.name in kept
        for i, name in enumerate(op.inputs)
        if i not in kept[op.name][0]
    }
    return [
        _in_host_memory(op, kept[op.name][1], read) if op.name in kept else op
        for op in ops
    ]


def _in_host_memory(op: Op, numbers: Collection[int], read: Collection[str]) -> Op:
    """An op whose numbered outputs lie in the host's memory."""
    kept = [op.outputs[i] for i in numbers if op.outputs[i].size]
    if not kept:
        return op
    if any(tensor.name in read for tensor in kept):
        return replace(op, varies=True, inplace=False, repeatable=False)
    outputs = (replace(t, size=0) if t in kept else t for t in op.outputs)
    return replace(op, outputs=tuple(outputs))


def _received(op: Op, read: Collection[str]) -> Op:
    outputs = tuple(
        replace(tensor, size=_bytes(tensor)) if tensor.name in read else tensor
        for tensor in op.outputs
    )
    if not any(tensor.size for tensor in outputs):
        return op
    return replace(
        op,
        outputs=outputs,
        persistent=False,
        inplace=False,
        repeatable=False,
        constant=False,
        reads_state=False,
        varies=True,
    )


def _bytes(tensor: Tensor) -> int:
    if tensor.dtype in OPAQUE:
        return 0
    return math.prod(tensor.shape) * tf.as_dtype(tensor.dtype).size
