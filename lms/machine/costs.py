"""Seconds of ops: measured, or by a roofline.

A roofline takes an op's time as the larger of its arithmetic over the device's rate and
its bytes over the rate of the device's memory (Williams, Waterman, Patterson:
"Roofline: an insightful visual performance model", CACM 52(4), 2009). Arithmetic is
`Op.flops`, at the rate of the output's type; an op without flops only moves bytes.

Known weakness: a roofline is the hardware's limit; kernels reach a part of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from lms.ir.graph import GraphView, Op
from lms.ir.recompute import original_name
from lms.machine.hardware import Hardware
from lms.units import Seconds

__all__ = ["Costs", "completed", "moved_bytes", "roofline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of each op on one device.

    Args:
        seconds: By op name; an op that is missing takes none.
        source: "measured" or "roofline", for reports.
    """

    seconds: Mapping[str, Seconds]
    source: str

    def of(self, name: str) -> Seconds:
        """Return the seconds of an op or of its recomputed copy."""
        return self.seconds.get(original_name(name), 0.0)

    @property
    def total(self) -> Seconds:
        """Seconds of all ops one after the other."""
        return sum(self.seconds.values())


def completed(costs: Costs, graph: GraphView, hardware: Hardware) -> Costs:
    """Add roofline costs for ops that have no costs yet.

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
    """Estimate costs by a roofline, without running anything.

    Args:
        graph: The step.
        hardware: The device; its rates by type and its `memory_bandwidth` are used.

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
            op.flops / hardware.rate_of(op.outputs[0].dtype if op.outputs else ""),
            moved_bytes(graph, op) / hardware.memory_bandwidth,
        )
    return Costs(seconds=seconds, source="roofline")


def moved_bytes(graph: GraphView, op: Op) -> int:
    """Return the bytes that an op reads and writes, each tensor once."""
    read = sum(graph.tensors[name].size for name in dict.fromkeys(op.inputs))
    return read + sum(tensor.size for tensor in op.outputs)
