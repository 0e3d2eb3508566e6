"""One op cut out of its graph, to be run alone: for its scratch, and for its time.

Inputs become arguments of ones. Small whole-number inputs (shapes, axes) keep the ops
that make them, because what the op does depends on their values; a `Shape` becomes a
constant. Functions take and return int32 in the host's memory (`MTypeFromDType` in
TensorFlow's memory_types.cc): what an op reads or makes of it is passed as float32 of
the same bits, or its copies would be timed.

Known weakness: an op whose scratch or time depends on values is measured on ones.
"""

import gc
import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import tensorflow as tf

from lms.ir.graph import GraphView, Op, Tensor, op_of
from lms.tf import compat
from lms.tf.capture.ops import CONSTANT, RESERVED, RESERVES
from lms.tf.measure.devices import DeviceMemory, sync_devices
from lms.units import Seconds

__all__ = ["Bench", "forget_functions", "idle_seconds", "seconds_of", "sizes_of"]

# Runs of one op: fewer when it is slow.
_RUNS, _ENOUGH = 9, 0.02

# So often an op is run again whose scratch depends on which threads are free.
_AGAIN = 4

# A call that takes so many seconds is as long without another one just before it.
_SLOW = 0.02

# Types of constants that may be shapes.
_SIZES = (tf.int32.as_datatype_enum, tf.int64.as_datatype_enum)

# The input of cuDNN's layers that says how long sequences are.
_LENGTHS = 4

# Functions of one op, by the benches' keys: each is run for its scratch, for its time,
# and perhaps once more; to build it takes longer than that.
_functions: dict[str, Any] = {}
_called: set[str] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """An op and what it needs to run.

    Args:
        nodes: The op, and the makers of its small inputs.
        arguments: Its other inputs.
        outputs: Names of the tensors it makes.
        key: The same for ops that do the same.
    """

    nodes: tuple[compat.NodeDef, ...]
    arguments: tuple[compat.Input, ...]
    outputs: tuple[str, ...]
    key: str

    @classmethod
    def of(
        cls, graph: GraphView, nodes: Mapping[str, compat.NodeDef], op: Op
    ) -> "Bench | None":
        """Cut an op out; None if it reads what cannot be made up.

        Such are resources, and what is as large as values say.
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
        """The same of a layer of cuDNN's with fewer steps, at least one.

        Args:
            part: Steps to keep, over all that there are.

        Returns:
            The bench, and the part that was kept.
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
        """The op on a part of its largest input, filters aside; it may fail when run.

        Args:
            part: Rows to keep at most, over all that there are.

        Returns:
            The bench, and the part that was kept, of a power of two of rows so that few
            parts are tried; None if there is no such axis, or not one row may be kept.
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
        """Scratch bytes of the second run; None if it cannot be run alone.

        What takes more than it reads and makes packs its inputs for each thread, as
        many as happen to be free: it is the most of a few runs.

        Args:
            memory: The allocator of the op's device.
            moved: Bytes that it reads and makes.
        """
        try:
            call = self.call()
            _peak_of(call, memory)  # the first run sets the op up
            found = _peak_of(call, memory)
            if found > moved:
                found = max(found, *(_peak_of(call, memory) for _ in range(_AGAIN)))
        except (tf.errors.OpError, ValueError):
            return None  # no room to run it alone, or not on these values
        return found

    def output_bytes(self) -> list[int] | None:
        """Bytes of what it makes; None if it cannot be run alone."""
        try:
            return [
                tensor.shape.num_elements() * tensor.dtype.size
                for tensor in self.call()()
            ]
        except tf.errors.OpError:
            return None

    def seconds(self) -> Seconds | None:
        """Seconds of a run; None if it cannot be run alone."""
        try:
            call = self.call()
            return seconds_of(call, set_up=self.key in _called)
        except tf.errors.OpError:
            return None

    def call(self) -> Callable[[], Any]:
        """A call of a function of the op alone."""
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
    """Let go of what was built to run ops alone, and of the memory of its constants.

    At once: freed at some later time, it would leave holes in the middle of a plan.
    """
    if not _functions:
        return
    _functions.clear()
    _called.clear()
    gc.collect()


def idle_seconds(arguments: int) -> Seconds:
    """Seconds of a call that passes one of its arguments on.

    Args:
        arguments: How many scalars it takes, at least one.
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
    """Seconds of a call after the first one, what it started included.

    The median of a few calls: what disturbs a call disturbs steps as often.

    Args:
        call: What to time.
        set_up: Whether it was called before. Then the first call counts if it is slow;
            else it is made to warm up, and a slow call takes twice as long to time.
    """
    (first,) = _timed(call, runs=1)
    if set_up and first >= _SLOW:
        return first
    return median(_timed(call, runs=_RUNS))


def _timed(call: Callable[[], Any], *, runs: int) -> list[Seconds]:
    """Seconds of each of a few calls."""
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
    """The op without what it waits for, for any process: tasks have other names."""
    copy = compat.copied(node, (n for n in node.input if not n.startswith("^")))
    copy.device = "".join(copy.device.rpartition("/device:")[1:])
    return copy


def _pass(
    node: compat.NodeDef, i: int, tensor: Tensor, arguments: dict[str, compat.Input]
) -> list[compat.NodeDef]:
    """Make an input an argument; the nodes that this takes."""
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
    """The name of what is returned for an output, and the nodes that this takes."""
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
    """The same bits as another type: `SOURCE_TYPE`."""
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
