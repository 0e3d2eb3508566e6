"""The arena: the one large free chunk of the device that a sealed step runs in.

    | variables | chunks for small tensors and the batch | fences |  arena  |

All other free fragments are small or held by fences. So the allocator, a best fit,
gives each large tensor of the step the address that a plan has foreseen.

A device has one arena at a time: chunks that another step leaves free would take this
step's tensors, so they are fenced too. A step that finds its arena not clear makes the
arena anew. Spacers are for an arena of just these bytes; only in an arena of twice the
bytes that a step needs, the rest is larger than all holes, whatever its bytes.

Fences count as bytes in use, so an arena is made with a new peak.

Known weakness: a tensor of others is not noticed if it lies behind the arena's first
bytes and is smaller than all chunks for small tensors and the batch together.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import tensorflow as tf

from lms.planning.addresses import CHUNK
from lms.simulation.allocator import SmallPool, rounded_up
from lms.tf import compat
from lms.tf.measure.devices import Device, fillers_of, nothing
from lms.units import Bytes

__all__ = ["Arena", "seal"]

_arenas: "WeakSet[Arena]" = WeakSet()


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class Arena:
    """A free chunk of known bytes, the only large one.

    Args:
        device: The device.
        capacity: Bytes of the arena.
        needed: Bytes that the step needs.
        below: Other free fragments have fewer bytes.
        chunks: Bytes of the chunks for small tensors and the batch, rising: variables
            may stay in small ones, and a large one behind them merges with the arena.
        walls: Guard chunks of these; None while there are no chunks.
        fences: Hold the other fragments; None while others use the memory.
        address: Where the arena begins.
        used: Bytes in use when the arena was made.
        fillers: Hold the chunks of inputs that lie on the device already.
    """

    device: Device
    capacity: Bytes = 0
    needed: Bytes = 0
    below: Bytes
    chunks: tuple[Bytes, ...]
    walls: Any = None
    fences: list[Any] | None = None
    address: int = 0
    used: Bytes = 0
    fillers: Any = None

    def admit(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Receive a step's batch, and make the arena anew if it is not clear.

        Returns:
            The step's inputs; None if the step's spacers are for another arena.
        """
        for is_clear in (True, False):
            if not (is_clear or self.renew()):
                break
            received = self.receive(inputs)
            if self.is_clear():
                return received
            del received
        return None

    def receive(self, inputs: Sequence[Any]) -> list[Any]:
        """Copy a batch from the host to its chunks; returns the step's inputs.

        Text and numbers of int32 stay on the host, where TensorFlow wants them.
        """
        name = self.device.full_name
        own = (getattr(tensor, "backing_device", "") == name for tensor in inputs)
        there = [t for t, is_own in zip(inputs, own, strict=True) if is_own]
        self.fillers = None  # the new ones take their chunks
        with tf.device(name):  # else the chunks that they do not need would be free
            sizes = (t.shape.num_elements() * t.dtype.size for t in there)
            self.fillers = [*map(nothing, sizes)]
        return [compat.copied_to(name, tensor) for tensor in inputs]

    def is_clear(self) -> bool:
        """Tell whether the arena is whole, and the only large free chunk.

        Waits for the device.
        """
        more = (self.device.current_bytes or 0) - self.used
        if self.fences is None or not -self.below < more <= sum(self.chunks):
            return False
        try:
            with tf.device(self.device.name):
                probe = nothing(self._too_large_elsewhere)
        except tf.errors.ResourceExhaustedError:
            return False
        return compat.address_of(probe) == self.address

    def renew(self) -> bool:
        """Make the arena in the memory that is free now.

        Returns:
            Whether the step's spacers are for such an arena too.
        """
        before, ample = self.capacity, 2 * self.needed
        others = [arena for arena in list(_arenas) if arena.device == self.device]
        for arena in others:
            arena.fences = None
        if not self._make():
            for arena in (self, *others):
                arena.walls = arena.fences = None
            if not self._make():
                return False
        return before == self.capacity or min(before, self.capacity) >= ample

    @property
    def _too_large_elsewhere(self) -> Bytes:
        """Bytes that only the arena has in one piece."""
        return rounded_up(max((self.below, *self.chunks))) + CHUNK

    @property
    def _half(self) -> Bytes:
        """More than half of the device's free bytes."""
        return rounded_up(int(self.device.free_bytes) // 2 + 1)

    def _make(self) -> bool:
        """Make the chunks, if there are none, the fences and the arena."""
        self.fences = None
        if self.walls is None:
            self.walls = self.device.keep_pool(SmallPool(sizes=self.chunks))
        if self.device.limit is None or (self.chunks and self.walls is None):
            return False
        try:
            with tf.device(self.device.name):
                fences = self._fences()
        except (tf.errors.OpError, ValueError, MemoryError):
            return False
        self.fences, self.used = fences, self.device.current_bytes or 0
        self.device.reset_peak()
        if self.is_clear():
            return True
        self.fences = None
        return False

    def _fences(self) -> list[Any]:
        """Fill all other large fragments, and measure the arena.

        Raises:
            MemoryError: If too little is free in one piece.
        """
        least = rounded_up(self.below)
        fillers = fillers_of(self._half, least=least)
        own, fences = Counter(self.chunks), list[Any]()
        for size, filler in fillers:
            own[size] -= 1
            if own[size] < 0:
                fences.append(filler)
        self.address, self.capacity = _measured(self._half, least)
        if self.capacity < self._too_large_elsewhere:
            raise MemoryError
        return fences


def seal(device: Device, pool: SmallPool, batch: Sequence[Bytes]) -> Arena | None:
    """Make an arena of the device's free memory; other arenas are given up for now.

    Args:
        device: The device.
        pool: Chunks for small tensors.
        batch: Bytes of tensors that get chunks of their own: the step's inputs, and
            large constants, which are made when the step first runs.

    Returns:
        None if the free memory is in pieces.
    """
    chunks = tuple(sorted(map(rounded_up, (*pool.sizes, *batch))))
    arena = Arena(device=device, below=pool.below, chunks=chunks)
    arena.renew()
    if arena.fences is None:
        return None
    _arenas.add(arena)
    return arena


def _measured(half: Bytes, least: Bytes) -> tuple[int, Bytes]:
    """Address and bytes of the only large free chunk; `half` is more than its half.

    An allocation that fails waits ten seconds; no probe here fails. The chunk is
    divided: a probe too large for the smaller part lies in the larger one.

    Raises:
        MemoryError: If other free chunks are in the way, or the chunk is small.
    """
    larger, wall = nothing(half), nothing(least)
    address = compat.address_of(larger)
    if compat.address_of(wall) != address + half:
        raise MemoryError
    del larger
    smaller = bisect_left(
        range(least, half + 1, CHUNK),
        x=True,
        key=lambda size: compat.address_of(nothing(size)) == address,
    )
    if not smaller:
        raise MemoryError
    return address, half + least + least + CHUNK * (smaller - 1)
