"""How long ops and copies take: measured, or a roofline.

A roofline takes an op's time as the larger of its arithmetic over the device's rate and
its bytes over the rate of the device's memory (Williams, Waterman, Patterson:
"Roofline: an insightful visual performance model", CACM 52(4), 2009). Arithmetic is
counted for convolutions and matrix products; all else moves bytes.

Known weakness: a roofline is what hardware could do; kernels reach a part of it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lms.ir.graph import GraphView, Op
from lms.ir.recompute import original_name
from lms.machine.hardware import Hardware
from lms.units import Seconds

__all__ = ["Costs", "completed", "flops", "moved_bytes", "roofline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of each op on one device.

    Args:
        seconds: By op name; an op that is not named takes none.
        source: "measured" or "roofline", for reports.
    """

    seconds: Mapping[str, Seconds]
    source: str

    def of(self, name: str) -> Seconds:
        """Seconds of one op, or of its second run."""
        return self.seconds.get(original_name(name), 0.0)

    @property
    def total(self) -> Seconds:
        """Seconds of all ops one after the other."""
        return sum(self.seconds.values())


def completed(costs: Costs, graph: GraphView, hardware: Hardware) -> Costs:
    """The costs, with a roofline for ops that are new to them.

    Args:
        costs: Seconds of the step's ops.
        graph: The step with ops that a plan added.
        hardware: The device.
    """
    new = [op.name for op in graph.ops if original_name(op.name) not in costs.seconds]
    if not new:
        return costs
    added = roofline(graph, hardware).seconds
    known = {name: added[name] for name in new if name in added}
    return Costs(seconds={**costs.seconds, **known}, source=costs.source)


def roofline(graph: GraphView, hardware: Hardware) -> Costs:
    """Costs without running anything.

    Args:
        graph: The step.
        hardware: The device; its `flops` and `memory_bandwidth` are used.

    Example:
        >>> from lms.ir.graph import Tensor
        >>> from lms.machine.hardware import preset
        >>> a = Op(name="a", type="A", outputs=(Tensor(name="a:0", size=9 * 10**8),))
        >>> roofline(GraphView(ops=(a,)), preset("v100-pcie")).of("a")
        0.001
    """
    seconds: dict[str, Seconds] = {}
    for op in graph.ops:
        if op.alias is not None or op.persistent:
            continue
        seconds[op.name] = max(
            flops(graph, op) / hardware.flops,
            moved_bytes(graph, op) / hardware.memory_bandwidth,
        )
    return Costs(seconds=seconds, source="roofline")


def moved_bytes(graph: GraphView, op: Op) -> int:
    """Bytes that an op reads and writes in device memory, each tensor once."""
    read = sum(graph.tensors[name].size for name in dict.fromkeys(op.inputs))
    return read + sum(tensor.size for tensor in op.outputs)


def flops(graph: GraphView, op: Op) -> int:
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
        >>> flops(graph, conv) == 2 * (8 * 8 * 16) * (3 * 3 * 4)
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
