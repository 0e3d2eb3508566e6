"""Device memory that a step may use: the limit less a margin, less what is there."""

import gc
from dataclasses import dataclass, replace

from lms.settings import Settings
from lms.tf.devices import Device
from lms.tf.settling import shared_bytes
from lms.tf.specialising import TracedStep
from lms.units import MIB, Bytes

__all__ = ["UNLIMITED", "HostRoom", "Room", "measure_room", "room_in", "with_holes"]

UNLIMITED = 1 << 62

# The margin kept when the budget is the device's limit: one part of so many.
_MARGIN = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRoom:
    """Memory of the host for swapped tensors.

    Args:
        free: Its bytes; None if that is not known.
        by_size: Whether its buffers are used again only for tensors of their size.
    """

    free: Bytes | None
    by_size: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Memory of the device, in bytes; None where there is no limit.

    Args:
        budget: What may be in use.
        margin: What is left out of the device's limit.
        persistent: What is in use beside the step.
        limit: What the device's allocator can hand out at most.
        reserved: What of the margin is for batches that wait.
        holes: Free chunks that are not one piece with the others, the largest first.
    """

    budget: int | None
    margin: int
    persistent: int
    limit: int | None = None
    reserved: int = 0
    holes: tuple[int, ...] = ()

    @property
    def step(self) -> int:
        """What is left for the step itself."""
        return UNLIMITED if self.budget is None else self.budget - self.persistent

    @property
    def most(self) -> int:
        """What may be in use at most, beside batches that wait."""
        if self.budget is None:
            return UNLIMITED
        return self.budget + self.margin - self.reserved

    @property
    def is_whole_device(self) -> bool:
        """Whether nothing but a margin is kept from the step, as without a budget."""
        if self.budget is None:
            return True
        return self.limit is not None and self.budget + self.margin >= self.limit

    @property
    def free(self) -> int:
        """What the device really has for the step, at least what is left to it."""
        if self.limit is None:
            return UNLIMITED
        return max(self.step, self.limit - self.persistent - self.reserved)

    def tighter(self, now: "Room", percent: int) -> "Room":
        """Less room for the step, beside what is persistent now.

        Args:
            now: The room as it is measured now.
            percent: What is taken of the step's room.

        Example:
            >>> room = Room(budget=300, margin=20, persistent=100)
            >>> now = Room(budget=300, margin=20, persistent=110)
            >>> tighter = room.tighter(now, 94)
            >>> tighter.budget, tighter.margin, tighter.persistent
            (288, 32, 110)
        """
        step = min(self.step, now.step) * percent // 100
        return now.of(now.persistent + step)

    def device_for(self, budget: int) -> int:
        """Bytes of a device that leaves such a budget beside its margin.

        Example:
            >>> room = Room(budget=300, margin=20, persistent=100)
            >>> room.device_for(62 * MIB) // MIB
            64
        """
        without = budget + self.reserved
        return max(without + MIB, -(-without * _MARGIN // (_MARGIN - 1)))

    def of(self, budget: int) -> "Room":
        """Another budget; what it leaves out counts as margin."""
        left_out = (self.budget or budget) - budget
        return replace(self, budget=budget, margin=self.margin + left_out)


def room_in(
    limit: Bytes | None,
    *,
    asked: Bytes | None,
    persistent: Bytes,
    waiting: Bytes = 0,
) -> Room:
    """The room of a step in a device: the asked budget, at most all but a margin.

    Args:
        limit: What the device can hand out; None if that is not known.
        asked: The budget; None for as much as there is.
        persistent: Bytes in use beside the step.
        waiting: Bytes of batches that may come while the step runs. A budget that
            leaves them room does not count them.

    Example:
        >>> room_in(320 << 20, asked=None, persistent=0).margin >> 20
        10
        >>> room_in(320 << 20, asked=100 << 20, persistent=40 << 20).step >> 20
        60
        >>> room_in(320 << 20, asked=1 << 40, persistent=0).margin >> 20
        10
    """
    if limit is None:
        return Room(budget=asked, margin=0, persistent=persistent)
    margin = max(MIB, limit // _MARGIN) + waiting
    if asked is not None and asked < limit - margin:
        return Room(budget=asked, margin=0, persistent=persistent, limit=limit)
    return Room(
        budget=limit - margin,
        margin=margin,
        persistent=persistent,
        limit=limit,
        reserved=waiting,
    )


def measure_room(
    step: TracedStep,
    settings: Settings,
    device: Device,
    *,
    data_is_there: bool,
    reads_ahead: bool,
) -> Room:
    """What the step may use on a device, as it is now.

    Args:
        step: The step.
        settings: The user's knobs.
        device: Where it is to run.
        data_is_there: Whether the batch is in the memory that is used already.
        reads_ahead: Whether one more batch may come while the step runs.
    """
    gc.collect()
    data_is_there = data_is_there and device.holds_input_pipeline
    data = step.input_bytes
    # Slots of an optimizer that are still zero may share their memory: once written,
    # each takes its own.
    persistent = max(
        (device.memory.settled_bytes() or 0) + shared_bytes(step, device),
        step.captured_bytes + (data if data_is_there else 0),
    )
    if not data_is_there:
        persistent += data
    persistent += step.constant_bytes
    may_wait = reads_ahead and device.holds_input_pipeline
    return room_in(
        device.limit,
        asked=settings.budget,
        persistent=persistent,
        waiting=data if may_wait else 0,
    )


def with_holes(room: Room, device: Device) -> Room:
    """The room with the holes in it that matter: the step cannot do without them.

    To look takes memory for a moment, as much as the step may use at most.
    """
    beside = room.free - room.step
    if room.limit is None or beside >= room.step:
        return room
    holes = device.free_holes(room.step)
    return replace(room, holes=holes if beside < sum(holes) else ())
