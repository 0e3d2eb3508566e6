"""Updates of variables on the host, cut into slices of rows: one after the other.

    gradient ──> Slice k ─┐
    read rows k of w, m ──┴─> the same element-wise ops ──> write rows k of w, m

An optimizer that works on each element by itself (SGD, momentum, Adam, AdamW, RMSprop,
Lion) so never has a whole slot on the device, and its bits are the same. What is not
element-wise is made whole, and so is an update whose parts are read by others: the norm
of a gradient, say, or Adafactor's means.

One gradient after the other is used up: the next is made when the last was written.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import tensorflow as tf

from lms.ir.graph import HostRows, Op, Tensor
from lms.tf import compat
from lms.tf.capture.graph_edit import GraphEdit, Rank, described, made
from lms.tf.capture.segment_sums import SEGMENT_SUM, sum_rows
from lms.tf.capture.update_order import one_by_one
from lms.tf.capture.updates import Update, tensor_of, updates_of
from lms.units import Bytes

__all__ = ["Slicer", "slice_updates"]

# A slice that begins at such an address is a view (`IsDim0SliceAligned`).
_ALIGNED = 64


SlicerFor = Callable[[GraphEdit, Update, Mapping[str, Op]], "type[Slicer] | None"]


def slice_updates(
    edit: GraphEdit, slice_bytes: Bytes, slicer_for: SlicerFor | None = None
) -> None:
    """Cut updates into slices, and let one come after the other.

    Args:
        edit: The step, with copies for variables on the host.
        slice_bytes: About so many bytes a slice.
        slicer_for: Says what makes an update's slices, where that is special.
    """
    makers = {tensor.name: op for op in edit.ops.values() for tensor in op.outputs}
    readers = edit.readers()
    stands: dict[str, Sequence[str]] = {}  # for what is cut
    done: list[tuple[tuple[str, ...], tuple[str, ...]]] = []  # sources and writes
    for update in updates_of(edit, makers):
        edges = _edges(update, slice_bytes)
        writes = update.writes
        special = slicer_for and slicer_for(edit, update, makers)
        may_be_cut = len(edges) > 2 or special is not None
        if may_be_cut and not _is_read_by_others(edit, update, readers):
            cut = (special or Slicer)(edit, update, makers).slices(edges)
            writes = tuple(name for whole in update.writes for name in cut[whole])
            stands |= {**dict.fromkeys(update.ops, writes), **cut}
        done.append((update.sources, writes))
    edit.rename({}, stands)
    edit.remove(stands)
    edit.remove_unread(SEGMENT_SUM)
    one_by_one(edit, done)


def _edges(update: Update, slice_bytes: Bytes) -> Sequence[int]:
    """Where slices begin, and where the last one ends, in rows."""
    if not update.ops or not update.shape:
        return (0, 1)
    rows = update.shape[0]
    row = max(1, update.size // rows)
    step = _ALIGNED // math.gcd(row, _ALIGNED)
    count = max(1, slice_bytes // row // step) * step
    return (*range(0, rows, count), rows)


def _is_read_by_others(
    edit: GraphEdit, update: Update, readers: Mapping[str, Sequence[str]]
) -> bool:
    """Whether others read what its ops make; then that is made whole."""
    own = {*update.ops, *update.writes}
    made_here = [t.name for n in update.ops for t in edit.ops[n].outputs]
    return any(
        name in edit.results or not own.issuperset(readers.get(name, ()))
        for name in made_here
    )


class Slicer:
    """Makes the slices of one update.

    Args:
        edit: The step.
        update: What is cut.
        makers: The ops by the tensors that they make.
    """

    def __init__(
        self, edit: GraphEdit, update: Update, makers: Mapping[str, Op]
    ) -> None:
        self.edit = edit
        self.update = update
        self.makers = makers
        self.rank: Rank = max(edit.rank[name] for name in update.writes)

    def slices(self, edges: Sequence[int]) -> dict[str, list[str]]:
        """Make them; returns the names of their writes by those of the whole."""
        made_by: dict[str, list[str]] = {name: [] for name in self.update.writes}
        for k, (first, end) in enumerate(pairwise(edges)):
            parts: dict[str, str] = {}
            for name in self.update.ops:
                self._op(name, k, first, end, parts)
            for name in self.update.writes:
                made_by[name].append(self._write(name, k, first, end, parts))
        return made_by

    def _op(
        self, name: str, k: int, first: int, end: int, parts: dict[str, str]
    ) -> None:
        op = self.edit.ops[name]
        inputs = tuple(self.part(source, k, first, end, parts) for source in op.inputs)
        new = f"lms/slice{k}/{name}"
        output = self._cut(op.outputs[0], f"{new}:0", end - first)
        sliced = replace(op, name=new, inputs=inputs, controls=(), outputs=(output,))
        self.edit.add(sliced, self.edit.nodes[name], (*self.rank, k, 1))
        parts[op.outputs[0].name] = output.name

    def _write(
        self, name: str, k: int, first: int, end: int, parts: dict[str, str]
    ) -> str:
        op = self.edit.ops[name]
        rows = self.rows(op.host_write, first, end)
        source = self.part(op.inputs[0], k, first, end, parts)
        new = f"lms/slice{k}/{name}"
        # A write before it is in what it writes.
        own = {*self.update.ops, *self.update.writes}
        waits = tuple(waited for waited in op.controls if waited not in own)
        sliced = replace(
            op, name=new, inputs=(source,), controls=waits, host_write=rows
        )
        self.edit.add(sliced, self.edit.nodes[name], (*self.rank, k, 2))
        return new

    def part(
        self, name: str, k: int, first: int, end: int, parts: dict[str, str]
    ) -> str:
        """The slice of a tensor, or all of it where it is the same for every row."""
        if name in parts:
            return parts[name]
        op, tensor = self.makers[name], tensor_of(self.makers, name)
        shape = self.update.shape
        if len(tensor.shape) < len(shape) or tensor.shape[0] != shape[0]:
            return name
        new = f"lms/slice{k}/{op.name}/{tensor.name.rpartition(':')[2]}/rows"
        parts[name] = f"{new}:0"
        output = self._cut(tensor, f"{new}:0", end - first)
        if op.is_held:
            rows = self.rows(op.host_read, first, end)
            sliced = replace(op, name=new, outputs=(output,), host_read=rows)
            self.edit.add(sliced, self.edit.nodes[op.name], (*self.rank, k, 0))
        elif op.type == SEGMENT_SUM and not (op.fixed or op.varies):
            ids, rank = tensor_of(self.makers, op.inputs[1]), (*self.rank, k, 0)
            sum_rows(self.edit, op, ids, output, first, rank)
        elif new not in self.edit.ops:
            self._slice(new, tensor, output, first, (*self.rank, k, 0))
        return parts[name]

    def _slice(
        self, name: str, source: Tensor, output: Tensor, first: int, rank: Rank
    ) -> None:
        device = self.edit.nodes[self.update.ops[0]].device
        begin = [first, *[0] * (len(source.shape) - 1)]
        inputs = [source.name]
        for key, value in (("begin", begin), ("size", list(output.shape))):
            constant = compat.constant(f"{name}/{key}", value, tf.int32)
            constant.device = device
            tensor = described(f"{name}/{key}:0", (len(value),), tf.int32)
            op = Op(
                name=f"{name}/{key}",
                type="Const",
                outputs=(tensor,),
                persistent=True,
                constant=True,
            )
            self.edit.add(op, constant, rank)
            inputs.append(tensor.name)
        node = made("Slice", device)
        node.attr["T"].type = tf.as_dtype(source.dtype).as_datatype_enum
        node.attr["Index"].type = tf.int32.as_datatype_enum
        op = Op(
            name=name,
            type="Slice",
            inputs=tuple(inputs),
            outputs=(output,),
            alias=source.name,
            cheap=True,
            repeatable=True,
        )
        self.edit.add(op, node, rank)

    @staticmethod
    def rows(whole: HostRows | None, first: int, end: int) -> HostRows:
        """Some of a variable's rows."""
        assert whole is not None
        return replace(whole, first=first, end=end)

    @staticmethod
    def _cut(tensor: Tensor, name: str, rows: int) -> Tensor:
        shape = (rows, *tensor.shape[1:])
        return described(name, shape, tf.as_dtype(tensor.dtype))
