"""What is measured of a card, within a process that has one."""

from typing import Any

from lms.tf.measure.device_rates import measure_hardware
from lms.tf.measure.devices import find_device

__all__ = ["link_rates"]


def link_rates() -> list[float]:
    """Bytes per second to the card and from it, as measured."""
    hardware: Any = measure_hardware(find_device())
    return [hardware.h2d, hardware.d2h]
