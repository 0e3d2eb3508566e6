"""The link between a device and its host, as rates."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lms.machine.hardware import Hardware
from lms.units import Seconds

__all__ = ["LINKS", "LinkRates"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRates:
    """A link between host and device.

    Args:
        h2d: Bytes per second from host to device.
        d2h: Bytes per second from device to host.
        latency: Seconds of each copy besides its bytes.

    Raises:
        ValueError: If a rate is not above 0, or the latency is below 0.

    Example:
        >>> LinkRates(h2d=1e9, d2h=2e9).scaled(0.5).d2h
        1000000000.0
    """

    h2d: float
    d2h: float
    latency: Seconds = 0.0

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

    @classmethod
    def of(cls, hardware: Hardware) -> "LinkRates":
        """The link of some hardware."""
        return cls(h2d=hardware.h2d, d2h=hardware.d2h, latency=hardware.latency)

    def scaled(self, factor: float) -> "LinkRates":
        """The link with `factor` times the bandwidth."""
        return LinkRates(
            h2d=self.h2d * factor, d2h=self.d2h * factor, latency=self.latency
        )


# Bytes per second that others measured from pinned memory, one direction at a time:
# PCIe x16 of three generations, NVLink 2.0 x3 (IBM AC922), NVLink-C2C (GH200).
LINKS: Final[Mapping[str, LinkRates]] = {
    "pcie3": LinkRates(h2d=12e9, d2h=12e9, latency=1e-5),
    "pcie4": LinkRates(h2d=25e9, d2h=25e9, latency=1e-5),
    "pcie5": LinkRates(h2d=52e9, d2h=52e9, latency=1e-5),
    "nvlink2": LinkRates(h2d=64e9, d2h=64e9, latency=1e-5),
    "c2c": LinkRates(h2d=375e9, d2h=297e9, latency=1e-5),
}
