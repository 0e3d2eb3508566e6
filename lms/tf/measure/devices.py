"""The device that memory is planned for: its limit and its allocator.

It is this process's first GPU, or the one of a pipeline's stage. Where there is none
nothing is planned.
"""

import logging
import os
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from lms.machine.inventory import Installation
from lms.simulation.allocator import SmallPool
from lms.tf import compat
from lms.units import KIB, MIB

__all__ = [
    "Device",
    "DeviceMemory",
    "find_device",
    "memory_grows",
    "planned_on",
    "read_installation",
    "say_what_is_not_planned",
    "sync_devices",
]


_LOG = logging.getLogger("lms")

_POLLS, _POLL_SECONDS = 10, 0.1

# Chunks are of whole such pieces; smaller holes, and more, are not looked for.
_CHUNK, _LEAST_HOLE, _MOST_HOLES = 256, 64 * KIB, 64

_MOST_FILLERS = 1024

# Left of a device whose memory is taken in one piece: the driver has less than it says.
_SPARE = 64 * MIB

_watchers: dict[str, int] = {}
_planned_on: ContextVar[str | None] = ContextVar("planned_on", default=None)


def read_installation() -> Installation:
    """Ask TensorFlow; it starts its devices for that."""
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
class DeviceMemory:
    """The allocator of one device.

    Args:
        device: Its short name, such as `GPU:0`.
    """

    device: str

    def watch(self, watcher: object) -> None:
        """Reset the peak when another step than before is about to run."""
        if not self.is_watched_by(watcher):
            _watchers[self.device] = id(watcher)
            self.reset_peak()

    def is_watched_by(self, watcher: object) -> bool:
        """Tell whether the peak since the last reset belongs to this step."""
        return _watchers.get(self.device) == id(watcher)

    @property
    def current_bytes(self) -> int | None:
        """Bytes in use; None where the allocator keeps no statistics."""
        return self._info().get("current")

    @property
    def peak_bytes(self) -> int | None:
        """The most bytes in use since `reset_peak`; None without statistics."""
        return self._info().get("peak")

    def settled_bytes(self) -> int | None:
        """Bytes in use once they have stopped changing: input pipelines prefetch."""
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
            tf.config.experimental.reset_memory_stats(self.device)

    def _info(self) -> dict[str, int]:
        """Statistics of the allocator; none where it keeps none."""
        try:
            return tf.config.experimental.get_memory_info(self.device)
        except (ValueError, RuntimeError):
            return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device with its memory.

    Args:
        name: Short name, such as `GPU:0`.
        limit: Bytes that its allocator may hand out; None where there is no limit.
    """

    name: str
    limit: int | None

    @property
    def full_name(self) -> str:
        """The name by which placed ops know it."""
        return compat.device_name(self.name)

    @property
    def memory(self) -> DeviceMemory:
        """Its allocator."""
        return DeviceMemory(device=self.name)

    @property
    def is_gpu(self) -> bool:
        """Tell whether this is a GPU; without one nothing is planned."""
        return self.name.startswith("GPU")

    def make_ready(self, most: int | None) -> None:
        """Take memory that grows by and by at once.

        Where `TF_FORCE_GPU_ALLOW_GROWTH` or the program says that it grows, it does so
        by regions that double, and no tensor spans two. Where it does not, TensorFlow
        has taken all of it.

        Args:
            most: Bytes that will be in use; None for all that there is.
        """
        if self.limit is None:
            return
        budget = min(self.limit, most or self.limit)
        now = self.memory.current_bytes
        if now is None or not memory_grows():
            return
        wanted = min(self.limit - _SPARE, budget) - now
        with suppress(tf.errors.OpError, ValueError), tf.device(self.name):
            _nothing(max(wanted, 1))
        self.memory.reset_peak()

    def keep_pool(self, small_pool: SmallPool) -> object:
        """Make free chunks, each with a used one behind it, all in one piece.

        Returns:
            What keeps the chunks apart while it lives; None where none are asked for,
            or there is no room for them.
        """
        now = self.memory.current_bytes
        if not small_pool.sizes or now is None:
            return None
        if self.limit is not None and now + small_pool.bytes > self.limit:
            return None  # TensorFlow would wait for memory
        try:
            with tf.device(self.name):
                # Else a wall would lie in the smallest hole, not behind its chunk.
                fillers = _fillers(small_pool.bytes, least=_CHUNK, count=_MOST_FILLERS)
                chunks, walls = [], []
                for size in small_pool.sizes:
                    chunks.append(_nothing(size))
                    walls.append(_nothing(1))
                del fillers, chunks
        except tf.errors.ResourceExhaustedError:
            return None
        return walls

    def free_holes(self, most: int) -> tuple[int, ...]:
        """Bytes of the free chunks beside the one at the end, the largest first.

        Batches, variables and what was freed between them leave holes; a tensor larger
        than each must lie at the end. The allocator does not say where they are, but it
        takes the smallest chunk that will do: so what it takes for a size tells whether
        there is a hole as large.

        Args:
            most: Bytes; larger ones are not looked for. So much is taken for a moment,
                beside what is in the holes.

        Returns:
            None of them where it cannot be told: they lie so scattered that no chunk is
            the one at the end, or others take memory meanwhile.
        """
        now = self.memory.current_bytes
        if self.limit is None or now is None:
            return ()
        most = min(most, (self.limit - now) // 2)
        try:
            with tf.device(self.name):
                fillers = _fillers(most, least=_LEAST_HOLE, count=_MOST_HOLES)
        except (tf.errors.OpError, ValueError):
            return ()
        return tuple(size for size, _ in fillers)


def _fillers(most: int, *, least: int, count: int) -> list[tuple[int, Any]]:
    """Fill the holes below `most` bytes: sizes, falling, and the tensors put there.

    Args:
        most: Bytes that may be taken for a moment beside the holes.
        least: Bytes; smaller holes are left.
        count: Of holes, the largest ones.
    """
    if most < least:
        return []
    end = compat.address_of(_nothing(most))
    fillers: list[tuple[int, Any]] = []

    def lies_at_end(size: int) -> bool:
        return compat.address_of(_nothing(size)) == end

    while len(fillers) < count:
        sizes = range(_CHUNK, most + 1, _CHUNK)
        size = _CHUNK * bisect_left(sizes, x=True, key=lies_at_end)
        if size < least:
            break
        fillers.append((size, _nothing(size)))
        most = size
    return fillers


def _nothing(size: int) -> Any:
    """Memory that nothing is written into, of whole chunks where it is larger than one.

    In rows: TensorFlow makes this op's sizes from 32 bits, fewer than 2 GiB need.
    """
    shape = [-(-size // _CHUNK), _CHUNK] if size > _CHUNK else [size]
    return tf.raw_ops.Empty(shape=shape, dtype=tf.uint8, init=False)


def find_device() -> Device:
    """This process's first GPU, or that of `planned_on`; else its CPU: no limit."""
    gpus = _own_devices("GPU")
    name = _planned_on.get() or next(iter(gpus), "CPU:0")
    if name not in gpus:
        return Device(name=name, limit=None)
    return Device(name=name, limit=compat.allocator_limit(compat.device_name(name)))


@contextmanager
def planned_on(name: str) -> Iterator[None]:
    """Within it, in this thread alone, plans are for another device of this process.

    Args:
        name: Its short name, such as `GPU:1`.
    """
    token = _planned_on.set(name)
    try:
        yield
    finally:
        _planned_on.reset(token)


def say_what_is_not_planned(device: Device, used: Iterable[str]) -> None:
    """Warn of a step that also runs on other GPUs, whose memory is as without LMS.

    Args:
        device: The one that is planned for.
        used: Full names of devices.
    """
    names = sorted({name.rpartition("/device:")[2] for name in used} - {device.name})
    others = [name for name in names if name.startswith("GPU")]
    if others and device.is_gpu:
        _LOG.warning(
            "Memory is planned on %s alone: what the step holds on %s stays there.",
            device.name,
            ", ".join(others),
        )


def sync_devices() -> None:
    """Wait for what runs on this process's devices.

    TensorFlow's own function also asks those of other processes of a cluster.
    """
    for name in [*_own_devices("CPU"), *_own_devices("GPU")]:
        with tf.device(compat.device_name(name)):
            tf.raw_ops.SyncDevice()


def _own_devices(kind: str) -> list[str]:
    """Short names; in a cluster the devices of other processes are listed too."""
    here = compat.device_name("")
    names = [device.name for device in tf.config.list_logical_devices(kind)]
    return [
        name.rpartition("/device:")[2]
        for name in names
        if name.startswith(("/device:", here))
    ]


def memory_grows() -> bool:
    """Tell whether GPUs' memory grows; the variable goes before TensorFlow's option."""
    forced = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower()
    if forced in ("true", "false"):
        return forced == "true"
    gpus = tf.config.list_physical_devices("GPU")
    return any(tf.config.experimental.get_memory_growth(gpu) for gpu in gpus)
