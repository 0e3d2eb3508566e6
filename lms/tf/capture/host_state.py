"""Variables that live on the host: reads and writes become copies of their own.

    ReadVariableOp, all before the write   ->  one read of the host's rows
    ResourceGather                         ->  a read of the rows that are asked for
    AssignAddVariableOp(h, d)              ->  read, AddV2, write of the host's rows
    ReadVariableOp after the write         ->  what was written, without a copy

So the device holds a variable while something reads it, and a plan may drop it and read
it again. `lms.tf.capture.sliced_updates` then cuts updates into slices of rows.

A variable that is used in another way (by an op in a loop or branch, scattered writes,
a read of which nobody says whether it comes before the write) lives on the device
again.
"""

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import tensorflow as tf

from lms.errors import UnsupportedError
from lms.ir.graph import Op, op_of
from lms.ir.host_state import readers_of
from lms.tf import compat
from lms.tf.capture.graph_edit import GraphEdit, described, made
from lms.tf.capture.host_updates import host_slicer
from lms.tf.capture.host_uses import (
    WRITES,
    UsedVariable,
    gathers_known_rows,
    uses_of,
)
from lms.tf.capture.op_types import COLLECTIVE
from lms.tf.capture.sliced_updates import slice_updates
from lms.tf.capture.specialising import TracedStep
from lms.tf.host_variables import (
    HostVariable,
    check_room,
    host_variable,
    to_device,
)
from lms.units import KIB, MIB, Bytes

__all__ = ["GATHER", "READ", "WRITE", "is_current", "slice_bytes", "state_bytes"]
__all__ += ["with_host_state"]

_LOG = logging.getLogger("lms")

# Types of the ops: host functions, which are never run alone.
READ, GATHER, WRITE = "PyFuncHostRead", "PyFuncHostGather", "PyFuncHostWrite"

_LEAST_SLICE, _MOST_SLICE, _SLICES = 256 * KIB, 16 * MIB, 64


def slice_bytes(limit: Bytes) -> Bytes:
    """Bytes of a slice on a device with a limit of memory.

    Each copy of a slice is a call of some 40 microseconds, and a few slices are on the
    device at once.
    """
    return min(_MOST_SLICE, max(_LEAST_SLICE, limit // _SLICES))


def state_bytes(step: TracedStep) -> Bytes:
    """Bytes of its variables that live on the host."""
    return sum(variable.array.nbytes for variable in step.on_host.values())


def is_current(step: TracedStep) -> bool:
    """Whether the step's variables live where they did when copies were made."""
    return all(
        host_variable(argument.captured) is step.on_host.get(f"{argument.name}:0")
        for argument in step.arguments
        if argument.captured is not None and argument.variable is not None
    )


def with_host_state(
    step: TracedStep, size: Bytes, *, updates_there: bool = False
) -> TracedStep:
    """The step with copies for the variables that live on the host.

    Args:
        step: The step, as `specialise` returns it.
        size: Updates are cut into slices of about so many bytes.
        updates_there: Whether the host does the updates that it can.

    Returns:
        The same step if it uses no such variable.

    Raises:
        UnsupportedError: If it reads an old value after it has written a new one, or
            if many workers take part in it.
        OutOfMemoryError: If a variable must live on the device, which has no room.
    """
    held = {
        f"{a.name}:0": (a, found)
        for a in step.arguments
        if a.captured is not None
        and a.variable is not None
        and (found := host_variable(a.captured)) is not None
    }
    if not held:
        return step
    if any(op.type in COLLECTIVE for op in step.graph.ops):
        raise UnsupportedError(
            "state on the host must belong to one process, got a step in which many "
            "workers take part. Keep it on the device, or train with one worker."
        )
    for _, found in held.values():
        found.settle()  # on the device its value would count as persistent
    edit = GraphEdit(step)
    left: list[str] = []
    variables: dict[str, HostVariable] = {}
    tensors: dict[str, str] = {}
    controls: dict[str, Sequence[str]] = {}
    values = {handle: argument.variable for handle, (argument, _) in held.items()}
    uses = uses_of(edit, step.graph, values)
    check_room([held[handle][0].captured for handle, used in uses if used is None])
    for handle, used in uses:
        argument, variable = held[handle]
        if used is None:
            to_device(argument.captured, "the step cannot read it from the host")
            left.append(argument.name)
        else:
            variables[handle] = variable
            _copied(edit, used, tensors, controls)
    if left:
        _LOG.warning(
            "%d variables are on the device again, such as %s: loops or branches use "
            "them, or they are written in a way that cannot be served from the host.",
            len(left),
            left[0],
        )
    if not variables:
        return step
    edit.rename(tensors, controls)
    edit.remove(controls)
    _gather_rows(edit)
    slice_updates(edit, size, host_slicer if updates_there else None)
    edit.remove_unread(READ)
    _write_after_reading(edit)
    return replace(edit.finished(), on_host=variables)


def _copied(
    edit: GraphEdit,
    used: UsedVariable,
    tensors: dict[str, str],
    controls: dict[str, Sequence[str]],
) -> None:
    """Put copies in the place of the variable's reads and writes.

    Args:
        edit: The step.
        used: How it uses the variable.
        tensors: Gets what is read instead of tensors that go.
        controls: Gets what is waited for instead of ops that go.
    """
    for gather in used.gathers:
        _gathered(edit, used, gather)
    current = _first_value(edit, used, tensors, controls)
    for number, write in enumerate(used.writes):
        current = _written(edit, used, write, current)
        is_last = number == len(used.writes) - 1
        if is_last:
            _write(edit, used, write, current)
        else:
            controls[write.name] = (op_of(current),)
        for read in used.reads[number + 1]:
            tensors[f"{read.name}:0"] = current
            controls[read.name] = ()


def _first_value(
    edit: GraphEdit,
    used: UsedVariable,
    tensors: dict[str, str],
    controls: dict[str, Sequence[str]],
) -> str:
    """The tensor of the value before the step; reads of it become one."""
    reads = used.reads[0]
    kinds = [write.type for write in used.writes]
    if reads:
        first, *others = reads
        name, rank, like = first.name, edit.rank[first.name], edit.nodes[first.name]
    elif kinds and kinds[0] != "AssignVariableOp":
        write, others = used.writes[0], []
        name, like = f"{write.name}/lms_old", edit.nodes[write.name]
        rank = (*edit.rank[write.name], 0)
    else:
        return ""
    op = Op(
        name=name,
        type=READ,
        outputs=(described(f"{name}:0", used.value.shape, used.value.dtype),),
        host_read=used.rows,
    )
    edit.add(op, made(READ, like.device), rank)
    for read in others:
        tensors[f"{read.name}:0"] = f"{name}:0"
        controls[read.name] = ()
    return f"{name}:0"


def _gathered(edit: GraphEdit, used: UsedVariable, gather: Op) -> None:
    op = replace(
        gather,
        type=GATHER,
        inputs=gather.inputs[1:],
        repeatable=False,
        host_read=used.rows,
    )
    device = edit.nodes[gather.name].device
    edit.add(op, made(GATHER, device), edit.rank[gather.name])


def _gather_rows(edit: GraphEdit) -> None:
    """Let rows that are gathered from what is read be read alone."""
    held = {op.outputs[0].name: op for op in edit.ops.values() if op.is_held}
    gathers = [op for op in edit.ops.values() if op.type == "GatherV2"]
    for op in gathers:
        read = held.get(op.inputs[0])
        if (
            read is None
            or op.fixed
            or not (gathers_known_rows(op) and _is_by_rows(edit, op))
        ):
            continue
        found = replace(
            op,
            type=GATHER,
            inputs=(op.inputs[1],),
            repeatable=False,
            host_read=read.host_read,
        )
        edit.add(found, made(GATHER, edit.nodes[op.name].device), edit.rank[op.name])


def _is_by_rows(edit: GraphEdit, gather: Op) -> bool:
    """Whether an index names whole rows."""
    if compat.attribute(edit.nodes[gather.name], "batch_dims").i:
        return False
    axis = edit.nodes.get(op_of(gather.inputs[2]))
    if axis is None or axis.op != "Const":
        return False
    return int(tf.make_ndarray(compat.attribute(axis, "value").tensor)) == 0


def _written(edit: GraphEdit, used: UsedVariable, write: Op, current: str) -> str:
    """The tensor of the value that a write makes."""
    kind = WRITES[write.type]
    if kind is None:
        return write.inputs[1]
    name = f"{write.name}/lms_value"
    op = Op(
        name=name,
        type=kind,
        inputs=(current, write.inputs[1]),
        controls=write.controls,
        outputs=(described(f"{name}:0", used.value.shape, used.value.dtype),),
        inplace=True,
        cheap=True,
    )
    node = made(kind, edit.nodes[write.name].device)
    node.attr["T"].type = used.value.dtype.as_datatype_enum
    edit.add(op, node, (*edit.rank[write.name], 1))
    return f"{name}:0"


def _write(edit: GraphEdit, used: UsedVariable, write: Op, value: str) -> None:
    op = Op(
        name=write.name,
        type=WRITE,
        inputs=(value,),
        controls=write.controls,
        host_write=used.rows,
    )
    device = edit.nodes[write.name].device
    edit.add(op, made(WRITE, device), (*edit.rank[write.name], 2))


def _write_after_reading(edit: GraphEdit) -> None:
    """Writes wait for all who read a copy of what they write over."""
    graph = edit.finished().graph
    reads: dict[str, list[Op]] = defaultdict(list)
    for op in graph.ops:
        if op.host_read is not None:
            reads[op.host_read.variable].append(op)
    for write in graph.ops:
        for rows in write.written_rows:
            for read in reads[rows.variable]:
                if read.host_read is None or not read.host_read.overlap(rows):
                    continue
                names = [n for n in readers_of(graph, read) if n != write.name]
                edit.wait(write.name, names)
                for name in names:  # no second run may come after the write
                    edit.ops[name] = replace(edit.ops[name], repeatable=False)
