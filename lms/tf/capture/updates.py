"""Updates: element-wise ops, and the writes to the host of what they make.

gradient ──┬──> ops ──> write m
rows of m ─┘     │
rows of w ───────┴──> ops ──> write w        one update: they have ops in common
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from lms.ir.graph import Op, Tensor, op_of
from lms.tf.capture.graph_edit import GraphEdit
from lms.tf.capture.op_types import INPLACE
from lms.units import Bytes

__all__ = ["Update", "tensor_of", "updates_of"]

# Ops whose elements depend on the elements at the same place alone.
_ELEMENTWISE = (
    INPLACE
    - frozenset(("AddN", "Softmax", "LogSoftmax", "BiasAdd", "CollectiveReduceV2"))
) | frozenset(("Cast", "ZerosLike", "OnesLike"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Element-wise ops, the writes of what they make, and what they begin with.

    Args:
        ops: Names of the ops, in an execution order.
        writes: Names of the writes.
        shape: The shape of all that is written.
        sources: Names of the ops whose outputs of this shape are read.
        size: Bytes of the largest tensor.
    """

    ops: tuple[str, ...]
    writes: tuple[str, ...]
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    size: Bytes


def updates_of(edit: GraphEdit, makers: Mapping[str, Op]) -> list[Update]:
    """The updates of a step: writes that have ops in common belong to one.

    Args:
        edit: The step, with copies for variables on the host.
        makers: The ops by the tensors that they make.
    """
    groups: list[tuple[set[str], set[str], tuple[int, ...]]] = []
    for write in [op for op in edit.ops.values() if op.host_write is not None]:
        shape = tensor_of(makers, write.inputs[0]).shape
        ops, writes = _elementwise(makers, write.inputs[0], shape), {write.name}
        rest: list[tuple[set[str], set[str], tuple[int, ...]]] = []
        for group in groups:
            if group[2] == shape and group[0] & ops:
                ops, writes = ops | group[0], writes | group[1]
            else:
                rest.append(group)
        groups = [*rest, (ops, writes, shape)]
    return [_update(edit, makers, *group) for group in groups]


def tensor_of(makers: Mapping[str, Op], name: str) -> Tensor:
    """The tensor of a name.

    Args:
        makers: The ops by the tensors that they make.
        name: The tensor's.
    """
    return next(t for t in makers[name].outputs if t.name == name)


def _elementwise(
    makers: Mapping[str, Op], last: str, shape: tuple[int, ...]
) -> set[str]:
    """Names of the element-wise ops of this shape that a tensor is made by."""
    found: set[str] = set()
    pending = [last]
    while pending:
        op = makers[pending.pop()]
        is_sum = op.type == "AddN" and len(op.inputs) == 2
        fits = op.type in _ELEMENTWISE or is_sum
        if op.name in found or op.fixed or op.varies or op.group or not fits:
            continue
        if op.outputs[0].shape == shape:
            found.add(op.name)
            pending += op.inputs
    return found


def _update(
    edit: GraphEdit,
    makers: Mapping[str, Op],
    ops: Collection[str],
    writes: Collection[str],
    shape: tuple[int, ...],
) -> Update:
    ordered = _ordered(edit, ops)
    read = [name for op in (*ordered, *writes) for name in edit.ops[op].inputs]
    sources = {
        makers[name].name
        for name in read
        if makers[name].name not in ops
        and makers[name].host_read is None
        and tensor_of(makers, name).shape == shape
    }
    sizes = [tensor_of(makers, name).size for name in read]
    return Update(
        ops=ordered,
        writes=tuple(sorted(writes, key=edit.rank.__getitem__)),
        shape=shape,
        sources=tuple(sorted(sources, key=edit.rank.__getitem__)),
        size=max(sizes),
    )


def _ordered(edit: GraphEdit, ops: Collection[str]) -> tuple[str, ...]:
    """An execution order of some ops."""
    order: dict[str, None] = {}
    for name in sorted(ops, key=edit.rank.__getitem__):
        pending = [name]
        while pending:
            current = pending[-1]
            sources = {op_of(source) for source in edit.ops[current].inputs}
            waits = sorted((sources & {*ops}) - order.keys())
            if waits:
                pending += waits
            else:
                order[pending.pop()] = None
    return tuple(order)
