"""Variables that live on the host: their values are NumPy's memory.

    variable ──> its tensor *is* the array <── a planned step's copies, both ways

So between steps everybody sees true values without a copy: `get_weights`, checkpoints,
evaluation. Whoever assigns a new value (`load_weights`) makes the variable leave its
array: then the array gets that value, and is the variable's again. Where others assign
without the variable's methods, as `tf.train.Checkpoint` does, that is done before the
next step.

Keras makes a tensor of an array before it assigns it. Where a device that is emulated
has no room for that, the process dies (`NdarrayToTensor` in ndarray_tensor.cc): so the
array's own memory is the tensor.

What a step writes over is kept until it has ended, so that one which fails leaves all
as it was.

Known weaknesses: CPUs only, emulated devices too. A tensor that was read from such a
variable, and is held without a copy, changes with the next step.
"""

import atexit
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, wraps
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lms.errors import OutOfMemoryError
from lms.ir.graph import HostRows
from lms.tf import compat
from lms.units import KIB, format_bytes

__all__ = [
    "LEAST",
    "HostVariable",
    "Journal",
    "check_room",
    "host_variable",
    "move",
    "take_arrays",
    "to_device",
]

# Smaller variables stay on the device: a copy takes longer than they are worth.
LEAST = 64 * KIB

_TYPES = (tf.float32, tf.float64, tf.float16, tf.bfloat16)

_ASSIGNS = ("assign", "assign_add", "assign_sub")

_known: dict[int, "HostVariable"] = {}  # by the identity of their handles


@dataclass(frozen=True, slots=True, eq=False)
class HostVariable:
    """A variable whose value is an array of the host.

    Args:
        handle: A weak reference to the variable's handle.
        array: Its value.
    """

    handle: Any
    array: np.ndarray

    def rows(self, rows: HostRows) -> np.ndarray:
        """Some of its rows, without a copy."""
        return self.array[rows.first : rows.end] if self.array.ndim else self.array

    def settle(self) -> None:
        """Take a value that somebody else has assigned meanwhile."""
        handle = self.handle()
        if handle is None:
            return
        value = _read(handle, self.array.dtype)
        if compat.address_of(value) == self.array.ctypes.data:
            return
        np.copyto(self.array, value.numpy())
        del value
        _show(handle, self.array)


@dataclass(slots=True)
class Journal:
    """What a step has written over, in the order of the writes."""

    _old: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    _buffers: dict[int, np.ndarray] = field(default_factory=dict)
    _most: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, part: np.ndarray) -> None:
        """Keep what is there now; the part is going to be written."""
        key = part.ctypes.data
        with self._lock:
            buffer = self._buffers.get(key)
        if buffer is None:
            buffer = np.empty_like(part)
        np.copyto(buffer, part)
        with self._lock:
            self._buffers[key] = buffer
            self._old.append((part, buffer))

    def forget(self) -> None:
        """The step has ended: what it has written stays."""
        self._old.clear()

    def undo(self) -> None:
        """Put back what was there before the step."""
        while self._old:
            part, old = self._old.pop()
            np.copyto(part, old)

    @property
    def most_bytes(self) -> int:
        """The most bytes of the buffers, which are kept from step to step."""
        return max(self._most, sum(b.nbytes for b in self._buffers.values()))

    def release(self) -> None:
        """Give the buffers back."""
        self.forget()
        self._most = self.most_bytes
        self._buffers.clear()


def host_variable(handle: Any) -> HostVariable | None:
    """The variable behind a handle, if it lives on the host."""
    found = _known.get(id(handle))
    return found if found is not None and found.handle() is handle else None


def to_device(handle: Any, because: str) -> None:
    """Let a variable that lives on the host live on the device again.

    Args:
        handle: Its handle.
        because: Why, for the message.

    Raises:
        OutOfMemoryError: If the device has no room for it; it stays where it is.
    """
    found = host_variable(handle)
    if found is None:
        return
    found.settle()
    try:
        own = tf.raw_ops.DeepCopy(x=compat.host_tensor(found.array))
    except tf.errors.ResourceExhaustedError as error:
        raise OutOfMemoryError(
            f"a variable of shape {found.array.shape} must find room on the device, "
            f"{format_bytes(found.array.nbytes)}, because {because}, got none. Use a "
            "smaller one, or a device with more memory."
        ) from error
    tf.raw_ops.AssignVariableOp(resource=handle, value=own)
    del _known[id(handle)]


def move(variable: Any) -> None:
    """Let a large variable of numbers live on the host; others stay.

    Args:
        variable: A `tf.Variable`.
    """
    handle, dtype, shape = variable.handle, variable.dtype, variable.shape
    if dtype not in _TYPES or not shape.is_fully_defined():
        return
    if shape.num_elements() * dtype.size < LEAST or host_variable(handle) is not None:
        return
    value = _read(handle, dtype)
    array = compat.aligned(np.array(value))
    del value
    key = id(handle)
    _known[key] = HostVariable(
        weakref.ref(handle, lambda _: _known.pop(key, None)), array
    )
    _show(handle, array)
    for name in _ASSIGNS:
        setattr(variable, name, _settling(variable, name))


def check_room(handles: Sequence[Any]) -> None:
    """See whether the device has room for variables that live on the host.

    Args:
        handles: Theirs, all of variables on the host.

    Raises:
        OutOfMemoryError: If it has not.
    """
    copies: list[Any] = []
    arrays = [found.array for h in handles if (found := host_variable(h)) is not None]
    try:
        copies.extend(
            tf.raw_ops.DeepCopy(x=compat.host_tensor(array)) for array in arrays
        )
    except tf.errors.ResourceExhaustedError as error:
        size = format_bytes(sum(array.nbytes for array in arrays))
        raise OutOfMemoryError(
            f"{len(arrays)} variables on the host must find room on the device, "
            f"{size}, got room for {len(copies)}: the step uses them in loops or "
            "branches (gradient accumulation, loss scaling, `ema_overwrite_frequency`) "
            "or writes some of their rows (embeddings with SGD, RMSprop, Adagrad, "
            "Adadelta or Adafactor). Use Adam, and mixed_bfloat16, which scales no "
            "loss; or a device with more memory."
        ) from error


@cache
def take_arrays() -> None:
    """Let Keras's variables on the host take arrays as they are, from now on."""
    own: Any = keras.Variable.assign

    @wraps(own)
    def assign(variable: Any, value: Any) -> Any:
        return own(variable, _as_tensor(variable.value, value))

    setattr(keras.Variable, "assign", assign)  # noqa: B010 - as Keras has it


def _as_tensor(variable: Any, value: Any) -> Any:
    """An array as a tensor, if it is for a variable on the host."""
    handle = getattr(variable, "handle", None)
    if handle is None or not tf.executing_eagerly() or host_variable(handle) is None:
        return value
    if tf.is_tensor(value) or not hasattr(value, "__array__"):
        return value
    return compat.host_tensor(np.asarray(value, variable.dtype.as_numpy_dtype))


def _settling(variable: Any, name: str) -> Callable[..., Any]:
    """A method of a variable that gives its array back to it."""
    own, owner = getattr(type(variable), name), weakref.ref(variable)

    def assign(*args: Any, **kwargs: Any) -> Any:
        variable: Any = owner()
        result = own(variable, *args, **kwargs)
        found = host_variable(variable.handle) if tf.executing_eagerly() else None
        if found is not None:
            found.settle()
        return result

    return assign


def _read(handle: Any, dtype: Any) -> Any:
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


def _show(handle: Any, array: np.ndarray) -> None:
    """Let an array's memory be a variable's value."""
    value = compat.host_tensor(array)
    tf.raw_ops.AssignVariableOp(resource=handle, value=value)


@atexit.register
def _let_go() -> None:
    """TensorFlow must not free NumPy's memory when Python has ended."""
    for found in tuple(_known.values()):
        handle = found.handle()
        if handle is not None:
            nothing = np.empty([0], found.array.dtype)
            _show(handle, nothing)
    _known.clear()
