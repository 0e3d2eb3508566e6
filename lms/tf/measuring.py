"""What the device's allocator says: limits, bytes in use, peaks, and ops' scratch.

Scratch is measured by running an op alone on arguments of its shapes: the allocator's
peak less what was there and what the op returned. Equal ops are measured once.

Known weakness: an op whose scratch depends on values is measured on ones.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import tensorflow as tf

from lms.graph import GraphView, Op, op_of
from lms.tf import compat
from lms.tf.tracing import TracedStep

__all__ = ["DeviceMemory", "measure_scratch", "with_scratch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """The allocator of one device.

    Args:
        device: Its short name, such as `GPU:0`.
    """

    device: str

    @property
    def current_bytes(self) -> int | None:
        """Bytes in use; None where the allocator keeps no statistics."""
        info = self._info()
        return None if info is None else info["current"]

    @property
    def peak_bytes(self) -> int | None:
        """The most bytes in use since `reset_peak`; None without statistics."""
        info = self._info()
        return None if info is None else info["peak"]

    def reset_peak(self) -> None:
        """Let the peak start again at the bytes in use."""
        if self._info() is not None:
            tf.config.experimental.reset_memory_stats(self.device)

    def _info(self) -> dict[str, int] | None:
        try:
            return tf.config.experimental.get_memory_info(self.device)
        except (ValueError, RuntimeError):
            return None


def measure_scratch(
    step: TracedStep, memory: DeviceMemory, *, min_bytes: int
) -> dict[str, int]:
    """Bytes that large ops need beside their inputs and outputs, by op name.

    Args:
        step: The traced step.
        memory: The allocator of the step's device.
        min_bytes: Only ops that make or read a tensor of this size are run.

    Returns:
        Scratch of the ops that were run; empty without allocator statistics.
    """
    if memory.current_bytes is None:
        return {}
    nodes = {node.name: node for node in step.nodes}
    seen: dict[bytes, int] = {}
    scratch: dict[str, int] = {}
    for op in step.graph.ops:
        if not _is_large(step.graph, op, min_bytes):
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
    from dataclasses import replace

    ops = (
        replace(op, scratch=scratch[op.name]) if op.name in scratch else op
        for op in graph.ops
    )
    return GraphView(ops=tuple(ops), results=graph.results)


def _is_large(graph: GraphView, op: Op, min_bytes: int) -> bool:
    sizes = [graph.tensors[name].size for name in op.inputs]
    sizes += [tensor.size for tensor in op.outputs]
    moves = op.fixed or op.persistent or op.alias is not None
    return not moves and max(sizes, default=0) >= min_bytes


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
        inputs = [tf.ones(spec.shape, spec.dtype) for _, spec, _ in self.arguments]
        most = 0
        for _ in range(2):
            before = memory.current_bytes or 0
            memory.reset_peak()
            with compat.planned_as_is():
                results = function.call_flat(*inputs)
            peak = memory.peak_bytes or 0
            made = sum(-(-t.dtype.size * t.shape.num_elements() // 256) * 256 for t in results)
            most = peak - before - made
            del results
        return max(0, most)


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
