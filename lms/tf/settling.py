"""Variables side by side in the device's memory, before a step is planned around them.

    |v|..|v|....|v|.|v|......|        settle        |v|v|v|v|.................|

Two things are in the way of a plan otherwise. What is free lies in pieces between
variables, in chunks that may be up to twice as large as they need be; how large a
tensor fits there is not known. And slots of an optimizer that begin as the same zeros
share one buffer until they are written: in the first step each would take its own, in
the middle of what is planned.

Known weakness: for a moment the variables are on the host alone, and whoever else
reads them then finds nothing in them.
"""

from collections.abc import Iterable
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import tensorflow as tf

from lms.tf.devices import Device
from lms.tf.specialising import TracedStep

__all__ = ["settle_variables"]

_ALIGNMENT = 64  # bytes; Eigen's, with AVX-512

_Held = tuple[Any, Any]  # a variable's handle and its value on the host

# Once is enough, and plans rely on where variables lie. By the handle's identity.
_settled: WeakValueDictionary[int, Any] = WeakValueDictionary()


def settle_variables(step: TracedStep, device: Device) -> None:
    """Move each captured variable to memory of its own, large ones first; values stay.

    Variables on other devices, of text, that are empty, or moved before are left. All
    are where there might be no room for them to come back to.

    Args:
        step: The traced step.
        device: The device whose memory is planned.
    """
    handles = [
        (handle, dtype)
        for handle, dtype in step.variables.values()
        if dtype not in (tf.string, tf.variant, tf.resource)
        and handle.device == device.full_name
        and _settled.get(id(handle)) is not handle
    ]
    needed = sum(_bytes(handle, dtype) for handle, dtype in handles)
    if device.limit and (device.memory.current_bytes or 0) + needed > device.limit:
        return
    held: list[_Held] = []
    try:
        for handle, dtype in handles:
            value = _value(handle, dtype)
            if value is None:
                continue
            held.append((handle, value))
            _settled[id(handle)] = handle
            nothing = tf.zeros([0], dtype)
            tf.raw_ops.AssignVariableOp(resource=handle, value=nothing)
    finally:
        _put_back(held, device.full_name)


def _bytes(handle: Any, dtype: tf.DType) -> int:
    try:
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
    except tf.errors.OpError:
        return 0
    return value.shape.num_elements() * dtype.size


def _value(handle: Any, dtype: tf.DType) -> Any:
    """A variable's value on the host; None if there is none."""
    try:
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
    except tf.errors.OpError:
        return None
    return _on_host(value.numpy()) if value.shape.num_elements() else None


def _on_host(value: Any) -> Any:
    """A copy in NumPy memory that TensorFlow can take as it is, being aligned.

    Otherwise `tf.constant` copies, and where there is no room for that it crashes.
    """
    memory = np.empty(value.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    own = memory[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
    own[...] = value
    return own


def _put_back(held: Iterable[_Held], device: str) -> None:
    """Give the variables their values; whatever happens, all that can be.

    TensorFlow waits ten seconds for memory that is not there, so after the first
    failure values are given as they are: NumPy's memory on a CPU.
    """
    failed: list[_Held] = []
    error: BaseException | None = None
    with tf.device(device):
        for handle, value in sorted(held, key=lambda pair: -pair[1].nbytes):
            try:
                _assign(handle, value, copy=error is None)
            except BaseException as found:
                failed.append((handle, value))
                error = error or found
        for handle, value in failed:
            _assign(handle, value, copy=False)
    if error is not None and not isinstance(error, tf.errors.OpError):
        raise error


def _assign(handle: Any, value: Any, *, copy: bool) -> None:
    tensor = tf.constant(value)
    if copy and "CPU" in handle.device:
        # NumPy's memory may be taken as it is: the copy is the device's own.
        tensor = tf.raw_ops.DeepCopy(x=tensor)
    tf.raw_ops.AssignVariableOp(resource=handle, value=tensor)
