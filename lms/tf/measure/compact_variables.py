"""Compact variables in the device's memory before a step is planned around them.

    |v|..|v|....|v|.|v|......|       compact        |v|v|v|v|.................|

Otherwise variables fragment the free memory, and the largest tensor that fits is not
known. And slots of an optimizer that begin as equal zeros share one buffer until they
are written: in the first step each slot would take its own, amid the planned memory.

Known weakness: for a moment the variables are on the host alone, and another reader
finds nothing in them.
"""

from collections.abc import Iterable
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import tensorflow as tf

from lms.errors import OutOfMemoryError
from lms.tf import compat
from lms.tf.lowering import TracedStep
from lms.tf.measure.devices import Device
from lms.tf.passes.host_variables import address_of, lies_on_host
from lms.tf.undo import KeptVariables
from lms.tf.uninterrupted import uninterrupted
from lms.units import Bytes

__all__ = ["settle_variables", "shared_bytes"]

# Variables are compacted only if 1/2 of their bytes stays free beside them.
_SPARE = 2

# Handles of compacted variables, by identity: plans rely on addresses, so once only.
_settled: WeakValueDictionary[int, Any] = WeakValueDictionary()


@uninterrupted()
def settle_variables(step: TracedStep, device: Device) -> None:
    """Move each variable to memory of its own, the largest first; values stay.

    Variables on the host or other devices, of text, empty, or moved before are left.
    Nothing is moved where variables might not fit again: for a moment all values are on
    the host alone.
    """
    handles = [
        (handle, dtype)
        for handle, dtype in _on_device(step, device)
        if _settled.get(id(handle)) is not handle
    ]
    needed, there = _needed_and_there(handles)
    now = device.current_bytes or 0
    if device.limit and now - there + needed + needed // _SPARE > device.limit:
        return
    found = [pair for pair in handles if _size(*pair)]
    order = sorted(found, key=lambda pair: -_size(*pair))
    kept = KeptVariables(tuple(order))
    values = [np.array(value) for value in kept.values()]  # small values leave, too
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
                "Could not move some variables back to the device: they are empty now. "
                "Load them from a checkpoint, and use a smaller model or fewer other "
                "tensors on the device."
            ) from error


def shared_bytes(step: TracedStep, device: Device) -> int:
    """Bytes that captured variables with shared memory will need of their own.

    A variable takes its own memory when it is first written.
    """
    needed, there = _needed_and_there(_on_device(step, device))
    return needed - there


def _on_device(step: TracedStep, device: Device) -> list[tuple[Any, tf.DType]]:
    """Handles and types of captured numeric variables on a device."""
    return [
        (handle, dtype)
        for handle, dtype in step.variables.values()
        if dtype not in (tf.string, tf.variant, tf.resource)
        and handle.device == device.full_name
        and not lies_on_host(handle)
    ]


def _needed_and_there(handles: Iterable[tuple[Any, tf.DType]]) -> tuple[int, int]:
    """(bytes of variables with memory of their own each, bytes of their memory now)."""
    needed, by_address = 0, dict[int, int]()
    for handle, dtype in handles:
        size = _size(handle, dtype)
        if not size:
            continue
        needed += size
        try:
            address = address_of(handle, dtype)
        except (ValueError, BufferError, RuntimeError, tf.errors.OpError):
            address = -len(by_address) - 1  # of a type without an address
        by_address[address] = max(size, by_address.get(address, 0))
    return needed, sum(by_address.values())


def _size(handle: Any, dtype: tf.DType) -> Bytes:
    """Bytes of a variable's value; 0 if it has none."""
    try:
        shape = tf.raw_ops.VariableShape(input=handle)
    except tf.errors.OpError:
        return 0
    return int(np.prod(shape)) * dtype.size
