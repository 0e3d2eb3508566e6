"""An emulated link: copies take as long as they would over a given link, and overlap.

Each direction is a lane that serves copies in the order in which they come. A copy is
made at once and reserves its time on the lane; compute goes on beside it, until
something waits for the copy's end. Processes that name one bus share its bandwidth:
they reserve short slices in a file, in turn.

    process 1   ██  ██  ██  ██           h2d of one bus, in slices
    process 2     ██  ██  ██  ██

The link is described by environment variables, set by `python -m lms emulate`.

Known weakness: the copy itself takes the CPU's time and memory bandwidth, as no copy
engine would. A lane cannot be faster than that.
"""

import math
import os
import struct
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from lms.machine.hardware import Hardware
from lms.units import Bytes, Seconds

__all__ = ["LINK_VARIABLES", "EmulatedLink", "LinkRates", "PendingCopy"]
__all__ += ["link_environment", "link_rates"]

_H2D: Final = "LMS_LINK_H2D"
_D2H: Final = "LMS_LINK_D2H"
_LATENCY: Final = "LMS_LINK_LATENCY"
_BUS: Final = "LMS_LINK_BUS"

# What `link_environment` may set.
LINK_VARIABLES: Final = (_H2D, _D2H, _LATENCY, _BUS)

# Of a copy on a shared bus: long against a system call, short against a copy.
_SLICE: Final[Seconds] = 2e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRates:
    """A link between host and device.

    Args:
        h2d: Bytes per second from host to device.
        d2h: Bytes per second from device to host.
        latency: Seconds of each copy besides its bytes.
        bus: File through which processes share these rates; None for a link of one's
            own.

    Example:
        >>> LinkRates(h2d=1e9, d2h=2e9).scaled(0.5).d2h
        1000000000.0
    """

    h2d: float
    d2h: float
    latency: Seconds = 0.0
    bus: Path | None = None

    def __post_init__(self) -> None:
        """Check the rates."""
        for name in ("h2d", "d2h"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(
                    f"`{name}` must be bytes per second above 0, "
                    f"got {getattr(self, name)!r}. Write a rate such as 12GB."
                )
        if not 0 <= self.latency < math.inf:
            raise ValueError(
                f"`latency` must be seconds, at least 0, got {self.latency!r}. "
                "Leave it out for a link without."
            )
        if self.bus is not None and not self.bus.absolute().parent.is_dir():
            raise ValueError(
                f"`bus` must lie in a folder that exists, got {str(self.bus)!r}. "
                "Make the folder, or name another file."
            )

    @classmethod
    def of(cls, hardware: Hardware, *, bus: Path | None = None) -> "LinkRates":
        """The link of some hardware."""
        return cls(
            h2d=hardware.h2d, d2h=hardware.d2h, latency=hardware.latency, bus=bus
        )

    def scaled(self, factor: float) -> "LinkRates":
        """The link with `factor` times the bandwidth."""
        return LinkRates(
            h2d=self.h2d * factor,
            d2h=self.d2h * factor,
            latency=self.latency,
            bus=self.bus,
        )


def link_environment(rates: LinkRates) -> dict[str, str]:
    """The variables that make host stores copy at these rates.

    Example:
        >>> link_environment(LinkRates(h2d=1e9, d2h=2e9))["LMS_LINK_H2D"]
        '1000000000.0'
    """
    variables = {
        _H2D: repr(float(rates.h2d)),
        _D2H: repr(float(rates.d2h)),
        _LATENCY: repr(float(rates.latency)),
    }
    if rates.bus is not None:
        variables[_BUS] = str(rates.bus.absolute())  # wherever the process runs
    return variables


def link_rates(environ: Mapping[str, str] = os.environ) -> LinkRates | None:
    """The emulated link of this process, if there is one.

    Raises:
        ValueError: If a variable is no number above 0, or one direction is missing.

    Example:
        >>> link_rates({}) is None
        True
        >>> link_rates(link_environment(LinkRates(h2d=1e9, d2h=2e9))).d2h
        2000000000.0
    """
    if _H2D not in environ and _D2H not in environ:
        return None
    bus = environ.get(_BUS)
    return LinkRates(
        h2d=_number(environ, _H2D, None),
        d2h=_number(environ, _D2H, None),
        latency=_number(environ, _LATENCY, "0"),
        bus=None if bus is None else Path(bus),
    )


def _number(environ: Mapping[str, str], name: str, default: str | None) -> float:
    text = environ.get(name, default)
    try:
        return float(text or "")
    except ValueError:
        raise ValueError(
            f"`{name}` must be a number, got {text!r}. "
            "Let `python -m lms emulate --link` set it."
        ) from None


class EmulatedLink:
    """Two lanes.

    Args:
        rates: The link.

    Example:
        >>> link = EmulatedLink(LinkRates(h2d=1e9, d2h=1e9))
        >>> begun = link.carry(1_000_000, lambda: None, to_device=True)
        >>> time.monotonic() - begun >= 1e-3
        True
    """

    def __init__(self, rates: LinkRates) -> None:
        bus = rates.bus
        self._h2d = _lane(rates.h2d, rates.latency, bus, "h2d")
        self._d2h = _lane(rates.d2h, rates.latency, bus, "d2h")

    def begin(
        self,
        size: Bytes,
        copy: Callable[[], object],
        *,
        to_device: bool,
    ) -> "PendingCopy":
        """Make a copy, and let it be on its way as long as the link would take.

        Args:
            size: Bytes that are copied.
            copy: Makes the copy, before this returns.
            to_device: The direction.
        """
        return (self._h2d if to_device else self._d2h)(size, copy)

    def cancel(self) -> None:
        """Forget the copies that are underway: nobody waits for them any more."""
        self._h2d.cancel()
        self._d2h.cancel()

    def carry(
        self, size: Bytes, copy: Callable[[], object], *, to_device: bool
    ) -> Seconds:
        """As `begin`, and wait for the copy's end.

        Returns:
            When its turn came, on `time.monotonic`.
        """
        return self.begin(size, copy, to_device=to_device).wait()[0]


class PendingCopy(Protocol):
    """A copy on its way."""

    def wait(self) -> tuple[Seconds, Seconds]:
        """Return when it has ended: its start and its end, on `time.monotonic`."""
        ...


def _lane(
    rate: float, latency: Seconds, bus: Path | None, name: str
) -> "_OwnLane | _SharedLane":
    if bus is None:
        return _OwnLane(rate, latency)
    return _SharedLane(rate, latency, bus.with_name(f"{bus.name}.{name}"))


@dataclass(frozen=True, slots=True)
class _Reserved:
    """A passage whose end is known."""

    start: Seconds
    end: Seconds

    def wait(self) -> tuple[Seconds, Seconds]:
        _sleep_until(self.end)
        return self.start, self.end


class _OwnLane:
    """Reserves whole copies, in the order in which they come."""

    def __init__(self, rate: float, latency: Seconds) -> None:
        self._rate = rate
        self._latency = latency
        self._free: Seconds = 0.0
        self._lock = threading.Lock()

    def __call__(self, size: Bytes, copy: Callable[[], object]) -> PendingCopy:
        with self._lock:
            start = max(time.monotonic(), self._free)
            self._free = end = start + self._latency + size / self._rate
        copy()
        return _Reserved(start, end)

    def cancel(self) -> None:
        self._free = 0.0


@dataclass(frozen=True, slots=True)
class _Served:
    """A passage that a thread serves."""

    future: Future[tuple[Seconds, Seconds]]

    def wait(self) -> tuple[Seconds, Seconds]:
        return self.future.result()


class _SharedLane:
    """Reserves slices in a file that says when the bus is free.

    A thread does so, one copy after the other: others take their turns meanwhile.
    """

    def __init__(self, rate: float, latency: Seconds, path: Path) -> None:
        self._rate = rate
        self._latency = latency
        self._path = path
        self._server = ThreadPoolExecutor(1)
        self._cancelled = threading.Event()
        self._end: Seconds = 0.0  # of this process's last slice

    def __call__(self, size: Bytes, copy: Callable[[], object]) -> PendingCopy:
        asked = time.monotonic()
        copy()
        served = self._server.submit(self._serve, asked, size, self._cancelled)
        return _Served(served)

    def cancel(self) -> None:
        self._cancelled.set()
        self._cancelled = threading.Event()

    def _serve(
        self, asked: Seconds, size: Bytes, cancelled: threading.Event
    ) -> tuple[Seconds, Seconds]:
        # Late wake-ups and the copy itself must not add to the link's time: what
        # follows without a pause is reserved from the end of what came before.
        begun = end = max(asked, self._end)
        left = self._latency + size / self._rate
        while left > 0 and not cancelled.is_set():
            part = min(left, _SLICE)
            end = self._reserve(end, part)
            _sleep_until(end)
            left -= part
        self._end = end
        return begun, end

    def _reserve(self, start: Seconds, seconds: Seconds) -> Seconds:
        """When a slice will be over that may begin at `start`."""
        import fcntl  # POSIX only; own lanes do without

        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            data = os.pread(descriptor, 8, 0)
            free: float = struct.unpack("d", data)[0] if len(data) == 8 else 0.0
            now = time.monotonic()
            # Left by a machine that has been started again since: its clock was ahead.
            free = free if free < now + 1.0 else now
            end = max(start, free) + seconds
            os.pwrite(descriptor, struct.pack("d", end), 0)
        finally:
            os.close(descriptor)
        return end


def _sleep_until(moment: Seconds) -> None:
    left = moment - time.monotonic()
    if left > 0:
        time.sleep(left)
