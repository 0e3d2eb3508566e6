"""The forward pass and the backward pass of a traced step.

TensorFlow names the scope of the ops that a `GradientTape` makes: these, and what
depends on them, are the backward pass. Only those with large outputs say so: of equal
constants and shapes in both passes Grappler keeps one, under either name.
"""

from dataclasses import dataclass

from lms.ir.graph import GraphView, op_of
from lms.ir.liveness import peak
from lms.machine.costs import Costs
from lms.planning.candidates import movable, smallest_worth_moving
from lms.units import Bytes, Seconds

__all__ = ["Passes", "passes"]

_TAPE = "gradient_tape"


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """What bounds a plan that swaps between the passes.

    Args:
        forward_seconds: Of the ops that need none of the tape's.
        backward_seconds: Of all others.
        crossing_bytes: Of tensors that the forward pass makes, the other reads, and a
            plan may move: all that there is to swap out.
    """

    forward_seconds: Seconds
    backward_seconds: Seconds
    crossing_bytes: Bytes


def passes(graph: GraphView, costs: Costs) -> Passes:
    """Split a step.

    Example:
        >>> from lms.ir.graph import Op, Tensor
        >>> made = Op(name="x", type="Conv", outputs=(Tensor(name="x:0", size=2**20),))
        >>> y = Tensor(name="gradient_tape/y:0", size=2**20)
        >>> read = Op(
        ...     name="gradient_tape/y", type="ConvGrad", inputs=("x:0",), outputs=(y,)
        ... )
        >>> costs = Costs(seconds={"x": 1.0, "gradient_tape/y": 2.0}, source="measured")
        >>> passes(GraphView(ops=(made, read)), costs)
        Passes(forward_seconds=1.0, backward_seconds=2.0, crossing_bytes=1048576)
    """
    min_bytes = smallest_worth_moving(peak(graph))
    backward: set[str] = set()
    for op in graph.ops:
        is_large = any(tensor.size >= min_bytes for tensor in op.outputs)
        sources = {op_of(name) for name in op.inputs}
        if (is_large and _TAPE in op.name) or sources & backward:
            backward.add(op.name)
    forward = [op.name for op in graph.ops if op.name not in backward]
    seconds = sum(costs.of(name) for name in forward)
    read = {graph.roots[name] for made in backward for name in _inputs(graph, made)}
    may_move = movable(graph, min_bytes=min_bytes)
    return Passes(
        forward_seconds=seconds,
        backward_seconds=costs.total - seconds,
        crossing_bytes=sum(
            graph.tensors[name].size
            for name in read & may_move
            if op_of(name) not in backward
        ),
    )


def _inputs(graph: GraphView, name: str) -> tuple[str, ...]:
    return graph.by_name[name].inputs
