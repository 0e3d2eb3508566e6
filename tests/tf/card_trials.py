"""What `tests.tf.card` runs on an emulated card."""

import ctypes
from typing import Any

from lms.tf.measure.device_rates import measure_hardware
from lms.tf.measure.devices import find_device

__all__ = ["link_rates"]


def _counted(name: str) -> int:
    """What the card's driver has counted, such as bytes `d2h`."""
    library = ctypes.CDLL("libcuda.so.1")
    library.fake_gpu_counter.restype = ctypes.c_int64
    return library.fake_gpu_counter(name.encode())


def link_rates() -> list[float]:
    """Bytes per second to the card and from it, as measured."""
    hardware: Any = measure_hardware(find_device())
    return [hardware.h2d, hardware.d2h]
