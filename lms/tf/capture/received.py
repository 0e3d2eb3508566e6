"""What the host makes and the device reads: it takes its bytes where it arrives.

    host op ──send──> receive @device ──> device ops

TensorFlow receives a tensor once, as soon as it is made, and gives its room back after
the last reader on the device. So it counts as made by an op of the step, and stays.

Known weaknesses: what an op in a loop or branch receives counts nothing. Small tensors
that a kernel of a GPU reads from the host's memory count although they stay there.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import tensorflow as tf

from lms.ir.graph import Op, Tensor

__all__ = ["OPAQUE", "with_received"]

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
