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
from lms.tf.capture.host_variables import is_copied_at_reads, lies_on_host
from lms.tf.capture.specialising import TracedStep
from lms.tf.measure.devices import Device
from lms.tf.uninterrupted import uninterrupted

__all__ = ["settle_variables", "shared_bytes"]

# One part of so many more than all variables must be free, or they stay where they are.
_SPARE = 2

_Held = tuple[Any, Any]  # a variable's handle and its value on the host

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
    held: list[_Held] = []
    others: list[_Held] = []
    try:
        for handle, dtype in handles:
            value = _value(handle, dtype)
            if value is None:
                continue
            (others if id(handle) in replaced else held).append((handle, value))
            _settled[id(handle)] = handle
            nothing = compat.host_tensor(np.empty([0], dtype.as_numpy_dtype))
            tf.raw_ops.AssignVariableOp(resource=handle, value=nothing)
    finally:
        _put_back([*_by_size(held), *_by_size(others)], device)


def _replaced(step: TracedStep) -> set[int]:
    """Handles, by identity, of variables that get another tensor as their value.

    They wander: each new value lies where it was made. Side by side they leave one hole
    instead of many between variables that stay.
    """
    names = {op.writes[0] for op in step.graph.ops if new_value(op) is not None}
    return {id(handle) for n, (handle, _) in step.variables.items() if n in names}


def _by_size(held: Iterable[_Held]) -> list[_Held]:
    return sorted(held, key=lambda pair: -pair[1].nbytes)


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
        value = _read(handle, dtype)
        if value is None:
            continue
        size = value.shape.num_elements() * dtype.size
        needed += size
        try:
            is_copied = is_copied_at_reads(handle, dtype)
            address = None if is_copied else compat.address_of(value)
        except (ValueError, BufferError, RuntimeError, tf.errors.OpError):
            address = None  # of a type that cannot tell
        address = address or -len(by_address) - 1
        by_address[address] = max(size, by_address.get(address, 0))
    return needed, sum(by_address.values())


def _read(handle: Any, dtype: tf.DType) -> Any:
    """A variable's value; None if it has none."""
    try:
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
    except tf.errors.OpError:
        return None
    return value if value.shape.num_elements() else None


def _value(handle: Any, dtype: tf.DType) -> Any:
    """A variable's value on the host; None if there is none."""
    value = _read(handle, dtype)
    return None if value is None else compat.aligned(value.numpy())


def _put_back(held: Iterable[_Held], device: Device) -> None:
    """Give the variables their values; whatever happens, all that can be.

    TensorFlow waits ten seconds for memory that is not there, so after the first
    failure values are given as they are: NumPy's memory.

    Raises:
        OutOfMemoryError: If some could not be given back.
    """
    failed: list[_Held] = []
    error: BaseException | None = None
    with tf.device(device.full_name):
        for handle, value in held:
            try:
                _assign(
                    handle, compat.host_tensor(value) if error else tf.constant(value)
                )
            except BaseException as found:
                failed.append((handle, value))
                error = error or found
        lost = sum(not _is_given(handle, value) for handle, value in failed)
    if lost:
        raise OutOfMemoryError(
            f"variables must find room again once they are moved, got none for {lost}: "
            "they are empty. Load them from a checkpoint, and use a smaller model or "
            "fewer other tensors on the device."
        ) from error
    if error is not None and not isinstance(error, tf.errors.OpError):
        raise error


def _is_given(handle: Any, value: Any) -> bool:
    """Give a variable its value, and tell whether that worked."""
    try:
        _assign(handle, compat.host_tensor(value))
    except tf.errors.OpError:
        return False
    return True


def _assign(handle: Any, value: Any) -> None:
    tf.raw_ops.AssignVariableOp(resource=handle, value=value)
