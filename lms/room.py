"""Device memory that a step may use: the limit less a margin, less what is there."""

import gc
from dataclasses import dataclass, replace

from lms.settings import Settings
from lms.tf.devices import Device
from lms.tf.specialising import TracedStep
from lms.units import MIB, Bytes

__all__ = ["UNLIMITED", "HostRoom", "Room", "margin_of", "measure_room", "with_holes"]

UNLIMITED = 1 << 62

# The margin kept when the budget is the device's limit: one part of so many.
_MARGIN = 32

# What a step that ran out of memory is planned with, of the room that it had.
_TIGHTER_PERCENT = 94


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
    def free(self) -> int:
        """What the device really has for the step, at least what is left to it."""
        if self.limit is None:
            return UNLIMITED
        return max(self.step, self.limit - self.persistent - self.reserved)

    def tighter(self, now: "Room") -> "Room":
        """Less room for the step, beside what is persistent now.

        Example:
            >>> room = Room(budget=300, margin=20, persistent=100)
            >>> tighter = room.tighter(Room(budget=300, margin=20, persistent=110))
            >>> tighter.budget, tighter.margin, tighter.persistent
            (288, 32, 110)
        """
        step = min(self.step, now.step) * _TIGHTER_PERCENT // 100
        return now.of(now.persistent + step)

    def of(self, budget: int) -> "Room":
        """Another budget; what it leaves out counts as margin."""
        left_out = (self.budget or budget) - budget
        return replace(self, budget=budget, margin=self.margin + left_out)


def margin_of(limit: int) -> int:
    """Bytes of a device's memory that are left to what the allocator loses."""
    return max(MIB, limit // _MARGIN)


def measure_room(
    step: TracedStep,
    settings: Settings,
    device: Device,
    *,
    data_is_there: bool,
    reads_ahead: bool,
) -> Room:
    """What the step may use; the device's limit less a margin if no budget is less.

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
        device.memory.settled_bytes() or 0,
        step.captured_bytes + (data if data_is_there else 0),
    )
    if not data_is_there:
        persistent += data
    persistent += step.constant_bytes
    reserved = 0
    asked = settings.budget
    if asked is not None and (device.limit is None or asked < device.limit):
        budget, margin = asked, 0
    elif device.limit is None:
        budget, margin = None, 0
    else:
        margin = margin_of(device.limit)
        if reads_ahead and device.holds_input_pipeline:
            reserved = data
            margin += reserved
        budget = device.limit - margin
    return Room(
        budget=budget,
        margin=margin,
        persistent=persistent,
        limit=device.limit,
        reserved=reserved,
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
