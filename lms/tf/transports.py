"""How a tensor travels between device and host.

    host store (CPU, memory-limited)         device copy (accelerators)

    tensor ──> PyFunc put ─┐                 tensor ──> Identity @host
                           : host arrays                    │
    DeepCopy <── PyFunc get ┘                 reader <── Identity @host

A transport makes nodes; the rewriter wires them. Both have one op that ends when the
copy out has ended, and one that starts the copy in.
"""

import itertools
import threading
import weakref
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import tensorflow as tf

from lms.tf import compat

__all__ = ["DeviceCopy", "HostStore", "Transport"]


# EIGEN_MAX_ALIGN_BYTES of TensorFlow's builds (py_func.cc, NumpyTensorBuffer).
_ALIGNMENT = 64


class Transport(Protocol):
    """Makes the nodes of one tensor's travel."""

    def swap_out(
        self, name: str, source: str, spec: tf.TensorSpec, *, device: str, copies: int
    ) -> compat.NodeDef:
        """The op that copies `source` to the host; it ends when the copy has ended."""
        ...

    def swap_in(
        self, name: str, out: compat.NodeDef, spec: tf.TensorSpec, *, device: str
    ) -> list[compat.NodeDef]:
        """The ops that copy back: the first starts the copy, the last yields it."""
        ...

    def host_peak_bytes(self) -> int | None:
        """The most host bytes held so far, None where it is not known."""
        ...

    def release(self) -> None:
        """Give the host memory back."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCopy:
    """Swaps by TensorFlow's own send and receive, between two devices.

    The swap-in is an `Identity` on the host too: what starts the copy to the device is
    the host op that waits for the trigger. On the device it would start at once,
    because a receive has no control inputs.

    Args:
        host: Full name of the host device.
    """

    host: str

    def swap_out(
        self, name: str, source: str, spec: tf.TensorSpec, *, device: str, copies: int
    ) -> compat.NodeDef:
        """An `Identity` on the host that reads the tensor."""
        del device, copies
        return _node(name, "Identity", [source], self.host, T=spec.dtype)

    def swap_in(
        self, name: str, out: compat.NodeDef, spec: tf.TensorSpec, *, device: str
    ) -> list[compat.NodeDef]:
        """An `Identity` on the host; its readers on the device receive from it."""
        del device
        return [_node(name, "Identity", [out.name], self.host, T=spec.dtype)]

    def host_peak_bytes(self) -> int | None:
        """Unknown: TensorFlow's host allocator holds the tensors."""
        return None

    def release(self) -> None:
        """Nothing is held between steps."""


@dataclass(slots=True)
class _Held:
    buffer: np.ndarray
    shape: tuple[int, ...]
    dtype: np.dtype
    reads_left: int
    being_read: int = 0


@dataclass(slots=True)
class HostStore:
    """Swaps by copies into NumPy arrays, outside of TensorFlow's allocator.

    Buffers are used again from step to step, by size: fresh pages cost more than the
    copy. A buffer is free when TensorFlow has dropped the last array read from it.
    """

    _held: dict[int, _Held] = field(default_factory=dict)
    _free: dict[int, list[np.ndarray]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _functions: list[object] = field(default_factory=list)
    _tokens: dict[str, tuple[int, str]] = field(default_factory=dict)
    _allocated: int = 0
    _peak: int = 0
    _keys: itertools.count = field(default_factory=itertools.count)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def swap_out(
        self, name: str, source: str, spec: tf.TensorSpec, *, device: str, copies: int
    ) -> compat.NodeDef:
        """A host function that copies the tensor into the store."""
        key = next(self._keys)
        put, get = partial(self._put, key, copies), partial(self._get, key)
        self._functions += [put, get]
        node = _node(name, "PyFunc", [source], device)
        node.attr["token"].s = compat.register_host_function(put).encode()
        _types(node, "Tin", [spec.dtype])
        _types(node, "Tout", [])
        self._tokens[name] = (key, compat.register_host_function(get))
        return node

    def swap_in(
        self, name: str, out: compat.NodeDef, spec: tf.TensorSpec, *, device: str
    ) -> list[compat.NodeDef]:
        """A host function that hands the array out, and a copy into the allocator.

        TensorFlow wraps the array's memory as it is: without `DeepCopy` its bytes would
        not be the device's, and the budget would be cheated.
        """
        get = _node(f"{name}/get", "PyFunc", [f"^{out.name}"], device)
        get.attr["token"].s = self._tokens[out.name][1].encode()
        _types(get, "Tin", [])
        _types(get, "Tout", [spec.dtype])
        return [get, _node(name, "DeepCopy", [get.name], device, T=spec.dtype)]

    def host_peak_bytes(self) -> int | None:
        """The most ever allocated: buffers are kept for the next step."""
        return self._peak

    def release(self) -> None:
        """Drop all buffers."""
        with self._lock:
            self._held.clear()
            self._free.clear()
            self._allocated = 0

    def _put(self, key: int, copies: int, array: np.ndarray) -> list[object]:
        buffer = self._take(array.nbytes)
        np.copyto(buffer.view(array.dtype).reshape(array.shape), array)
        with self._lock:
            self._held[key] = _Held(buffer, array.shape, array.dtype, copies)
        return []

    def _get(self, key: int) -> np.ndarray:
        with self._lock:
            held = self._held[key]
            held.reads_left -= 1
            held.being_read += 1
            if held.reads_left == 0:
                del self._held[key]
        array = held.buffer.view(held.dtype).reshape(held.shape)
        weakref.finalize(array, self._was_read, held)
        return array

    def _take(self, size: int) -> np.ndarray:
        with self._lock:
            if self._free[size]:
                return self._free[size].pop()
            self._allocated += size
            self._peak = max(self._peak, self._allocated)
        return _aligned(size)

    def _was_read(self, held: _Held) -> None:
        """TensorFlow dropped an array; after the last one the buffer is free."""
        with self._lock:
            held.being_read -= 1
            if held.reads_left == 0 and held.being_read == 0:
                self._free[held.buffer.nbytes].append(held.buffer)


def _aligned(size: int) -> np.ndarray:
    """Bytes at an address that TensorFlow wraps; it would copy any other."""
    room = np.empty(size + _ALIGNMENT, np.uint8)
    offset = -room.ctypes.data % _ALIGNMENT
    return room[offset : offset + size]


def _node(
    name: str, op: str, inputs: list[str], device: str, **types: tf.DType
) -> compat.NodeDef:
    node = compat.NodeDef(name=name, op=op, input=inputs, device=device)
    for key, dtype in types.items():
        node.attr[key].type = dtype.as_datatype_enum
    return node


def _types(node: compat.NodeDef, key: str, dtypes: list[tf.DType]) -> None:
    node.attr[key].list.SetInParent()
    node.attr[key].list.type.extend(dtype.as_datatype_enum for dtype in dtypes)
