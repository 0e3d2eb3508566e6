"""One op cut out of its graph, to be run alone: for its scratch, time or bits.

Inputs become arguments of ones. Small whole-number inputs (shapes, axes) keep the ops
that make them, because their values matter; a `Shape` becomes a constant. Functions
take and return int32 in host memory (`MTypeFromDType` in TensorFlow's memory_types.cc):
int32 is passed as float32 of the same bits, or copies would be timed.

Known weakness: an op whose scratch or time depends on values is measured on ones.
"""

import gc
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tensorflow as tf

from lms.ir.graph import GraphView, Op, Tensor, op_of
from lms.machine.hardware import moved_bytes
from lms.tf import compat
from lms.tf.capture.ops import CONSTANT, RESERVED, RESERVES
from lms.tf.lowering import TracedStep
from lms.tf.nodes import OPAQUE, bytes_of, full_name, index_of
from lms.units import Bytes

__all__ = ["COPIED", "LoneOp", "built", "forget_functions", "lone_ops"]

# Types of constants that may be shapes.
_SIZES = (tf.int32.as_datatype_enum, tf.int64.as_datatype_enum)

# Index of the input of cuDNN's layers that holds the lengths of sequences.
_LENGTHS = 4

COPIED = "_copied"  # ends the names of copies of arguments

# Functions of one op, by its key. To build a function takes longer than its runs for
# scratch and for time.
_functions: dict[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoneOp:
    """An op with the nodes and arguments that it needs to run alone.

    Args:
        op: The op in its graph.
        moved: Bytes that it reads and makes.
        nodes: Its node, and the makers of its small inputs.
        arguments: Its other inputs.
        outputs: Names of the tensors to return.
        key: Digest, equal for equal ops.
    """

    op: Op
    moved: int
    nodes: tuple[compat.NodeDef, ...]
    arguments: tuple[compat.Input, ...]
    outputs: tuple[str, ...]
    key: str

    @classmethod
    def of(
        cls, graph: GraphView, nodes: Mapping[str, compat.NodeDef], op: Op
    ) -> "LoneOp | None":
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
                full = full_name(source)
                tensor = graph.tensors[full]
                if tensor.dtype in OPAQUE:
                    return None
                producer = graph.by_name[op_of(full)]
                if name == op.name and op.type in RESERVES and i == _LENGTHS:
                    constant = _full_lengths(kept[name], graph.tensors[op.inputs[0]])
                    kept[constant.name] = constant
                    kept[name].input[i] = constant.name
                elif producer.type in ("Shape", "ShapeN"):
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
                    passed = _pass(kept[name], i, tensor, arguments)
                    kept |= {node.name: node for node in passed}
        returned = [_return(kept[op.name], tensor) for tensor in op.outputs]
        kept |= {node.name: node for _, made in returned for node in made}
        parts = [repr(spec).encode() for _, spec, _ in arguments.values()]
        parts += map(_unnamed, kept.values())
        return cls(
            op=op,
            moved=moved_bytes(graph, op),
            nodes=tuple(kept.values()),
            arguments=tuple(arguments.values()),
            outputs=tuple(name for name, _ in returned),
            key=hashlib.sha256(b"|".join(parts)).hexdigest(),
        )

    @property
    def tried(self) -> Bytes:
        """Bytes that a kernel takes that TensorFlow only tries, once for each shape.

        It tries to reduce the gradient of a bias in a copy of the op's input where
        channels come first (`ComputeWithReduceSum` in bias_op.cc).
        """
        is_bias = self.op.type == "BiasAddGrad" and _is_channels_first(self.nodes[0])
        return self.moved - self.op.outputs[0].size if is_bias else 0

    def first_rows(self, part: float) -> "tuple[LoneOp, float] | None":
        """The op on the first rows of its largest input but filters; may fail when run.

        The first rows of too few images or volumes are cut off their first axis of
        space. A cuDNN layer runs on the first time steps of its input.

        Args:
            part: Largest share of the rows to keep.

        Returns:
            The op, and the share that was kept: a power of two of rows, so that few
            shares are tried. None if no axis has rows, or not one row may be kept.
        """
        node, *others = self.nodes
        layer = self.op.type in RESERVES
        whole = op_of(node.input[1]) if "Conv" in node.op else ""
        shapes = self.shapes
        inputs = (sizes for name, sizes in shapes.items() if name != whole)
        largest = max(inputs, key=math.prod, default=[])
        channels = 1 if _is_channels_first(node) else -1
        long = (i for i, size in enumerate(largest) if size > 1 and size * part >= 1)
        axis = next((i for i in long if i != channels), None)
        if layer:
            largest = shapes[node.input[0]]
            axis = 0 if compat.attribute(node, "time_major").b else 1
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
        for i, other in enumerate(others):
            value = compat.attribute(other, "value").tensor
            if other.op not in (*CONSTANT, "HostConst") or value.dtype not in _SIZES:
                continue
            sizes = tf.make_ndarray(value).tolist()
            if value.tensor_shape.dim and len(sizes) == len(largest):  # a shape
                sizes, dtype = cut(other.name, sizes), tf.as_dtype(value.dtype)
                others[i] = compat.constant(other.name, sizes, dtype, other.device)
        if layer and len(node.input) > _LENGTHS:
            lengths = [kept] * largest[1 - axis]
            name = node.input[_LENGTHS]
            others = [other for other in others if other.name != name]
            others.append(compat.constant(name, lengths, tf.int32))
        first = replace(
            self,
            moved=math.ceil(self.moved * kept / rows),
            nodes=(node, *others),
            arguments=arguments,
            key=f"{self.key} {axis} {kept}",
        )
        return first, kept / rows

    def on_copies(self) -> "LoneOp":
        """The op on copies of the arguments that may become its output's buffer."""
        size = self.op.reusing.size if self.op.reusing else 0
        nodes = [compat.copied(node) for node in self.nodes]
        device = nodes[0].device
        for name, spec, _ in self.arguments:
            if bytes_of(spec) != size:
                continue
            copy, dtype = f"{name}{COPIED}", spec.dtype
            made = compat.made_node(copy, "DeepCopy", [name], device, T=dtype)
            for node in nodes:
                node.input[:] = [copy if one == name else one for one in node.input]
            nodes.append(made)
        return replace(self, nodes=tuple(nodes), key=f"{self.key} on copies")

    @property
    def shapes(self) -> dict[str, list[int]]:
        """Sizes of the arguments."""
        found: Any = {name: spec.shape.as_list() for name, spec, _ in self.arguments}
        return found

    @property
    def is_set_up(self) -> bool:
        """Tell whether the op's function was built, and so ran, before."""
        return self.key in _functions

    def call(self) -> Callable[[], Any]:
        """A callable that runs the op on ones."""
        if self.key not in _functions:
            _functions[self.key] = self.function()
        nodes = {node.name: node.device for node in self.nodes}
        with tf.device(nodes[self.op.name]):
            inputs = [
                _ones_of_int32(spec.shape)
                if f"{name}_int32" in nodes
                else tf.ones(spec.shape, spec.dtype)
                for name, spec, _ in self.arguments
            ]
        return partial(_functions[self.key], *inputs)

    def function(self) -> Callable[..., Any]:
        """The op as a function of its arguments."""
        return built(self.nodes, self.arguments, self.outputs)


def built(
    nodes: Iterable[compat.NodeDef],
    arguments: Sequence[compat.Input],
    outputs: Sequence[str],
) -> Callable[..., Any]:
    """A function of tensors that runs nodes as they are (`compat.build_function`)."""
    function = compat.build_function(compat.graph_def(nodes, None), arguments, outputs)

    def call(*tensors: Any) -> Any:
        with compat.planned_as_is():  # Grappler would remove or merge ops
            return function.call_flat(*tensors)

    return call


def lone_ops(step: TracedStep, ops: Iterable[Op]) -> list[LoneOp]:
    """The ops of a step that can run alone."""
    nodes = {node.name: node for node in step.nodes}
    found = (LoneOp.of(step.graph, nodes, op) for op in ops)
    return [op for op in found if op is not None]


def forget_functions() -> None:
    """Free the functions that run ops alone, and the memory of their constants, now.

    Freed later, the constants would fragment the memory that is planned.
    """
    if _functions:
        _functions.clear()
        gc.collect()


def _has_other_values(producer: Op, tensor: str) -> bool:
    """Tell whether a tensor must not be made up, or its size is not known."""
    if producer.type in RESERVES:
        return index_of(tensor) >= RESERVED
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
    shape = graph.tensors[producer.inputs[index_of(full)]].shape
    name = full.replace(":", "_") + "_value"
    made = graph.tensors[full]
    return compat.constant(name, shape, tf.as_dtype(made.dtype))


def _full_lengths(node: compat.NodeDef, read: Tensor) -> compat.NodeDef:
    """Make a cuDNN layer's lengths of sequences, all as long as its input."""
    is_major = compat.attribute(node, "time_major").b
    steps, batch = read.shape[:2] if is_major else read.shape[1::-1]
    return compat.constant(f"{node.name}_lengths", [steps] * batch, tf.int32)


def _is_channels_first(node: compat.NodeDef) -> bool:
    """Tell whether channels are the second axis of an op's largest input."""
    return "data_format" in node.attr and node.attr["data_format"].s.startswith(b"NC")
