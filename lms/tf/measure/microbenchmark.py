"""One op cut out of its graph, to be run alone: for its scratch, and for its time.

Inputs become arguments of ones. Small whole-number inputs (shapes, axes) keep the ops
that make them, because their values matter; a `Shape` becomes a constant. Functions
take and return int32 in host memory (`MTypeFromDType` in TensorFlow's memory_types.cc):
int32 is passed as float32 of the same bits, or copies would be timed.

Known weakness: an op whose scratch or time depends on values is measured on ones.
"""

import gc
import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from lms.ir.graph import GraphView, Op, Tensor, op_of
from lms.tf import compat
from lms.tf.capture.op_facts import CONSTANT, RESERVED, RESERVES
from lms.tf.measure.devices import DeviceMemory, sync_devices
from lms.units import Seconds

__all__ = ["Bench", "forget_functions", "idle_seconds", "seconds_of", "sizes_of"]

# An op is timed in at most 9 runs, fewer once these take 0.02 seconds.
_RUNS, _ENOUGH = 9, 0.02

# Further runs of an op whose scratch depends on the number of free threads.
_AGAIN = 4

# A call of at least 0.02 seconds takes as long without a call just before.
_SLOW = 0.02

# Types of constants that may be shapes.
_SIZES = (tf.int32.as_datatype_enum, tf.int64.as_datatype_enum)

# Index of the input of cuDNN's layers that holds the lengths of sequences.
_LENGTHS = 4

# Functions of one op, by bench key, and the keys of those that ran. To build a function
# takes longer than its runs for scratch and for time.
_functions: dict[str, Any] = {}
_called: set[str] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """An op with the nodes and arguments that it needs to run alone.

    Args:
        nodes: The op, and the makers of its small inputs.
        arguments: The op's other inputs.
        outputs: Names of the tensors to return.
        key: Digest, equal for equal ops.
    """

    nodes: tuple[compat.NodeDef, ...]
    arguments: tuple[compat.Input, ...]
    outputs: tuple[str, ...]
    key: str

    @classmethod
    def of(
        cls, graph: GraphView, nodes: Mapping[str, compat.NodeDef], op: Op
    ) -> "Bench | None":
        """Cut an op out of its graph; None if one of its inputs cannot be made up.

        Resources, variants, text and dynamic shapes cannot.
        """
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
                elif _has_other_values(producer, full):
                    return None
                else:
                    passed = _pass(kept[name], i, graph.tensors[full], arguments)
                    kept |= {node.name: node for node in passed}
        returned = [_return(kept[op.name], tensor) for tensor in op.outputs]
        kept |= {node.name: node for _, made in returned for node in made}
        parts = (
            _unnamed(kept[op.name]),
            *(repr(spec).encode() for _, spec, _ in arguments.values()),
            *(_unnamed(node) for node in list(kept.values())[1:]),
        )
        return cls(
            nodes=tuple(kept.values()),
            arguments=tuple(arguments.values()),
            outputs=tuple(name for name, _ in returned),
            key=hashlib.sha256(b"|".join(parts)).hexdigest(),
        )

    def of_first_steps(self, part: float) -> "tuple[Bench, float]":
        """The bench of a cuDNN layer on fewer time steps, at least one.

        Args:
            part: Share of the time steps to keep.

        Returns:
            The bench, and the share that was kept.
        """
        node, *others = self.nodes
        layer = compat.copied(node)
        read = layer.input[0]
        axis = 0 if compat.attribute(node, "time_major").b else 1
        sizes = sizes_of({name: spec for name, spec, _ in self.arguments}[read])
        steps = max(1, int(sizes[axis] * part))
        lengths = compat.constant("lengths", [steps] * sizes[1 - axis], tf.int32)
        if len(layer.input) > _LENGTHS:
            layer.input[_LENGTHS] = lengths.name
        shorter = [*sizes[:axis], steps, *sizes[axis + 1 :]]
        arguments = tuple(
            (name, tf.TensorSpec(shorter, spec.dtype) if name == read else spec, handle)
            for name, spec, handle in self.arguments
        )
        bench = replace(
            self,
            nodes=(layer, lengths, *others),
            arguments=arguments,
            key=f"{self.key} {steps}",
        )
        return bench, steps / sizes[axis]

    def of_first_rows(self, part: float) -> "tuple[Bench, float] | None":
        """The op on the first rows of its largest input but filters; may fail when run.

        Args:
            part: Largest share of the rows to keep.

        Returns:
            The bench, and the share that was kept: a power of two of rows, so that few
            shares are tried. None if no axis has rows, or not one row may be kept.
        """
        op = self.nodes[0]
        whole = op_of(op.input[1]) if "Conv" in op.op else ""
        shapes = {name: sizes_of(spec) for name, spec, _ in self.arguments}
        inputs = (sizes for name, sizes in shapes.items() if name != whole)
        largest = max(inputs, key=math.prod, default=[])
        axis = next((i for i, size in enumerate(largest) if size > 1), None)
        rows = 1 if axis is None else largest[axis]
        if axis is None or rows * part < 1:
            return None
        kept = 1 << (int(rows * min(part, 1)).bit_length() - 1)

        def cut(name: str, sizes: Sequence[int]) -> list[int]:
            if name == whole or sizes[axis : axis + 1] != [rows]:
                return [*sizes]
            return [*sizes[:axis], kept, *sizes[axis + 1 :]]

        arguments = tuple(
            (name, tf.TensorSpec(cut(name, shapes[name]), spec.dtype), handle)
            for name, spec, handle in self.arguments
        )
        nodes = list(self.nodes)
        for i, node in enumerate(nodes):
            value = compat.attribute(node, "value").tensor
            if node.op not in (*CONSTANT, "HostConst") or value.dtype not in _SIZES:
                continue
            sizes = tf.make_ndarray(value).tolist()
            if value.tensor_shape.dim and len(sizes) == len(largest):  # a shape
                sizes = cut(node.name, sizes)
                dtype = tf.as_dtype(value.dtype)
                nodes[i] = compat.constant(node.name, sizes, dtype, node.device)
        key = f"{self.key} {axis} {kept}"
        return replace(self, nodes=(*nodes,), arguments=arguments, key=key), kept / rows

    def scratch(self, memory: DeviceMemory, moved: int) -> int | None:
        """Scratch bytes of the second run; None if the op cannot run alone.

        An op with more scratch than `moved` packs its inputs for each thread that
        happens to be free: the most of a few runs counts.

        Args:
            memory: The allocator of the op's device.
            moved: Bytes that the op reads and makes.
        """
        try:
            call = self.call()
            _peak_of(call, memory)  # the first run sets the op up
            found = _peak_of(call, memory)
            if found > moved:
                found = max(found, *(_peak_of(call, memory) for _ in range(_AGAIN)))
        except (tf.errors.OpError, ValueError):
            return None  # out of memory, or cannot run on ones
        return found

    def output_bytes(self) -> list[int] | None:
        """Bytes of each output; None if the op cannot run alone."""
        try:
            return [
                tensor.shape.num_elements() * tensor.dtype.size
                for tensor in self.call()()
            ]
        except tf.errors.OpError:
            return None

    def seconds(self) -> Seconds | None:
        """Seconds of a run; None if the op cannot run alone."""
        try:
            call = self.call()
            return seconds_of(call, set_up=self.key in _called)
        except tf.errors.OpError:
            return None

    def call(self) -> Callable[[], Any]:
        """A callable that runs the op alone, on ones."""
        if self.key not in _functions:
            graph_def = compat.graph_def(self.nodes, None)
            _functions[self.key] = compat.build_function(
                graph_def, self.arguments, self.outputs
            )
        function = _functions[self.key]
        nodes = {node.name for node in self.nodes}
        inputs = [
            _ones_of_int32(spec.shape)
            if f"{name}_int32" in nodes
            else tf.ones(spec.shape, spec.dtype)
            for name, spec, _ in self.arguments
        ]

        def call() -> Any:
            with compat.planned_as_is():
                results = function.call_flat(*inputs)
            _called.add(self.key)
            return results

        return call


def sizes_of(spec: tf.TensorSpec) -> list[int]:
    """The sizes of a tensor whose shape is known."""
    return [int(size or 0) for size in spec.shape.as_list()]


def _peak_of(call: Callable[[], Any], memory: DeviceMemory) -> int:
    """Bytes that a call takes at its peak beside its results."""
    memory.reset_peak()
    results = call()
    found = (memory.peak_bytes or 0) - (memory.current_bytes or 0)
    del results
    return max(0, found)


def forget_functions() -> None:
    """Free the functions that run ops alone, and the memory of their constants, now.

    Freed later, the constants would fragment the memory that is planned.
    """
    if not _functions:
        return
    _functions.clear()
    _called.clear()
    gc.collect()


def idle_seconds(arguments: int) -> Seconds:
    """Seconds of a call that returns one of its arguments.

    Args:
        arguments: Number of scalar arguments, at least one.
    """
    specs = [(f"argument_{i}", tf.TensorSpec([]), None) for i in range(arguments)]
    node = compat.made_node("passed", "Identity", ["argument_0"], T=tf.float32)
    bench = Bench(
        nodes=(node,),
        arguments=tuple(specs),
        outputs=("passed:0",),
        key=f"idle {arguments}",
    )
    return seconds_of(bench.call())


def seconds_of(call: Callable[[], Any], *, set_up: bool = False) -> Seconds:
    """Seconds of a call after the first one, until the devices are idle.

    The fastest of a few calls: what disturbs a call makes no device slower.

    Args:
        call: The call to time.
        set_up: Whether `call` ran before. A slow first call counts only then; else the
            first call warms up.
    """
    (first,) = _timed(call, runs=1)
    if set_up and first >= _SLOW:
        return first
    return min(_timed(call, runs=_RUNS))


def _timed(call: Callable[[], Any], *, runs: int) -> list[Seconds]:
    taken: list[Seconds] = []
    while len(taken) < runs and sum(taken) < _ENOUGH:
        sync_devices()
        begun = time.perf_counter()
        results = call()
        sync_devices()
        taken.append(time.perf_counter() - begun)
        del results
    return taken


def _has_other_values(producer: Op, tensor: str) -> bool:
    """Tell whether a tensor must not be made up, or its size is not known."""
    if producer.type in RESERVES:
        return int(tensor.rpartition(":")[2]) >= RESERVED
    return producer.varies or producer.from_host


def _bare(node: compat.NodeDef) -> compat.NodeDef:
    """The op without control inputs and names of jobs: all processes share a key."""
    copy = compat.copied(node, (n for n in node.input if not n.startswith("^")))
    copy.device = "".join(copy.device.rpartition("/device:")[1:])
    return copy


def _pass(
    node: compat.NodeDef, i: int, tensor: Tensor, arguments: dict[str, compat.Input]
) -> list[compat.NodeDef]:
    """Make an input an argument; returns the nodes that this adds."""
    dtype = _passed_as(tensor.dtype)
    spec = tf.TensorSpec(tensor.shape, dtype)
    new: compat.Input = f"argument_{len(arguments)}", spec, None
    node.input[i], _, _ = arguments.setdefault(tensor.name, new)
    if dtype.name == tensor.dtype:
        return []
    read = _bitcast(node.input[i], dtype, tf.int32, node.device)
    node.input[i] = read.name
    return [read]


def _return(node: compat.NodeDef, tensor: Tensor) -> tuple[str, list[compat.NodeDef]]:
    """Returns (name of the tensor to return for an output, nodes that this adds)."""
    dtype = _passed_as(tensor.dtype)
    if dtype.name == tensor.dtype:
        return tensor.name, []
    made = _bitcast(tensor.name, tf.int32, dtype, node.device)
    return f"{made.name}:0", [made]


def _passed_as(dtype: str) -> tf.DType:
    return tf.float32 if dtype == "int32" else tf.as_dtype(dtype)


def _bitcast(
    source: str, dtype: tf.DType, wanted: tf.DType, device: str
) -> compat.NodeDef:
    """Make a node `SOURCE_TYPE` that yields a tensor's bits as another type."""
    name = f"{source.replace(':', '_')}_{wanted.name}"
    return compat.made_node(name, "Bitcast", [source], device, T=dtype, type=wanted)


def _ones_of_int32(shape: tf.TensorShape) -> tf.Tensor:
    """Ones of int32 as float32 of the same bits."""
    with tf.device("CPU:0"):
        bits = tf.bitcast(tf.ones(shape, tf.int32), tf.float32)
    return tf.identity(bits)


def _unnamed(node: compat.NodeDef) -> bytes:
    copy = compat.copied(node, ())
    copy.name = ""
    return copy.SerializeToString(deterministic=True)


def _shape_constant(graph: GraphView, producer: Op, full: str) -> compat.NodeDef:
    index = int(full.rpartition(":")[2])
    shape = graph.tensors[producer.inputs[index]].shape
    name = full.replace(":", "_") + "_value"
    made = graph.tensors[full]
    return compat.constant(name, shape, tf.as_dtype(made.dtype))
