"""Updates on the host: the gradient goes there, the arithmetic is done in its memory.

    gradient ──> rows k of it, copied ──> the same element-wise ops by NumPy ──> w, m, v

A step then copies twelve bytes of Adam's parameter instead of 32: the weight to the
device for each pass, and the gradient back (ZeRO-Offload, Ren et al., USENIX ATC 2021,
section 4). Only float32, and ops whose bits are equal there.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from lms.ir.graph import Arithmetic, HostRows, HostUpdate, Op
from lms.tf.capture.graph_edit import GraphEdit, made
from lms.tf.capture.sliced_updates import Slicer
from lms.tf.capture.updates import Update, tensor_of
from lms.tf.host_arithmetic import has_equal_bits

__all__ = ["UPDATE", "HostSlicer", "host_slicer"]

# A host function, which is never run alone.
UPDATE = "PyFuncHostUpdate"

_TYPE = "float32"


def host_slicer(
    edit: GraphEdit, update: Update, makers: Mapping[str, Op]
) -> "type[HostSlicer] | None":
    """What cuts an update, if it can be done on the host with the same bits."""
    return HostSlicer if _may_be_on_host(edit, update, makers) else None


def _may_be_on_host(edit: GraphEdit, update: Update, makers: Mapping[str, Op]) -> bool:
    ops = [edit.ops[name] for name in update.ops]
    read = {name for op in ops for name in op.inputs}
    tensors = [tensor_of(makers, name) for name in read]
    return (
        bool(ops)
        and bool(update.shape)
        and all(has_equal_bits(op.type) for op in ops)
        and all(tensor.dtype == _TYPE for tensor in tensors)
        and all(op.outputs[0].dtype == _TYPE for op in ops)
        and all(_is_made_here(edit, update, name) for name in update.writes)
    )


def _is_made_here(edit: GraphEdit, update: Update, write: str) -> bool:
    return edit.ops[write].inputs[0].rpartition(":")[0] in update.ops


class HostSlicer(Slicer):
    """Makes the slices of one update, each one op of the host."""

    def slices(self, edges: Sequence[int]) -> dict[str, list[str]]:
        """Make them; returns their names by those of the whole's writes."""
        names = [
            self._slice_on_host(k, *rows) for k, rows in enumerate(pairwise(edges))
        ]
        return dict.fromkeys(self.update.writes, names)

    def _slice_on_host(self, k: int, first: int, end: int) -> str:
        edit, update = self.edit, self.update
        read: list[tuple[str, HostRows]] = []
        given: dict[str, str] = {}  # the tensor that is copied, by what it stands for
        parts: dict[str, str] = {}
        known = {edit.ops[name].outputs[0].name for name in update.ops}
        for name in update.ops:
            for source in edit.ops[name].inputs:
                if source in known:
                    continue
                known.add(source)
                held = self.makers[source]
                if held.is_held and held.host_read is not None:
                    read.append((source, self.rows(held.host_read, first, end)))
                else:
                    given[source] = self.part(source, k, first, end, parts)
        whole = f"lms/slice{k}/{update.writes[0]}"
        arithmetic = HostUpdate(
            given=tuple(given),
            read=tuple(read),
            steps=tuple(self._step(edit.ops[name]) for name in update.ops),
            written=tuple(self._written(name, first, end) for name in update.writes),
            size=4 * (end - first) * math.prod(update.shape[1:]),
        )
        controls = dict.fromkeys(
            waited
            for name in update.writes
            for waited in edit.ops[name].controls
            if waited not in (*update.ops, *update.writes)
        )
        op = Op(
            name=whole,
            type=UPDATE,
            inputs=tuple(given.values()),
            controls=tuple(controls),
            host_update=arithmetic,
        )
        device = edit.nodes[update.writes[0]].device
        edit.add(op, made(UPDATE, device), (*self.rank, k, 2))
        return whole

    def _written(self, write: str, first: int, end: int) -> tuple[str, HostRows]:
        op = self.edit.ops[write]
        return op.inputs[0], self.rows(op.host_write, first, end)

    @staticmethod
    def _step(op: Op) -> Arithmetic:
        return Arithmetic(type=op.type, inputs=op.inputs, output=op.outputs[0].name)
