"""Arithmetic of a step's ops: of convolutions and matrix products, by their shapes.

All other ops are as fast as their bytes are moved, so theirs counts as none.
"""

import math
from dataclasses import replace

from lms.ir.graph import GraphView, Op

__all__ = ["flops_of", "with_flops"]


def with_flops(graph: GraphView) -> GraphView:
    """The graph with `Op.flops` filled in."""
    ops = (replace(op, flops=flops_of(graph, op)) for op in graph.ops)
    return GraphView(ops=tuple(ops), results=graph.results)


def flops_of(graph: GraphView, op: Op) -> int:
    """Floating-point operations of a convolution or matrix product; 0 for others.

    A convolution makes two for each element of its output and of the kernel above it,
    and its two gradients as many each.

    Example:
        >>> from lms.ir.graph import Tensor
        >>> def made(name, *shape):
        ...     tensor = Tensor(name=f"{name}:0", size=4, shape=shape)
        ...     return Op(name=name, type="Const", outputs=(tensor,))
        >>> out = (Tensor(name="y:0", size=4, shape=(1, 8, 8, 16)),)
        >>> conv = Op(name="y", type="Conv2D", inputs=("x:0", "w:0"), outputs=out)
        >>> graph = GraphView(ops=(made("x", 1, 8, 8, 4), made("w", 3, 3, 4, 16), conv))
        >>> flops_of(graph, conv) == 2 * (8 * 8 * 16) * (3 * 3 * 4)
        True
    """
    made = op.outputs[0].shape if op.outputs else ()
    first, second, third = _input_shapes(graph, op)
    kind = op.type.removeprefix("_Fused")
    if kind.startswith(("Conv2DBackpropFilter", "Conv3DBackpropFilter")):
        return _convolution(made, third)
    if kind.startswith(("Conv2DBackpropInput", "Conv3DBackpropInput")):
        return _convolution(second, third)
    if kind.startswith("DepthwiseConv2dNative"):
        return 2 * math.prod(made) * math.prod(second[:2])
    if kind.startswith(("Conv2D", "Conv3D")):
        return _convolution(second, made)
    if "MatMul" in kind and first and made:
        return 2 * math.prod(made) * _contracted(first, made)
    return 0


def _input_shapes(graph: GraphView, op: Op) -> list[tuple[int, ...]]:
    """Shapes of the first three inputs; those that are not there have no axes."""
    shapes = [graph.tensors[name].shape for name in op.inputs[:3]]
    return shapes + [()] * (3 - len(shapes))


def _convolution(kernel: tuple[int, ...], made: tuple[int, ...]) -> int:
    """Kernel (*window, input channels, output channels) over `made`, channels last.

    The channels' axis of `made` is counted within the kernel, so that channels first,
    with as many elements, come to the same.
    """
    return 2 * math.prod(kernel[:-1]) * math.prod(made)


def _contracted(left: tuple[int, ...], made: tuple[int, ...]) -> int:
    """Length of the axis that a matrix product sums over, either way transposed."""
    rows = made[-2] if len(made) > 1 else 1
    return math.prod(left[-2:]) // max(1, rows)
