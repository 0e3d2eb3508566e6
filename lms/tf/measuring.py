"""Scratch: bytes that an op needs only while it runs.

It is measured by running the op alone on arguments of its shapes: the allocator's peak
less what is in use afterwards. Equal ops are measured once.

Known weakness: an op whose scratch depends on values is measured on ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from lms.graph import GraphView, Op, op_of
from lms.tf import compat
from lms.tf.devices import DeviceMemory
from lms.tf.specialising import TracedStep
from lms.units import KIB

__all__ = ["measure_scratch", "with_scratch"]

# Only ops that make or read a tensor of this size are run.
_LARGE = 64 * KIB


def measure_scratch(step: TracedStep, memory: DeviceMemory) -> dict[str, int]:
    """Bytes that large ops need beside their inputs and outputs, by op name.

    Args:
        step: The traced step.
        memory: The allocator of the step's device.

    Returns:
        Scratch of the ops that were run; empty without allocator statistics.
    """
    if memory.current_bytes is None:
        return {}
    nodes = {node.name: node for node in step.nodes}
    seen: dict[bytes, int] = {}
    scratch: dict[str, int] = {}
    for op in step.graph.ops:
        if not _is_large(step.graph, op):
            continue
        bench = _Bench.of(step.graph, nodes, op)
        if bench is None:
            continue
        if bench.key not in seen:
            seen[bench.key] = bench.run(memory)
        scratch[op.name] = seen[bench.key]
    return scratch


def with_scratch(graph: GraphView, scratch: Mapping[str, int]) -> GraphView:
    """The graph with measured scratch written into its ops."""
    ops = (
        replace(op, scratch=scratch[op.name]) if op.name in scratch else op
        for op in graph.ops
    )
    return GraphView(ops=tuple(ops), results=graph.results)


def _is_large(graph: GraphView, op: Op) -> bool:
    """Whether an op is worth a run: element-wise and alias ops need no scratch."""
    if op.fixed or op.persistent or op.inplace or op.alias is not None:
        return False
    if "PyFunc" in op.type:  # the user's own function must not see made-up values
        return False
    sizes = [graph.tensors[name].size for name in op.inputs]
    sizes += [tensor.size for tensor in op.outputs]
    return max(sizes, default=0) >= _LARGE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    """One op cut out of its graph: float inputs become arguments.

    Small whole-number inputs (shapes, axes) keep the ops that make them, because what
    the op does depends on their values; a `Shape` becomes a constant.
    """

    nodes: tuple[compat.NodeDef, ...]
    arguments: tuple[compat.Input, ...]
    outputs: tuple[str, ...]
    key: bytes

    @classmethod
    def of(
        cls, graph: GraphView, nodes: Mapping[str, compat.NodeDef], op: Op
    ) -> "_Bench | None":
        kept: dict[str, compat.NodeDef] = {}
        arguments: dict[str, compat.Input] = {}
        pending = [op.name]
        while pending:
            name = pending.pop()
            if name in kept:
                continue
            kept[name] = _bare(nodes[name])
            for i, source in enumerate(kept[name].input):
                full = source if ":" in source else f"{source}:0"
                tensor = graph.tensors[full]
                if tensor.dtype in ("resource", "variant", "string"):
                    return None
                producer = graph.by_name[op_of(full)]
                if producer.type in ("Shape", "ShapeN"):
                    constant = _shape_constant(graph, producer, full)
                    kept[constant.name] = constant
                    kept[name].input[i] = constant.name
                elif tensor.dtype in ("int32", "int64") and tensor.size <= 1024:
                    if len(kept) > 64 or producer.name not in nodes:
                        return None
                    pending.append(producer.name)
                else:
                    argument = f"argument_{len(arguments)}"
                    if full in arguments:
                        argument = arguments[full][0]
                    spec = tf.TensorSpec(tensor.shape, tf.as_dtype(tensor.dtype))
                    arguments[full] = (argument, spec, None)
                    kept[name].input[i] = argument
        key = b"|".join(
            [
                _unnamed(kept[op.name]),
                *(repr(spec).encode() for _, spec, _ in arguments.values()),
                *(_unnamed(node) for node in list(kept.values())[1:]),
            ]
        )
        return cls(
            nodes=tuple(kept.values()),
            arguments=tuple(arguments.values()),
            outputs=tuple(tensor.name for tensor in op.outputs),
            key=key,
        )

    def run(self, memory: DeviceMemory) -> int:
        """Scratch bytes of the second run; the first one sets the op up."""
        graph_def = compat.graph_def(self.nodes, None)
        function = compat.build_function(graph_def, self.arguments, self.outputs)
        try:
            return self._measured(function, memory)
        except tf.errors.OpError:
            return 0  # no room to run it alone, or not on these values

    def _measured(self, function: Any, memory: DeviceMemory) -> int:
        inputs = [tf.ones(spec.shape, spec.dtype) for _, spec, _ in self.arguments]
        scratch = 0
        for _ in range(2):
            memory.reset_peak()
            with compat.planned_as_is():
                results = function.call_flat(*inputs)
            scratch = (memory.peak_bytes or 0) - (memory.current_bytes or 0)
            del results
        return max(0, scratch)


def _bare(node: compat.NodeDef) -> compat.NodeDef:
    copy = compat.NodeDef()
    copy.CopyFrom(node)
    del copy.input[:]
    copy.input.extend(name for name in node.input if not name.startswith("^"))
    return copy


def _unnamed(node: compat.NodeDef) -> bytes:
    copy = compat.NodeDef()
    copy.CopyFrom(node)
    copy.name = ""
    del copy.input[:]
    return copy.SerializeToString(deterministic=True)


def _shape_constant(graph: GraphView, producer: Op, full: str) -> compat.NodeDef:
    index = int(full.rpartition(":")[2])
    shape = graph.tensors[producer.inputs[index]].shape
    name = full.replace(":", "_") + "_value"
    made = graph.tensors[full]
    return compat.constant(name, shape, tf.as_dtype(made.dtype))
