"""Split ops that are too large for a budget into parts.

    q, k ──> scores ──> softmax ──> product ──> y

    q, k ─┬> scores 1 ──> softmax 1 ──> product 1 ─┬> y
          └> scores 2 ──> softmax 2 ──> product 2 ─┘

An op needs its inputs and outputs at once. Where they exceed the budget, a region of
ops around the op is split along one axis: each op becomes several parts. Tensors inside
the region exist in parts only, which a plan moves or recomputes one by one. Inputs of
the region are sliced, and outputs that other ops read are concatenated.

A region grows from the largest op over all large tensors, as far as the rules of
`split_rules` follow the axis. Small tensors end the region: they are cheap to
concatenate. The axis and the number of parts are chosen that leave the least need. Once
an op cannot be split, smaller ops stay whole too, as the step's need stays. Splits that
may change bits, or were tried and did not, are used where others leave too much.

Known weakness: an op that stays whole reads a concatenated tensor, which lies in memory
beside its parts. Sums over the axis, such as gradients of weights, end a region.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from lms.ir.graph import GraphView, Op, op_of
from lms.ir.liveness import working_sets
from lms.tf import compat
from lms.tf.capture.loops import full_name, index_of, source_of
from lms.tf.capture.op_facts import CONSTANT, INPLACE
from lms.tf.passes.constant_folding import LARGEST
from lms.tf.passes.split_rules import Cut, Shaped, counted, cuts
from lms.units import Bytes

__all__ = ["SLICE", "Cuts", "OpSize", "Region", "regions", "with_slices"]

# Name suffix of slices, which are copies and never views.
SLICE = "/lms_slice"

# A region follows tensors of at least 1/4 of the bytes that an op may need.
_LARGE = 4

# A split must lower the need of a region's largest op to at most 0.75 of it.
_WORTH = 0.75

# Name suffix of tensors that were concatenated of parts; an output's index follows.
_WHOLE = "/lms_whole"

# Ops whose outputs never share their inputs' memory.
_MAKE_NEW = ("MatMul", "BatchMatMul", "Conv2D", "Conv3D", "DepthwiseConv")

# Elements of a constant that is read: larger ones are no axes or sizes.
_FEW = 16

_MOST_PARTS = 64


_Nodes: TypeAlias = Mapping[str, compat.NodeDef]
_Proof: TypeAlias = Callable[[GraphView, _Nodes, Op, Cut, int], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSize:
    """Limit of an op's bytes, above which the op is split.

    Args:
        most: Bytes of an op's inputs, outputs and scratch together.
        sums: Whether parts may add in another order than the whole op.
        rows: Whether products may also be split along rows and columns.
        whole: Bytes that the largest op needs before any op is split.
        scratch: Measured bytes of scratch of whole ops, by name.
        proved: Takes graph, nodes, op, cut and number of parts; tells whether the parts
            have the whole op's bits. None where no proof is possible.
    """

    most: Bytes
    sums: bool = True
    rows: bool = False
    whole: Bytes = 0
    scratch: Mapping[str, Bytes] = field(default_factory=dict[str, Bytes])
    proved: "_Proof | None" = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Ops that are split together.

    Args:
        cuts: The cut of each op, by name.
        parts: Number of parts.
    """

    cuts: Mapping[str, Cut]
    parts: int


class Cuts:
    """The possible cuts of a step's ops.

    Args:
        graph: The step.
        nodes: The step's nodes.
        size: The cuts that are allowed, without a proof or with one.
    """

    def __init__(
        self, graph: GraphView, nodes: Sequence[compat.NodeDef], size: OpSize
    ) -> None:
        self.graph = graph
        self._size = size
        self.nodes = {node.name: node for node in nodes}
        results = set(graph.results)
        # Slices have fixed sizes, so a sliced tensor must have one too; tensors of
        # loops and branches may have bounded sizes.
        moving = (op for op in graph.ops if op.varies or op.fixed)
        self._varying = {tensor.name for op in moving for tensor in op.outputs}
        pure = {name for name, node in self.nodes.items() if compat.is_pure(node)}
        self.open = {
            op.name
            for op in graph.ops
            if op.name in pure
            and not (op.fixed or op.varies or op.writes or op.reads_state)
            and not (op.replaces_state or op.persistent or op.from_host)
            and results.isdisjoint(tensor.name for tensor in op.outputs)
        }
        self._folded: set[str] = set()  # ops of constants alone
        for op in graph.ops:
            sources = {op_of(name) for name in op.inputs if op.name in pure}
            if (op.constant or sources) and sources <= self._folded and not op.fixed:
                self._folded.add(op.name)
        self._known: dict[tuple[str, int], list[Cut]] = {}

    def of(self, op: Op, parts: int) -> list[Cut]:
        """Return all cuts of an op into `parts`; none if the op must stay whole."""
        key = op.name, parts
        if key not in self._known:
            found = cuts(self._shaped(op), parts) if self._is_open(op, parts) else []
            self._known[key] = [
                cut
                for cut in found
                if not any(
                    axis is not None and name in self._varying
                    for name, axis in zip(op.inputs, cut.inputs, strict=True)
                )
            ]
        return self._known[key]

    def holds(self, op: Op, cut: Cut, parts: int) -> bool:
        """Tell whether a cut is allowed without a proof, or proved."""
        size, shaped = self._size, self._shaped(op)
        if size.proved is None:
            return True
        sums = size.sums or self._adds_in_order(op)
        free = replace(shaped, sums=sums, rows=size.rows)
        return cut in cuts(free, parts) or size.proved(
            self.graph, self.nodes, op, cut, parts
        )

    def _is_open(self, op: Op, parts: int) -> bool:
        """Tell whether an op may be split: not if TensorFlow would fold its parts."""
        size = max((tensor.size for tensor in op.outputs), default=0)
        kept = op.name in self._folded and size <= parts * LARGEST
        return op.name in self.open and not kept

    def _shaped(self, op: Op) -> Shaped:
        may_prove = self._size.proved is not None
        tensors = self.graph.tensors
        values = {i: self._constant(name) for i, name in enumerate(op.inputs)}
        return Shaped(
            node=self.nodes[op.name],
            inputs=[tensors[name].shape for name in op.inputs],
            outputs=[tensor.shape for tensor in op.outputs],
            constants={i: v for i, v in values.items() if v is not None},
            sums=self._size.sums or may_prove or self._adds_in_order(op),
            rows=self._size.rows or may_prove,
        )

    def _adds_in_order(self, op: Op) -> bool:
        """Tell whether AddN surely begins with its first input, whole and in parts.

        AddN begins with the first input that it may overwrite (aggregate_ops.cc).
        """
        first = op.inputs[0] if op.type == "AddN" else ""
        return op.inputs.count(first) == 1 and self._is_read_once(first)

    def _is_read_once(self, name: str) -> bool:
        """Tell whether only one op ever holds the memory of a tensor."""
        made, producer = self.graph.tensors[name], self.graph.by_name[op_of(name)]
        if len(self.graph.consumers[name]) > 1 or producer.name not in self.open:
            return False
        if len(producer.outputs) > 1 or _WHOLE in producer.name:  # views, or joined
            return False
        if (
            producer.type in INPLACE and producer.type != "AddN"
        ) or producer.type.startswith(_MAKE_NEW):
            return True
        sizes = [(each, self.graph.tensors[each].size) for each in producer.inputs]
        return all(self._is_read_once(each) for each, n in sizes if n >= made.size)

    def _constant(self, name: str) -> Any:
        node = self.nodes.get(op_of(name))
        if node is None or node.op not in CONSTANT | {"HostConst"}:
            return None
        if math.prod(self.graph.tensors[name].shape) > _FEW:
            return None
        value = compat.attribute(node, "value").tensor
        if not tf.as_dtype(value.dtype).is_integer:
            return None
        return np.asarray(tf.make_ndarray(value))


def regions(
    graph: GraphView, nodes: Sequence[compat.NodeDef], size: OpSize
) -> list[Region]:
    """Find regions to split until each op fits its limit, as far as ops can be split.

    Args:
        graph: The step.
        nodes: The step's nodes.
        size: The limit of an op's bytes.
    """
    sizes = [replace(size, rows=False, proved=None)]
    sizes += [size] if size.rows or size.proved else []
    steps = [Cuts(graph, nodes, each) for each in sizes]
    most = size.most
    needs = dict(zip(graph.by_name, working_sets(graph), strict=True))
    for name in size.scratch.keys() & needs.keys():  # not measured for this graph
        needs[name] += max(0, size.scratch[name] - graph.by_name[name].scratch)
    found: dict[str, Region] = {}
    for name in sorted(needs, key=lambda name: -needs[name]):
        if needs[name] <= most:
            break
        if name in found:
            continue
        tried: list[tuple[Bytes, int, Region]] = []
        for i, step in enumerate(steps):
            best = _best(step, graph.by_name[name], needs, most, found)
            tried += [(best[0], i, best[1])] if best else []
            if best and best[0] <= most:
                break
        if not tried:
            break
        *_, region = min(tried, key=lambda each: each[:-1])
        found |= dict.fromkeys(region.cuts, region)
    return list({id(region): region for region in found.values()}.values())


def _best(
    step: Cuts,
    op: Op,
    needs: Mapping[str, Bytes],
    most: Bytes,
    found: Mapping[str, Region],
) -> tuple[Bytes, Region] | None:
    """Return (need after the split, best region around an op); None if none pays."""
    tried = []
    for parts in _numbers(op, needs[op.name] / most):
        for cut in step.of(op, parts):
            if not step.holds(op, cut, parts):
                continue
            region = _grown(step, op, cut, parts, most // _LARGE, found)
            left, joined = _left(step, region, needs, found)
            tried.append((max(left, most), joined, parts, len(tried), region))
    if not tried:
        return None
    left, *_, region = min(tried, key=lambda each: each[:-1])
    return (left, region) if left <= _WORTH * needs[op.name] else None


def _numbers(op: Op, wanted: float) -> list[int]:
    """Return numbers of parts to try: for each axis the least enough, or the most."""
    found = set[int]()
    for size in {size for tensor in op.outputs for size in tensor.shape}:
        fitting = [k for k in range(2, min(size, _MOST_PARTS) + 1) if size % k == 0]
        enough = [k for k in fitting if k >= wanted]
        found |= set(enough[:1] or fitting[-1:])
    return sorted(found)


def _grown(
    step: Cuts,
    op: Op,
    cut: Cut,
    parts: int,
    large: Bytes,
    taken: Mapping[str, Region],
) -> Region:
    """Grow a region over all ops that follow a cut along large tensors."""
    graph, found = step.graph, {op.name: cut}
    axes: dict[str, int] = {}
    waiting = [op]
    while waiting:
        new = waiting.pop()
        for name, axis in _axes(new, found[new.name]):
            if axis is None or graph.tensors[name].size < large or name in axes:
                continue
            axes[name] = axis
            near = (graph.by_name[op_of(name)], *graph.consumers[name])
            for other in near:
                if other.name in found or other.name in taken:
                    continue
                fitting = (
                    cut
                    for cut in step.of(other, parts)
                    if _fits(other, cut, axes) and step.holds(other, cut, parts)
                )
                if (chosen := next(fitting, None)) is not None:
                    found[other.name] = chosen
                    waiting.append(other)
    return Region(cuts=found, parts=parts)


def _axes(op: Op, cut: Cut) -> Iterator[tuple[str, int | None]]:
    yield from zip(op.inputs, cut.inputs, strict=True)
    yield from zip((t.name for t in op.outputs), cut.outputs, strict=True)


def _fits(op: Op, cut: Cut, axes: Mapping[str, int]) -> bool:
    """Tell whether a cut agrees with the axes chosen so far."""
    return all(axes.get(name, axis) == axis for name, axis in _axes(op, cut))


def _left(
    step: Cuts,
    region: Region,
    needs: Mapping[str, Bytes],
    found: Mapping[str, Region],
) -> tuple[Bytes, Bytes]:
    """Return (need of a region's largest op after the split, bytes to concatenate)."""
    graph, joined = step.graph, 0
    left = max(needs[name] for name in region.cuts) // region.parts
    for name in region.cuts:
        op = graph.by_name[name]
        for tensor in op.outputs:
            readers = graph.consumers[tensor.name]
            others = [reader for reader in readers if reader.name not in region.cuts]
            if any(_joins(step, reader, tensor.name, region) for reader in others):
                left = max(left, 2 * tensor.size)
                joined += tensor.size
        for source, axis in zip(op.inputs, region.cuts[name].inputs, strict=True):
            if axis is None or op_of(source) in region.cuts:
                continue
            other = found.get(op_of(source))
            size, pieces = graph.tensors[source].size, other.parts if other else 1
            left = max(left, size // pieces + size // region.parts)
    return left, joined


def _joins(step: Cuts, reader: Op, name: str, region: Region) -> bool:
    """Tell whether a reader needs the whole tensor under all of its allowed cuts."""
    place, parts = reader.inputs.index(name), region.parts
    found = (cut for cut in step.of(reader, parts) if cut.inputs[place] is not None)
    return not any(step.holds(reader, cut, parts) for cut in found)


def with_slices(
    nodes: Sequence[compat.NodeDef],
    graph: GraphView,
    found: Sequence[Region],
    number: int,
) -> list[compat.NodeDef]:
    """Return nodes in which regions are split.

    Args:
        nodes: The step's nodes; they are not changed.
        graph: The step's graph.
        found: The regions, which share no op.
        number: Number of earlier splits of the step, which makes names unique.
    """
    return list(_Cutter(nodes, graph, found, number).all())


class _Cutter:
    """Makes the nodes of parts, and the nodes that slice and concatenate."""

    def __init__(
        self,
        nodes: Sequence[compat.NodeDef],
        graph: GraphView,
        found: Sequence[Region],
        number: int,
    ) -> None:
        self._number = number
        self._nodes = nodes
        self._tensors = graph.tensors
        self._region = {name: each for each in found for name in each.cuts}
        self._made: dict[str, compat.NodeDef] = {}
        self._constants: dict[tuple[str, str, str], str] = {}

    def all(self) -> Iterator[compat.NodeDef]:
        """Yield all nodes."""
        for node in self._nodes:
            region = self._region.get(node.name)
            if region is None:
                yield self._copied(node, [self._whole(n, node) for n in node.input])
                continue
            for part in range(region.parts):
                yield self._part_of(node, region, part)
        yield from self._made.values()

    def _copied(
        self, node: compat.NodeDef, inputs: Sequence[str], name: str | None = None
    ) -> compat.NodeDef:
        new = compat.copied(node, (each for each in inputs if each[0] != "^"))
        new.name = name or node.name
        controls = [each for each in inputs if each[0] == "^"]
        new.input.extend(dict.fromkeys(self._controls(controls)))
        return new

    def _controls(self, names: Sequence[str]) -> Iterator[str]:
        for name in names:
            region = self._region.get(name[1:])
            if region is None:
                yield name
            else:
                yield from (f"^{_part(name[1:], i)}" for i in range(region.parts))

    def _part_of(
        self, node: compat.NodeDef, region: Region, part: int
    ) -> compat.NodeDef:
        cut = region.cuts[node.name]
        inputs = []
        for i, name in enumerate(node.input):
            if name.startswith("^"):
                inputs.append(name)
            elif i in cut.constants:
                dtype = tf.as_dtype(self._tensors[full_name(node.input[i])].dtype)
                inputs.append(self._constant(cut.constants[i], dtype, node))
            elif i == cut.counter:
                inputs.append(self._counter(node, region, part))
            elif (axis := cut.inputs[i]) is None:
                inputs.append(self._whole(name, node))
            else:
                inputs.append(self._slice(name, axis, region, part, node))
        return self._copied(node, inputs, _part(node.name, part))

    def _whole(self, name: str, reader: compat.NodeDef) -> str:
        """Return the whole tensor's name; concatenate the tensor if it has parts."""
        region = None if name.startswith("^") else self._region.get(source_of(name))
        if region is None:
            return name
        source, index = source_of(name), index_of(name)
        axis = region.cuts[source].outputs[index]
        new = f"{source}{_WHOLE}{index}"
        if new not in self._made:
            parts = [f"{_part(source, i)}:{index}" for i in range(region.parts)]
            self._join(new, parts, axis, self._tensors[full_name(name)].dtype, reader)
        return new

    def _slice(
        self, name: str, axis: int, region: Region, part: int, reader: compat.NodeDef
    ) -> str:
        """Return a part's input: a part, a slice, or slices of parts concatenated."""
        source, index = source_of(name), index_of(name)
        tensor = self._tensors[full_name(name)]
        label = f"/lms{self._number}_{index}_{axis}_{region.parts}_{part}"
        piece = _Piece(axis, region.parts, part, tensor.dtype, label)
        shape = tensor.shape
        other = self._region.get(source)
        made = axis if other is None else other.cuts[source].outputs[index]
        if other is region and made == axis:
            return f"{_part(source, part)}:{index}"
        if other is None or made == axis:
            return self._cut(self._whole(name, reader), source, piece, shape, reader)
        shape = tuple(s // other.parts if i == made else s for i, s in enumerate(shape))
        new = f"{source}{label}/lms_blocks"
        if new not in self._made:
            blocks = [
                self._cut(f"{own}:{index}", own, piece, shape, reader)
                for own in (_part(source, number) for number in range(other.parts))
            ]
            self._join(new, blocks, made, tensor.dtype, reader)
        return new

    def _cut(
        self,
        whole: str,
        source: str,
        piece: "_Piece",
        shape: Sequence[int],
        reader: compat.NodeDef,
    ) -> str:
        """Make a slice, behind a new first axis where it might else be a view."""
        new = f"{source}{piece.label}"
        is_copy = any(size > 1 for size in shape[: piece.axis])
        result = f"{new}{SLICE}" if is_copy else f"{new}{SLICE}_back"
        if result in self._made:
            return result
        sizes = [
            s // piece.parts if i == piece.axis else s for i, s in enumerate(shape)
        ]
        begin = [0] * len(sizes)
        begin[piece.axis] = piece.number * sizes[piece.axis]
        if not is_copy:
            begin, sizes = [0, *begin], [1, *sizes]
            rows = self._new(f"{new}/lms_rows", "ExpandDims", piece.dtype, reader)
            rows.input.extend([whole, self._constant(0, tf.int32, reader)])
            rows.attr["Tdim"].type = tf.int32.as_datatype_enum
            back = self._new(result, "Squeeze", piece.dtype, reader)
            back.input.append(f"{new}{SLICE}")
            back.attr["squeeze_dims"].list.i.append(0)
            whole = rows.name
        where = [self._constant(value, tf.int32, reader) for value in (begin, sizes)]
        cut = self._new(f"{new}{SLICE}", "Slice", piece.dtype, reader)
        cut.input.extend([whole, *where])
        cut.attr["Index"].type = tf.int32.as_datatype_enum
        return result

    def _join(
        self,
        new: str,
        parts: Sequence[str],
        axis: int,
        dtype: str,
        reader: compat.NodeDef,
    ) -> None:
        where = self._constant(axis, tf.int32, reader)
        node = self._new(new, "ConcatV2", dtype, reader)
        node.input.extend([*parts, where])
        node.attr["N"].i = len(parts)
        node.attr["Tidx"].type = tf.int32.as_datatype_enum

    def _counter(self, node: compat.NodeDef, region: Region, part: int) -> str:
        """Return the counter, on the host, at which a part's random numbers begin."""
        given = node.input[region.cuts[node.name].counter or 0]
        if part == 0:
            return given
        made = math.prod(self._tensors[f"{node.name}:0"].shape) // region.parts
        new = f"{node.name}/lms_counter_{part}"
        moved = self._new(new, "AddV2", "uint64", node)
        moved.device = compat.device_name("CPU:0")
        by = [part * made // counted(node), 0]
        moved.input.extend([given, self._constant(by, tf.uint64, moved)])
        return new

    def _new(
        self, name: str, op: str, dtype: str, reader: compat.NodeDef
    ) -> compat.NodeDef:
        node = compat.made_node(name, op, (), reader.device, T=dtype)
        self._made[name] = node
        return node

    def _constant(self, value: Any, dtype: tf.DType, reader: compat.NodeDef) -> str:
        """Return the name of a constant on the reader's device, shared by readers."""
        key = dtype.name, str(value), reader.device
        if key not in self._constants:
            name = f"lms{self._number}_constant_{len(self._constants)}"
            node = compat.constant(name, value, dtype, reader.device)
            self._constants[key], self._made[name] = name, node
        return self._constants[key]


class _Piece(NamedTuple):
    """A part of a tensor: axis, number of parts, index, type, and name suffix."""

    axis: int
    parts: int
    number: int
    dtype: str
    label: str


def _part(name: str, number: int) -> str:
    return f"{name}/lms_part{number}"
