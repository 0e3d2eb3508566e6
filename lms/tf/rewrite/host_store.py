"""The transport of CPU devices: copies to and from NumPy arrays of the host.

Over an emulated link a copy is made at once, and one more host function waits until the
link would have made it. It holds a thread, so the rewriter lets it run where the step
would wait anyway; then the step needs no more threads than without a link. With one
thread a copy would begin late, since ops that are ready go first: those that are
ordered wait until it has begun.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np
import tensorflow as tf

from lms.machine.emulated_link import EmulatedLink, PendingCopy, link_rates
from lms.tf import compat
from lms.tf.rewrite.transports import CopyOps, made_node
from lms.units import Seconds

__all__ = ["HostStore", "Observer", "as_bytes", "observed_copies", "room_bytes"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Underway:
    """A copy on the emulated link."""

    tensor: str
    size: int
    to_device: bool
    pending: PendingCopy


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
    _held: dict[str, _Held] = field(default_factory=dict)
    _free: dict[int, list[np.ndarray]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _functions: list[object] = field(default_factory=list)
    _copies: dict[str, tuple[str, int]] = field(default_factory=dict)
    _underway: dict[str, _Underway] = field(default_factory=dict)
    _allocated: int = 0
    _peak: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def swap_out(
        self, name: str, source: str, spec: tf.TensorSpec, *, device: str, copies: int
    ) -> CopyOps:
        """A host function that copies the tensor into the store."""
        self._copies[name] = source, copies
        put = self.call(name, [source], [spec.dtype], device, partial(self._put, name))
        if self._link is None:
            return CopyOps(nodes=(put,), start=put, end=put)
        # It reads the tensor too, which so keeps its room until the copy has ended.
        ended = self.call(
            f"{name}/ended",
            [source, f"^{put.name}"],
            [spec.dtype],
            device,
            partial(self._wait, name),
        )
        return CopyOps(
            nodes=(put, ended), start=put, end=ended, settled=put, wait=ended
        )

    def swap_in(
        self, name: str, out: CopyOps, spec: tf.TensorSpec, *, device: str
    ) -> CopyOps:
        """Room on the device, a host function that fills it, and the filled tensor."""
        return self.arriving(
            name,
            [f"^{out.end.name}"],
            spec,
            device=device,
            get=partial(self._get, out.start.name, name),
        )

    def arriving(
        self,
        name: str,
        after: Sequence[str],
        spec: tf.TensorSpec,
        *,
        device: str,
        get: Callable[..., list[object]],
        chosen_by: Sequence[tuple[str, tf.DType]] = (),
    ) -> CopyOps:
        """The ops of a copy to the device.

        Args:
            name: The name of the copy.
            after: Control inputs that it waits for.
            spec: What arrives.
            device: Where it arrives.
            get: Carries the copy, under its name, into the array that it is given.
            chosen_by: Names and types of tensors that say what is copied; `get` is
                given them too.
        """
        shape = compat.constant(f"{name}/shape", spec.shape.as_list(), tf.int32)
        shape.device = device
        room = made_node(
            f"{name}/room", "Empty", [shape.name, *after], device, dtype=spec.dtype
        )
        read = self.call(
            f"{name}/get",
            [room.name, *(source for source, _ in chosen_by)],
            [spec.dtype, *(dtype for _, dtype in chosen_by)],
            device,
            get,
        )
        nodes, settled, wait = (shape, room, read), room, None
        if self._link is not None:
            wait = self.call(
                f"{name}/arrived",
                [f"^{read.name}"],
                [],
                device,
                partial(self._wait, name),
            )
            nodes, settled = (*nodes, wait), read
        filled = made_node(
            name, "Identity", [room.name, f"^{nodes[-1].name}"], device, T=spec.dtype
        )
        return CopyOps(
            nodes=(*nodes, filled),
            start=room,
            end=filled,
            settled=settled,
            wait=wait,
        )

    def host_peak_bytes(self) -> int:
        """The most ever allocated: buffers are kept for the next step."""
        return self._peak

    def release(self) -> None:
        """Drop all buffers."""
        with self._lock:
            self._held.clear()
            self._underway.clear()
            if self._link is not None:
                self._link.cancel()
            self._free.clear()
            self._allocated = 0

    def call(
        self,
        name: str,
        inputs: list[str],
        types: list[tf.DType],
        device: str,
        function: Callable[..., list[object]],
    ) -> compat.NodeDef:
        """An op that calls a host function, which lives as long as this store."""
        self._functions.append(function)
        node = made_node(name, "PyFunc", inputs, device)
        node.attr["token"].s = compat.register_host_function(function).encode()
        _types(node, "Tin", types)
        _types(node, "Tout", [])
        return node

    def _put(self, out: str, array: np.ndarray) -> list[object]:
        tensor, copies = self._copies[out]
        buffer = self._take(array.nbytes)
        self.carry(out, tensor, buffer, as_bytes(array), to_device=False)
        with self._lock:
            self._held[out] = _Held(buffer, copies)
        return []

    def _get(self, out: str, name: str, room: np.ndarray) -> list[object]:
        tensor = self._copies[out][0]
        held = self._held[out]
        self.carry(name, tensor, room_bytes(room), held.buffer, to_device=True)
        with self._lock:
            held.reads_left -= 1
            if held.reads_left == 0:
                del self._held[out]
                self._free[held.buffer.nbytes].append(held.buffer)
        return []

    def end(self, name: str) -> None:
        """Wait until a copy of this name has ended."""
        if name in self._underway:
            self._wait(name)

    def _wait(self, name: str, *_: np.ndarray) -> list[object]:
        copy = self._underway.pop(name)
        begun, ended = copy.pending.wait()
        _tell(copy.to_device, copy.tensor, begun, ended, copy.size)
        return []

    def carry(
        self,
        name: str,
        tensor: str,
        into: np.ndarray,
        source: np.ndarray,
        *,
        to_device: bool,
    ) -> None:
        """Copy bytes; over a link it is underway from now on."""
        copy = partial(np.copyto, into, source)
        self._carried(name, tensor, into.nbytes, copy, to_device=to_device)

    def _carried(
        self,
        name: str,
        tensor: str,
        size: int,
        copy: Callable[[], None],
        *,
        to_device: bool,
    ) -> None:
        if self._link is None:
            begun = time.monotonic()
            copy()
            _tell(to_device, tensor, begun, time.monotonic(), size)
            return
        self._underway[name] = _Underway(
            tensor=tensor,
            size=size,
            to_device=to_device,
            pending=self._link.begin(size, copy, to_device=to_device),
        )

    def _take(self, size: int) -> np.ndarray:
        with self._lock:
            if self._free[size]:
                return self._free[size].pop()
            self._allocated += size
            self._peak = max(self._peak, self._allocated)
        return np.empty(size, np.uint8)


def _tell(
    to_device: bool,  # noqa: FBT001 - as observers take it
    tensor: str,
    begun: Seconds,
    ended: Seconds,
    size: int,
) -> None:
    for observer in tuple(_observers):
        observer(to_device, tensor, begun, ended, size)


def room_bytes(room: np.ndarray) -> np.ndarray:
    """The bytes of a tensor that a host function is to fill."""
    if room.flags.owndata:
        raise RuntimeError("a host function must see the device's memory itself")
    return as_bytes(room)


def as_bytes(array: np.ndarray) -> np.ndarray:
    """The same memory as bytes; NumPy has no copies for some of TensorFlow's types."""
    return array.reshape(-1).view(np.uint8)


def _types(node: compat.NodeDef, key: str, dtypes: list[tf.DType]) -> None:
    node.attr[key].list.SetInParent()
    node.attr[key].list.type.extend(dtype.as_datatype_enum for dtype in dtypes)
