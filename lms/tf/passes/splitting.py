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

An op that stays whole reads a concatenated tensor, which lies in memory beside its
parts. If these follow each other in memory, they are written into a large tensor's, one
by one, and each is free then (`_ParallelConcatUpdate` in inplace_ops.cc).

Known weaknesses: a tensor written in place is never recomputed. Sums over the axis,
such as gradients of weights, end a region.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from lms.ir.graph import GraphView, Op, Tensor, op_of
from lms.ir.liveness import working_sets
from lms.tf import compat
from lms.tf.capture.ops import ALIAS, CONSTANT, INPLACE
from lms.tf.nodes import Nodes, data_of, full_name, index_of, source_of, waits_of
from lms.tf.passes.chosen_writes import CHOSEN
from lms.tf.passes.constant_folding import LARGEST, folded
from lms.tf.passes.split_rules import Cut, Shaped, counted, cuts, divided
from lms.units import Bytes

__all__ = ["MOST_PARTS", "SLICE", "Cuts", "OpSize", "Region", "regions", "with_slices"]

# Name suffix of slices, which are copies and never views.
SLICE = "/lms_slice"

# A region follows tensors of at least 1/4 of the bytes that an op may need.
_LARGE = 4

# A split must lower the need of a region's largest op to at most 0.75 of it.
_WORTH = 0.75

# Name suffix of tensors that were concatenated of parts; an output's index follows.
_WHOLE = "/lms_whole"
_ROWS = "/lms_rows"  # name suffix of a tensor behind a new axis, to be sliced

# Types of tensors that a GPU writes in place (inplace_ops_functor_gpu.cu.cc).
_IN_PLACE = frozenset({"float16", "bfloat16", "float32", "float64"})
_WRITE = "_ParallelConcatUpdate"
_MOST_IN_PLACE = 2**31 - 1  # elements, which the kernel counts with 32 bits

# Ops whose outputs never share their inputs' memory.
_MAKE_NEW = ("MatMul", "BatchMatMul", "Conv2D", "Conv3D", "DepthwiseConv")

# Elements of a constant that is read: larger ones are no axes or sizes.
_FEW = 16

MOST_PARTS = 64  # of an op

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
    """Ops that are split together into equally many parts, each by its cut.

    Tensors of more than 1/2 of `most` bytes are not concatenated, if possible.
    """

    cuts: Mapping[str, Cut]
    parts: int
    most: Bytes = 0

    def in_place(self, tensor: Tensor, axis: int) -> bool:
        """Tell whether parts along an axis are written into the whole's memory."""
        if 2 * tensor.size <= self.most or math.prod(tensor.shape) > _MOST_IN_PLACE:
            return False
        return math.prod(tensor.shape[:axis]) == 1 and tensor.dtype in _IN_PLACE


class Cuts:
    """The possible cuts of a step's ops; `size` says which need a proof."""

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
        # The proof knows no parts of what is written part by part.
        for op in (op for op in graph.ops if op.type == _WRITE):
            pure -= {n.name for t in op.outputs for n in graph.consumers[t.name]}
            pure.difference_update(map(op_of, op.inputs))
        self.open = {
            op.name
            for op in graph.ops
            if op.name in pure
            and not (op.fixed or op.varies or op.writes or op.reads_state)
            and not (op.replaces_state or op.persistent or op.from_host)
            and not op.name.endswith((CHOSEN, _ROWS))  # whose parts no proof knows
            and results.isdisjoint(tensor.name for tensor in op.outputs)
        }
        self._waited_for = {name for op in graph.ops for name in op.controls}
        fixed = {op.name for op in graph.ops if op.fixed}
        self._folded = set(folded(self.nodes.values(), fixed))
        self._known: dict[tuple[str, int], list[Cut]] = {}

    def of(self, op: Op, parts: int) -> list[Cut]:
        """Return all cuts of an op into `parts`; none if the op must stay whole."""
        key = op.name, parts
        if key not in self._known:
            size = max((tensor.size for tensor in op.outputs), default=0)
            # TensorFlow folds small parts of what it could fold.
            kept = op.name in self._folded and size <= parts * LARGEST
            can_split = op.name in self.open and not kept
            found = cuts(self._shaped(op), parts) if can_split else []
            whole = [i for i, name in enumerate(op.inputs) if name in self._varying]
            self._known[key] = [
                cut for cut in found if all(cut.inputs[i] is None for i in whole)
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
        if producer.name in self._waited_for:  # perhaps another card reads the tensor
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
    """Find regions to split until each op fits its limit, as far as possible."""
    sizes = [replace(size, rows=False, proved=None)]
    sizes += [size] if size.rows or size.proved else []
    steps = [Cuts(graph, nodes, each) for each in sizes]
    most = max(1, size.most)
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
            region = _grown(step, op, cut, parts, most, found)
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
        fitting = [k for k in range(2, min(size, MOST_PARTS) + 1) if size % k == 0]
        enough = [k for k in fitting if k >= wanted]
        found |= set(enough[:1] or fitting[-1:])
    return sorted(found)


def _grown(
    step: Cuts, op: Op, cut: Cut, parts: int, most: Bytes, taken: Mapping[str, Region]
) -> Region:
    """Grow a region over all ops that follow a cut along large tensors."""
    graph, found, large = step.graph, {op.name: cut}, most // _LARGE
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
                    if all(axes.get(n, at) == at for n, at in _axes(other, cut))
                    and step.holds(other, cut, parts)
                )
                if (chosen := next(fitting, None)) is not None:
                    found[other.name] = chosen
                    waiting.append(other)
    return Region(cuts=found, parts=parts, most=most)


def _axes(op: Op, cut: Cut) -> Iterator[tuple[str, int | None]]:
    yield from zip(op.inputs, cut.inputs, strict=True)
    yield from zip((t.name for t in op.outputs), cut.outputs, strict=True)


def _left(
    step: Cuts, region: Region, needs: Mapping[str, Bytes], found: Mapping[str, Region]
) -> tuple[Bytes, Bytes]:
    """Return (need of a region's largest op after the split, bytes to concatenate)."""
    graph, joined = step.graph, 0
    left = max(needs[name] for name in region.cuts) // region.parts
    for name in region.cuts:
        op = graph.by_name[name]
        for tensor, axis in zip(op.outputs, region.cuts[name].outputs, strict=True):
            readers = graph.consumers[tensor.name]
            others = [reader for reader in readers if reader.name not in region.cuts]
            if any(_joins(step, reader, tensor.name, region) for reader in others):
                beside = region.parts if region.in_place(tensor, axis) else 1
                left = max(left, tensor.size + tensor.size // beside)
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
    """Return nodes in which regions that share no op are split; `nodes` stay as given.

    The number of earlier splits of the step makes names unique.
    """
    region = {name: each for each in found for name in each.cuts}
    return _Cutter(Nodes(nodes), graph.tensors, region, number).all()


@dataclass(frozen=True, slots=True)
class _Cutter:
    """Makes the nodes of parts, and the nodes that slice and concatenate."""

    _nodes: Nodes
    _tensors: Mapping[str, Tensor]
    _region: Mapping[str, Region]
    _number: int
    _constants: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def all(self) -> list[compat.NodeDef]:
        graph, split = self._nodes, list[compat.NodeDef]()
        for node in graph:
            if node.name not in self._region:
                data = [self._whole(name, node.device) for name in data_of(node)]
                graph.give(node, [*data, *waits_of(node)])
                continue
            split.append(node)
            for part in range(self._region[node.name].parts):
                new = compat.copied(node, self._inputs(node, part))
                new.name = _part(node.name, part)
                graph.add(new, before=node)
        for node in split:
            parts = range(self._region[node.name].parts)
            graph.replace_waits(node.name, [_part(node.name, part) for part in parts])
            graph.remove(node)
        return [*graph]

    def _inputs(self, node: compat.NodeDef, part: int) -> list[str]:
        region = self._region[node.name]
        cut, inputs = region.cuts[node.name], list[str]()
        for i, name in enumerate(data_of(node)):
            if i in cut.constants:
                dtype = tf.as_dtype(self._tensors[full_name(name)].dtype)
                inputs.append(self._constant(cut.constants[i], dtype, node.device))
            elif i == cut.counter:
                inputs.append(self._counter(name, region, part, node))
            elif (axis := cut.inputs[i]) is None:
                inputs.append(self._whole(name, node.device))
            else:
                inputs.append(self._slice(name, axis, region, part, node.device))
        return [*inputs, *waits_of(node)]

    def _whole(self, name: str, device: str) -> str:
        """Return the whole tensor's name; concatenate the tensor if it has parts."""
        source, index = source_of(name), index_of(name)
        if (region := self._region.get(source)) is None:
            return name
        parts = [f"{_part(source, i)}:{index}" for i in range(region.parts)]
        axis = region.cuts[source].outputs[index]
        new, tensor = f"{source}{_WHOLE}{index}", self._tensors[full_name(name)]
        if region.in_place(tensor, axis) and not self._nodes.get(new):
            return self._written(new, parts, tensor, device)
        return self._join(new, parts, axis, tensor.dtype, device)

    def _written(
        self, new: str, parts: Sequence[str], tensor: Tensor, device: str
    ) -> str:
        """Return the name of a tensor into whose memory the parts are written."""
        make, kind, count = self._nodes.make, {"T": tensor.dtype}, len(parts)
        shapes, size = {**kind, "Tshape": tf.int32}, math.prod(tensor.shape) // count
        sides = ([count, size], [1, size], list(tensor.shape))
        rows, row, whole = (self._constant(each, tf.int32, device) for each in sides)
        first = self._nodes[source_of(parts[0])]
        while first.op in ALIAS and (source := self._nodes.get(first.input[0])):
            first = source
        inputs = [rows, f"^{first.name}"]  # an alias may be made again for a copy
        made = make(f"{new}/lms_empty", "Empty", inputs, device, dtype=tensor.dtype)
        for i, part in enumerate(parts):
            own = make(f"{new}/lms_row{i}", "Reshape", [part, row], device, **shapes)
            inputs, name = [made.name, own.name], f"{new}/lms_written{i}"
            made = make(name, _WRITE, inputs, device, **kind)
            made.attr["loc"].i = i
        return make(new, "Reshape", [made.name, whole], device, **shapes).name

    def _slice(
        self, name: str, axis: int, region: Region, part: int, device: str
    ) -> str:
        """Return a part's input: a part, a slice, or slices of parts concatenated."""
        source, index = source_of(name), index_of(name)
        tensor = self._tensors[full_name(name)]
        label = f"/lms{self._number}_{index}_{axis}_{region.parts}_{part}"
        piece = axis, region.parts, part
        other = self._region.get(source)
        made = axis if other is None else other.cuts[source].outputs[index]
        if other is region and made == axis:
            return f"{_part(source, part)}:{index}"
        new = f"{source}{label}"
        if other is None or made == axis:
            whole = self._whole(name, device)
            return self._cut(whole, new, tensor, piece, device)
        block = replace(tensor, shape=tuple(divided(tensor.shape, made, other.parts)))
        blocks = [
            self._cut(f"{own}:{index}", f"{own}{label}", block, piece, device)
            for own in (_part(source, number) for number in range(other.parts))
        ]
        return self._join(f"{new}/lms_blocks", blocks, made, tensor.dtype, device)

    def _cut(
        self,
        whole: str,
        new: str,
        tensor: Tensor,
        piece: tuple[int, int, int],
        device: str,
    ) -> str:
        """Make a slice, behind a new first axis where it might else be a view."""
        make, types = self._nodes.make, {"T": tensor.dtype}
        axis, parts, number = piece
        is_copy = any(size > 1 for size in tensor.shape[:axis])
        result = f"{new}{SLICE}" if is_copy else f"{new}{SLICE}_back"
        if self._nodes.get(result):
            return result
        sizes = divided(tensor.shape, axis, parts)
        begin = [0] * len(sizes)
        begin[axis] = number * sizes[axis]
        if not is_copy:
            begin, sizes = [0, *begin], [1, *sizes]
            first = self._constant(0, tf.int32, device)
            rows, inputs = f"{new}{_ROWS}", [whole, first]
            make(rows, "ExpandDims", inputs, device, **types, Tdim=tf.int32)
            back = make(result, "Squeeze", [f"{new}{SLICE}"], device, **types)
            back.attr["squeeze_dims"].list.i.append(0)
            whole = rows
        where = [self._constant(value, tf.int32, device) for value in (begin, sizes)]
        inputs = [whole, *where]
        make(f"{new}{SLICE}", "Slice", inputs, device, **types, Index=tf.int32)
        return result

    def _join(
        self, new: str, parts: Sequence[str], axis: int, dtype: str, device: str
    ) -> str:
        """Return the name of the parts concatenated, under the name `new`."""
        if not self._nodes.get(new):
            inputs = [*parts, self._constant(axis, tf.int32, device)]
            types = {"T": dtype, "Tidx": tf.int32}
            node = self._nodes.make(new, "ConcatV2", inputs, device, **types)
            node.attr["N"].i = len(parts)
        return new

    def _counter(
        self, given: str, region: Region, part: int, node: compat.NodeDef
    ) -> str:
        """Return the counter, on the host, at which a part's random numbers begin."""
        if part == 0:
            return given
        made = math.prod(self._tensors[f"{node.name}:0"].shape) // region.parts
        by = [part * made // counted(node), 0]
        host = compat.device_name("CPU:0")
        inputs = [given, self._constant(by, tf.uint64, host)]
        new = f"{node.name}/lms_counter_{part}"
        return self._nodes.make(new, "AddV2", inputs, host, T=tf.uint64).name

    def _constant(self, value: Any, dtype: tf.DType, device: str) -> str:
        """Return the name of a constant on the reader's device, shared by readers."""
        key = dtype.name, str(value), device
        if key not in self._constants:
            name = f"lms{self._number}_constant_{len(self._constants)}"
            self._nodes.add(compat.constant(name, value, dtype, device))
            self._constants[key] = name
        return self._constants[key]


def _part(name: str, number: int) -> str:
    return f"{name}/lms_part{number}"
