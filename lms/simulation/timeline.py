"""A step over time: busy lanes, stalls and their causes, bytes in use.

    compute  ████████████░░░░██████████      ░ stall: the op waits for a copy
    h2d               ████████████
    d2h        █████████

A timeline is a value; `lms.simulation.executor` predicts one, a profiler measures one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from lms.simulation.allocator import rounded_up
from lms.units import Bytes, Seconds

__all__ = ["Cause", "Interval", "Lane", "Request", "Stall", "Timeline", "curve"]


class Lane(StrEnum):
    """Units that work independently."""

    COMPUTE = "compute"
    H2D = "host to device"
    D2H = "device to host"


class Cause(StrEnum):
    """Causes of a stall of the compute lane."""

    SWAP_IN = "waits for a copy in"
    SWAP_OUT = "waits for room: a copy out"
    LAUNCH = "waits for the host to start ops"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """One op or copy; `start` and `end` are seconds from the start of the step.

    Args:
        name: The op, or the tensor that was copied.
        size: Bytes copied; 0 for ops.
    """

    lane: Lane
    name: str
    start: Seconds
    end: Seconds
    size: Bytes = 0

    @property
    def seconds(self) -> Seconds:
        """Duration in seconds."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A gap in the compute lane; `start` and `end` are as in `Interval`.

    Args:
        op: The op that waited.
        tensor: The tensor that was copied; "" when it was no copy.
    """

    op: str
    start: Seconds
    end: Seconds
    cause: Cause
    tensor: str = ""

    @property
    def seconds(self) -> Seconds:
        """Duration in seconds."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Memory taken from the device's allocator, or given back.

    Args:
        at: Seconds from the start of the step.
        key: Number of the piece, equal where it is taken and given back.
        size: Bytes taken; negative when they are given back.
    """

    at: Seconds
    key: int
    size: Bytes


def curve(requests: Sequence[Request]) -> tuple[tuple[Seconds, Bytes], ...]:
    """Return the bytes in use from the moment of each request on."""
    used = accumulate(request.size for request in requests)
    return tuple(zip((request.at for request in requests), used, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One step on one device.

    Args:
        intervals: Ops and copies, in the order of their starts within each lane.
        stalls: Gaps of the compute lane that have a cause.
        requests: Device memory taken and given back, in order.
        host_requests: Host memory likewise, for swapped tensors.

    Example:
        >>> a = Interval(lane=Lane.COMPUTE, name="a", start=0.0, end=1.0)
        >>> b = Interval(lane=Lane.COMPUTE, name="b", start=3.0, end=4.0)
        >>> back = Interval(lane=Lane.H2D, name="x:0", start=1.0, end=3.0, size=8)
        >>> timeline = Timeline(intervals=(a, b, back))
        >>> timeline.seconds, timeline.utilisation, timeline.throughput(Lane.H2D)
        (4.0, 0.5, 4.0)
    """

    intervals: tuple[Interval, ...] = ()
    stalls: tuple[Stall, ...] = ()
    requests: tuple[Request, ...] = ()
    host_requests: tuple[Request, ...] = ()

    @property
    def seconds(self) -> Seconds:
        """Seconds from the step's start to the end of its last op or copy."""
        return max((i.end for i in self.intervals), default=0.0)

    @property
    def utilisation(self) -> float:
        """Share of the step in which the compute lane was busy, 0 to 1."""
        return self.busy_seconds(Lane.COMPUTE) / self.seconds if self.seconds else 0.0

    @property
    def device_peak(self) -> Bytes:
        """The most bytes of the step on the device at once."""
        return max((used for _, used in curve(self.requests)), default=0)

    @property
    def chunks_peak(self) -> Bytes:
        """The most bytes of the allocator's chunks in use at once."""
        signs = ((1 if request.size > 0 else -1, request) for request in self.requests)
        return max(accumulate(s * rounded_up(s * r.size) for s, r in signs), default=0)

    def lane(self, lane: Lane) -> tuple[Interval, ...]:
        """Return the intervals of one lane."""
        return tuple(i for i in self.intervals if i.lane is lane)

    def busy_seconds(self, lane: Lane) -> Seconds:
        """Return the seconds in which a lane worked; overlaps count once."""
        busy, reached = 0.0, 0.0
        for interval in sorted(self.lane(lane), key=lambda i: i.start):
            busy += max(0.0, interval.end - max(reached, interval.start))
            reached = max(reached, interval.end)
        return busy

    def copied_bytes(self, lane: Lane) -> Bytes:
        """Return the bytes that a lane copied."""
        return sum(interval.size for interval in self.lane(lane))

    def throughput(self, lane: Lane) -> float:
        """Return the bytes per second while the lane copied; 0 if it copied nothing."""
        busy = self.busy_seconds(lane)
        return self.copied_bytes(lane) / busy if busy else 0.0
