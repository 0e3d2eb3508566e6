"""The host's memory, which holds what the device does not."""

from collections.abc import Iterable
from typing import Any

import psutil
import tensorflow as tf

from lms.tf import compat
from lms.tf.measure.devices import Device
from lms.tf.workers.joining import workers_here
from lms.units import MIB, Bytes

__all__ = ["available_host_bytes", "free_host_bytes", "untouched_bytes", "untouched_in"]

# What is left to programs that take more meanwhile, this one too: one part of so many.
_MARGIN = 32

# Large enough to lie in the region that an emulated device took as a whole.
_PROBE = 4 * MIB


def available_host_bytes() -> Bytes | None:
    """Host memory that programs may still take; None where the system does not say."""
    try:
        return psutil.virtual_memory().available
    except (OSError, RuntimeError):
        return None


def free_host_bytes(device: Device, budget: Bytes | None) -> Bytes | None:
    """Host memory that swapped tensors may take; None where the system does not say.

    Several workers of one host get equal parts.

    Args:
        device: Where they come from. An emulated one will take of the same memory.
        budget: What will be in use there; None for all of it.
    """
    free = available_host_bytes()
    if free is None:
        return None
    free //= workers_here()  # all of them plan at about the same time
    spare = 0 if budget is None else max(0, (device.limit or 0) - budget)
    soon = max(0, untouched_bytes(device) - spare)
    return max(0, free - free // _MARGIN - soon)


def untouched_bytes(device: Device) -> Bytes:
    """Bytes that an emulated device was given, and the host has yet to find.

    The system finds a page when it is first written to; until then it counts as free
    (proc(5): of a mapping's `Size`, `Rss` is in memory).
    """
    if device.limit is None or not device.holds_input_pipeline:
        return 0
    if device.limit - (device.memory.current_bytes or 0) < 2 * _PROBE:
        return 0  # about full: TensorFlow would wait for memory
    try:
        with tf.device(device.name):
            probe = tf.raw_ops.Empty(shape=[_PROBE], dtype=tf.uint8, init=False)
            address = compat.address_of(probe)
    except (tf.errors.OpError, ValueError):
        return 0  # there is no room for the probe in one piece
    return min(device.limit, untouched_in(_mappings(), address))


def untouched_in(mappings: Iterable[Any], address: int) -> Bytes:
    """Bytes of the mapping around an address that are not in memory.

    Args:
        mappings: Of this process, as `psutil.Process.memory_maps` gives them.
        address: Any in the mapping.
    """
    for mapping in mappings:
        first, end = (int(bound, 16) for bound in mapping.addr.split("-"))
        if first <= address < end:
            return int(mapping.size - mapping.rss)
    return 0


def _mappings() -> list[Any]:
    """Of this process; none where the system does not say, as macOS does not."""
    try:
        return psutil.Process().memory_maps(grouped=False)
    except (AttributeError, OSError, psutil.Error):
        return []
