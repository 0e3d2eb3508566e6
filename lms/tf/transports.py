"""How a tensor travels between device and host.

    host store (CPU, memory-limited)         device copy (accelerators)

    tensor ──> PyFunc put ─┐                 tensor ──> Identity @host
                           : host arrays                    │
    Empty ──> PyFunc get <─┘                  reader <── Identity @host
      └──> Identity, after get

A transport makes nodes; the rewriter wires them. Both have one op that ends when the
copy out has ended, and one that starts the copy in.
"""

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Protocol

import numpy as np
import tensorflow as tf

from lms.link import EmulatedLink, link_rates
from lms.tf import compat

__all__ = ["DeviceCopy", "HostStore", "Observer", "Transport", "observed_copies"]


class Transport(Protocol):
    """Makes the nodes of one tensor's travel.

    `takes_room_first` says whether the op that starts a copy in takes room on the
    device, and ends before the copy does.
    """

    takes_room_first: ClassVar[bool]

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

    takes_room_first: ClassVar[bool] = False

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


Observer = Callable[[bool, str, float, float, int], None]

_observers: list[Observer] = []


@contextmanager
def observed_copies(observer: Observer) -> Iterator[None]:
    """Within it, every host store of the process tells of its copies, for profilers.

    Args:
        observer: Called after each copy with whether it went to the device, its tensor,
            start and end on `time.monotonic`, and bytes. It may be called by several
            threads at once.
    """
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


def _emulated_link() -> EmulatedLink | None:
    rates = link_rates()
    return None if rates is None else EmulatedLink(rates)


@dataclass(slots=True)
class _Held:
    buffer: np.ndarray
    reads_left: int


@dataclass(slots=True)
class HostStore:
    """Swaps by copies into NumPy arrays, outside of TensorFlow's allocator.

    On the way back the device's room is taken first, as on a GPU: a host function gets
    an empty tensor and fills its memory. Readers read that tensor, not what the
    function returns, because TensorFlow gives an array's memory back late (py_func.cc,
    `DelayedNumpyDecref`).

    Buffers are used again from step to step, by size: fresh pages cost more than the
    copy. Copies are slowed to the emulated link of this process, if there is one.
    """

    takes_room_first: ClassVar[bool] = True

    _link: EmulatedLink | None = field(default_factory=_emulated_link)
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
        put = partial(self._put, key, source, copies)
        get = partial(self._get, key, source)
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
        """Room on the device, a host function that fills it, and the filled tensor."""
        ended = f"^{out.name}"
        shape = compat.constant(f"{name}/shape", spec.shape.as_list(), tf.int32)
        shape.device = device
        room = _node(
            f"{name}/room", "Empty", [shape.name, ended], device, dtype=spec.dtype
        )
        get = _node(f"{name}/get", "PyFunc", [room.name], device)
        get.attr["token"].s = self._tokens[out.name][1].encode()
        _types(get, "Tin", [spec.dtype])
        _types(get, "Tout", [])
        filled = _node(
            name, "Identity", [room.name, f"^{get.name}"], device, T=spec.dtype
        )
        return [room, shape, get, filled]

    def host_peak_bytes(self) -> int | None:
        """The most ever allocated: buffers are kept for the next step."""
        return self._peak

    def release(self) -> None:
        """Drop all buffers."""
        with self._lock:
            self._held.clear()
            self._free.clear()
            self._allocated = 0

    def _put(
        self, key: int, tensor: str, copies: int, array: np.ndarray
    ) -> list[object]:
        buffer = self._take(array.nbytes)
        self._carry(tensor, buffer, _as_bytes(array), to_device=False)
        with self._lock:
            self._held[key] = _Held(buffer, copies)
        return []

    def _get(self, key: int, tensor: str, room: np.ndarray) -> list[object]:
        if room.flags.owndata:
            raise RuntimeError("a host function must see the device's memory itself")
        held = self._held[key]
        self._carry(tensor, _as_bytes(room), held.buffer, to_device=True)
        with self._lock:
            held.reads_left -= 1
            if held.reads_left == 0:
                del self._held[key]
                self._free[held.buffer.nbytes].append(held.buffer)
        return []

    def _carry(
        self, tensor: str, into: np.ndarray, source: np.ndarray, *, to_device: bool
    ) -> None:
        """Copy, at the speed of the link."""
        begun = time.monotonic()
        if self._link is None:
            np.copyto(into, source)
        else:
            copy = partial(np.copyto, into, source)
            begun = self._link.carry(into.nbytes, copy, to_device=to_device)
        ended = time.monotonic()
        for observer in tuple(_observers):
            observer(to_device, tensor, begun, ended, into.nbytes)

    def _take(self, size: int) -> np.ndarray:
        with self._lock:
            if self._free[size]:
                return self._free[size].pop()
            self._allocated += size
            self._peak = max(self._peak, self._allocated)
        return np.empty(size, np.uint8)


def _as_bytes(array: np.ndarray) -> np.ndarray:
    """The same memory as bytes; NumPy has no copies for some of TensorFlow's types."""
    return array.reshape(-1).view(np.uint8)


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
