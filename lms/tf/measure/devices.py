"""The device that memory is planned for: its limit and its allocator.

The device is this process's first GPU, the GPU of a pipeline's stage, or each GPU that
a step uses. Without a GPU nothing is planned.
"""

import math
import os
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import keras
import tensorflow as tf

from lms.machine.inventory import Installation
from lms.simulation.allocator import SmallPool
from lms.tf import compat
from lms.units import MIB

__all__ = ["Device", "find_device", "find_devices", "memory_grows", "planned_on"]
__all__ += ["fillers_of", "nothing", "read_installation"]
__all__ += ["sync_devices"]

_POLLS, _POLL_SECONDS = 10, 0.1

# Chunks are multiples of 256 bytes. The 1,024 largest free fragments are filled.
_CHUNK, _FILLERS = 256, 1024

# Bytes left free when memory is taken at once: the driver has less than it reports.
_SPARE = 64 * MIB

_watchers: dict[str, int] = {}
_planned_on: ContextVar[str | None] = ContextVar("planned_on", default=None)


def read_installation() -> Installation:
    """Ask TensorFlow for versions and devices, which starts the devices."""
    built = tf.sysconfig.get_build_info()
    gpus = tf.config.list_physical_devices("GPU")
    details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
    device = find_device()
    return Installation(
        backend=keras.config.backend(),
        cuda=built.get("cuda_version"),
        cudnn=built.get("cudnn_version"),
        gpus=len(gpus),
        device=device.name,
        limit=device.limit,
        growth=memory_grows(),
        capability=details.get("compute_capability"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device and its allocator.

    Args:
        name: Short name, such as `GPU:0`.
        limit: Bytes that its allocator may hand out; None where there is no limit.
    """

    name: str
    limit: int | None

    @property
    def full_name(self) -> str:
        """The device's name in placed ops."""
        return compat.device_name(self.name)

    @property
    def free_bytes(self) -> float:
        """Bytes that the allocator has left; infinite where it has no limit."""
        if self.limit is None:
            return math.inf
        return self.limit - (self.current_bytes or 0)

    @property
    def is_gpu(self) -> bool:
        """Tell whether this is a GPU; without one nothing is planned."""
        return self.name.startswith("GPU")

    def make_ready(self, most: int | None) -> None:
        """Take growing memory at once.

        Where `TF_FORCE_GPU_ALLOW_GROWTH` or the program says so, memory grows by
        regions that double, and no tensor spans two. Else TensorFlow has taken it all.

        Args:
            most: Bytes that will be in use; None for all of the device.
        """
        now = self.current_bytes
        if self.limit is None or now is None or not memory_grows():
            return
        wanted = min(self.limit - _SPARE, most or self.limit) - now
        with suppress(tf.errors.OpError, ValueError), tf.device(self.name):
            nothing(max(wanted, 1))
        self.reset_peak()

    def keep_pool(self, small_pool: SmallPool) -> list[Any] | None:
        """Make contiguous free chunks, each with a guard chunk behind it.

        Returns:
            The guard chunks, which keep the free chunks apart while they live; None
            where no chunks are asked for, or none fit.
        """
        now = self.current_bytes
        if not small_pool.sizes or now is None:
            return None
        if self.limit is not None and now + small_pool.bytes > self.limit:
            return None  # TensorFlow would wait for memory
        try:
            with tf.device(self.name):
                # Else a guard chunk would lie in a free fragment, not behind its chunk.
                fillers = fillers_of(small_pool.bytes, least=_CHUNK)
                chunks, walls = [], []
                for size in small_pool.sizes:
                    chunks.append(nothing(size))
                    walls.append(nothing(1))
                del fillers, chunks
        except tf.errors.ResourceExhaustedError:
            return None
        return walls

    def free_holes(self, most: int, least: int) -> tuple[int, ...]:
        """Bytes of the free fragments before the end of memory, the largest first.

        Batches and variables leave free fragments between them; a tensor larger than
        each of these must lie at the end. The allocator does not list the fragments,
        but is a best fit: the address of a new tensor tells whether a fragment of its
        size is free.

        Args:
            most: Bytes; larger fragments are not looked for. These bytes are taken for
                a moment, beside the fragments. Where no chunk of them is free, the
                largest fragment stands for the end, less 1/8 at most.
            least: Bytes; smaller fragments are not looked for.

        Returns:
            Nothing where the search fails: others take memory meanwhile.
        """
        now = self.current_bytes
        if self.limit is None or now is None:
            return ()
        most = min(most, (self.limit - now) // 2)
        while most > least:
            try:
                with tf.device(self.name):
                    return tuple(size for size, _ in fillers_of(most, least=least))
            except tf.errors.ResourceExhaustedError:
                most -= most // 8
            except (tf.errors.OpError, ValueError):
                break
        return ()

    def watch(self, watcher: object) -> None:
        """Reset the peak when another step than before is about to run."""
        if not self.is_watched_by(watcher):
            _watchers[self.name] = id(watcher)
            self.reset_peak()

    def is_watched_by(self, watcher: object) -> bool:
        """Tell whether the peak since the last reset belongs to this step."""
        return _watchers.get(self.name) == id(watcher)

    @property
    def current_bytes(self) -> int | None:
        """Bytes in use; None where the allocator keeps no statistics."""
        return self._info().get("current")

    @property
    def peak_bytes(self) -> int | None:
        """The most bytes in use since `reset_peak`; None without statistics."""
        return self._info().get("peak")

    @property
    def room_at_peak(self) -> float:
        """Bytes that were free at the peak; infinite without a limit."""
        return math.inf if self.limit is None else self.limit - (self.peak_bytes or 0)

    def settled_bytes(self) -> int | None:
        """Bytes in use once the number stops changing: input pipelines prefetch."""
        before = self.current_bytes
        for _ in range(_POLLS):
            time.sleep(_POLL_SECONDS)
            now = self.current_bytes
            if now == before:
                break
            before = now
        return before

    def reset_peak(self) -> None:
        """Let the peak start again at the bytes in use."""
        if self._info():
            tf.config.experimental.reset_memory_stats(self.name)

    def _info(self) -> dict[str, int]:
        """Statistics of the allocator; empty where it keeps none."""
        try:
            return tf.config.experimental.get_memory_info(self.name)
        except (ValueError, RuntimeError):
            return {}


def fillers_of(most: int, *, least: int) -> list[tuple[int, Any]]:
    """Fill the largest free fragments; returns falling sizes with tensors.

    Only fragments of `least` to `most` bytes; `most` bytes are taken for a moment.
    """
    if most < least:
        return []
    end = compat.address_of(nothing(most))
    fillers: list[tuple[int, Any]] = []

    def lies_at_end(size: int) -> bool:
        return compat.address_of(nothing(size)) == end

    while len(fillers) < _FILLERS:
        sizes = range(_CHUNK, most + 1, _CHUNK)
        size = _CHUNK * bisect_left(sizes, x=True, key=lies_at_end)
        if size < least:
            break
        fillers.append((size, nothing(size)))
        most = size
    return fillers


def nothing(size: int) -> Any:
    """An uninitialised tensor; above 256 bytes its size is rounded up to whole chunks.

    In rows: TensorFlow makes this op's sizes from 32 bits, fewer than 2 GiB need.
    """
    return tf.raw_ops.Empty(shape=_shape(size), dtype=tf.uint8, init=False)


@lru_cache(maxsize=8)  # pools have many chunks of few sizes
def _shape(size: int) -> Any:
    shape = [-(-size // _CHUNK), _CHUNK] if size > _CHUNK else [size]
    with tf.init_scope(), tf.device("CPU:0"):
        return tf.constant(shape, tf.int32)


def find_device() -> Device:
    """This process's first GPU, or the device of `planned_on`; else the CPU."""
    gpus = _own_devices("GPU")
    name = _planned_on.get() or next(iter(gpus), "CPU:0")
    return _limited(name) if name in gpus else Device(name=name, limit=None)


def find_devices(used: Iterable[str]) -> Sequence[Device]:
    """Return the devices to plan a step for: `find_device` first, then other GPUs.

    Args:
        used: Full names of the step's devices.
    """
    device = find_device()
    if not device.is_gpu or _planned_on.get():
        return (device,)
    there = {name.rpartition("/device:")[2] for name in used} & {*_own_devices("GPU")}
    if not there:
        return (device,)
    names = sorted(there, key=lambda name: (name != device.name, len(name), name))
    return tuple(map(_limited, names))


def _limited(name: str) -> Device:
    return Device(name=name, limit=compat.allocator_limit(compat.device_name(name)))


@contextmanager
def planned_on(name: str) -> Iterator[None]:
    """Within the context, and this thread, plan for another device of this process.

    Args:
        name: The device's short name, such as `GPU:1`.
    """
    token = _planned_on.set(name)
    try:
        yield
    finally:
        _planned_on.reset(token)


def sync_devices() -> None:
    """Wait until this process's devices are idle.

    TensorFlow's own function also asks devices of other processes of a cluster.
    """
    for name in [*_own_devices("CPU"), *_own_devices("GPU")]:
        with tf.device(compat.device_name(name)):
            tf.raw_ops.SyncDevice()


def _own_devices(kind: str) -> list[str]:
    """Short names of this process's devices; TensorFlow lists all of a cluster."""
    here = compat.device_name("")
    names = [device.name for device in tf.config.list_logical_devices(kind)]
    return [
        name.rpartition("/device:")[2]
        for name in names
        if name.startswith(("/device:", here))
    ]


def memory_grows() -> bool:
    """Tell whether GPUs' memory grows; the variable overrides TensorFlow's option."""
    forced = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower()
    if forced in ("true", "false"):
        return forced == "true"
    gpus = tf.config.list_physical_devices("GPU")
    return any(tf.config.experimental.get_memory_growth(gpu) for gpu in gpus)
