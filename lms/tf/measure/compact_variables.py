"""Variables side by side in the device's memory, before a step is planned around them.

    |v|..|v|....|v|.|v|......|        settle        |v|v|v|v|.................|

Two things are in the way of a plan otherwise. What is free lies in pieces between
variables; how large a tensor fits there is not known. And slots of an optimizer that
begin as the same zeros share one buffer until they are written: in the first step each
would take its own, in the middle of what is planned.

Known weakness: for a moment the variables are on the host alone, and whoever else
reads them then finds nothing in them.
"""

from collections.abc import Iterable
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import tensorflow as tf

from lms.errors import OutOfMemoryError
from lms.ir.liveness import new_value
from lms.tf import compat
from lms.tf.lowering import TracedStep
from lms.tf.measure.devices import Device
from lms.tf.passes.host_variables import address_of, lies_on_host
from lms.tf.passes.write_order import KeptVariables
from lms.tf.uninterrupted import uninterrupted
from lms.units import Bytes

__all__ = ["settle_variables", "shared_bytes"]

# One part of so many more than all variables must be free, or they stay where they are.
_SPARE = 2

# Once is enough, and plans rely on where variables lie. By the handle's identity.
_settled: WeakValueDictionary[int, Any] = WeakValueDictionary()


@uninterrupted()
def settle_variables(step: TracedStep, device: Device) -> None:
    """Move each captured variable to memory of its own; values stay.

    Large ones come first, and last those that the step gives another tensor.

    Variables on the host or other devices, of text, that are empty, or moved before are
    left. All are where there might be no room for them to come back to: for a moment
    they are on the host alone.

    Args:
        step: The traced step.
        device: The device whose memory is planned.
    """
    handles = [
        (handle, dtype)
        for handle, dtype in _on_device(step, device)
        if _settled.get(id(handle)) is not handle
    ]
    needed, there = _needed_and_there(handles)
    now = device.memory.current_bytes or 0
    if device.limit and now - there + needed + needed // _SPARE > device.limit:
        return
    replaced = _replaced(step)
    found = [pair for pair in handles if _size(*pair)]
    order = sorted(found, key=lambda pair: (id(pair[0]) in replaced, -_size(*pair)))
    kept = KeptVariables(tuple(order))
    values = [np.array(value) for value in kept.values()]  # small ones leave too
    try:
        for handle, dtype in order:
            _settled[id(handle)] = handle
            nothing = compat.host_tensor(np.empty([0], dtype.as_numpy_dtype))
            tf.raw_ops.AssignVariableOp(resource=handle, value=nothing)
    finally:
        try:
            kept.put_back(values)
        except Exception as error:
            raise OutOfMemoryError(
                "variables must find room again once they are moved, got none for "
                "some: they are empty. Load them from a checkpoint, and use a smaller "
                "model or fewer other tensors on the device."
            ) from error


def _replaced(step: TracedStep) -> set[int]:
    """Handles, by identity, of variables that get another tensor as their value.

    They wander: each new value lies where it was made. Side by side they leave one hole
    instead of many between variables that stay.
    """
    names = {op.writes[0] for op in step.graph.ops if new_value(op) is not None}
    return {id(handle) for n, (handle, _) in step.variables.items() if n in names}


def shared_bytes(step: TracedStep, device: Device) -> int:
    """Bytes that captured variables still need: those that share memory with others.

    Each takes memory of its own when it is first written.

    Args:
        step: The traced step.
        device: The device whose memory is planned.
    """
    needed, there = _needed_and_there(_on_device(step, device))
    return needed - there


def _on_device(step: TracedStep, device: Device) -> list[tuple[Any, tf.DType]]:
    """Handles and types of captured variables of numbers that lie on a device."""
    return [
        (handle, dtype)
        for handle, dtype in step.variables.values()
        if dtype not in (tf.string, tf.variant, tf.resource)
        and handle.device == device.full_name
        and not lies_on_host(handle)
    ]


def _needed_and_there(handles: Iterable[tuple[Any, tf.DType]]) -> tuple[int, int]:
    """Bytes of variables if each has its own memory, and of the memory they have."""
    needed, by_address = 0, dict[int, int]()
    for handle, dtype in handles:
        size = _size(handle, dtype)
        if not size:
            continue
        needed += size
        try:
            address = address_of(handle, dtype)
        except (ValueError, BufferError, RuntimeError, tf.errors.OpError):
            address = -len(by_address) - 1  # of a type that cannot tell
        by_address[address] = max(size, by_address.get(address, 0))
    return needed, sum(by_address.values())


def _size(handle: Any, dtype: tf.DType) -> Bytes:
    """Bytes of a variable's value; 0 if it has none."""
    try:
        shape = tf.raw_ops.VariableShape(input=handle)
    except tf.errors.OpError:
        return 0
    return int(np.prod(shape)) * dtype.size
