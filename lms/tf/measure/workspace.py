"""The limit of cuDNN's workspace: the bytes that fast convolutions need, if they fit.

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

Known weakness: the rule is fitted to 247 convolutions of two networks on one card.
"""

import os
from collections.abc import Iterator

from lms.ir.graph import GraphView
from lms.units import GIB, MIB, Bytes

__all__ = ["VARIABLE", "limit_in_force", "limit_workspace", "workspace_limit"]

VARIABLE = "TF_CUDNN_WORKSPACE_LIMIT_IN_MB"

# The limit is at least 1/4 of the step's memory: some kernels take more than copies,
# and the next step of the process may have larger convolutions.
_PART = 4

# Where copies do not fit, the limit is at least 1/16 of the step's memory: no step was
# refused for that. In any case it is at most TensorFlow's own limit, 8 GiB.
_LEAST, _MOST = 16, 8 * GIB


def workspace_limit(graph: GraphView, room: Bytes) -> int:
    """The limit for a step in `room` bytes: whole MiB that one convolution may take.

    Example:
        >>> from lms.ir.graph import Op, Tensor
        >>> def made(name, size, *inputs, **more):
        ...     out = (Tensor(name=f"{name}:0", size=size * MIB),)
        ...     return Op(name=name, inputs=inputs, outputs=out, **more)
        >>> x, w = made("x", 40, type="Relu"), made("w", 10, type="Relu")
        >>> y = made("y", 40, "x:0", "w:0", type="Conv3D", flops=8)
        >>> graph = GraphView(ops=(x, w, y))  # 90 MiB of tensors, 100 of copies
        >>> [workspace_limit(graph, room * MIB) for room in (1000, 200, 120)]
        [250, 101, 30]
    """
    needs = [*_needs(graph)]
    left = [room - own for copies, own in needs if copies + own > room]
    if left:  # their kernels must not exceed `room`
        return max(1, max(room // _LEAST, min(left)) // MIB)
    largest = max((copies for copies, _ in needs), default=0)
    return min(max(room // _PART, largest + MIB), _MOST) // MIB


def limit_workspace(graph: GraphView, room: Bytes | None) -> None:
    """Set the limit, if there is one and neither the user nor an earlier step did."""
    if room is not None:
        os.environ.setdefault(VARIABLE, str(workspace_limit(graph, room)))


def limit_in_force() -> Bytes:
    """Return the most bytes of one convolution's workspace in this process."""
    return int(os.environ.get(VARIABLE, _MOST // MIB)) * MIB


def _needs(graph: GraphView) -> Iterator[tuple[Bytes, Bytes]]:
    """Yield (bytes of copies, bytes of tensors) of each convolution."""
    for op in graph.ops:
        if op.flops and "Conv" in op.type:
            tensors = [*(graph.tensors[name] for name in op.inputs), *op.outputs]
            sizes = [tensor.size for tensor in tensors if tensor.size]
            if sizes:  # the filter twice, as some kernels have it
                yield sum(sizes) + min(sizes), sum(sizes)
