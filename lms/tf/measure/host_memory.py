"""The host's memory, which holds what the device does not."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil
import tensorflow as tf

from lms.tf import compat
from lms.tf.measure.devices import Device
from lms.units import KIB, MIB, Bytes

__all__ = ["available_host_bytes", "free_host_bytes", "untouched_bytes", "untouched_in"]

# What is left to programs that take more meanwhile, this one too: one part of so many.
_MARGIN = 32

# Large enough to lie in the region that an emulated device took as a whole.
_PROBE = 4 * MIB

_BOUNDS = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ")


def available_host_bytes() -> Bytes | None:
    """Host memory that programs may still take; None where the system does not say."""
    try:
        return psutil.virtual_memory().available
    except (OSError, RuntimeError):
        return None


def free_host_bytes(device: Device, budget: Bytes | None) -> Bytes | None:
    """Host memory that swapped tensors may take; None where the system does not say.

    Args:
        device: Where they come from. An emulated one will take of the same memory.
        budget: What will be in use there; None for all of it.
    """
    free = available_host_bytes()
    if free is None:
        return None
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
    return min(device.limit, untouched_in(_lines("/proc/self/smaps"), address))


def untouched_in(lines: Sequence[str], address: int) -> Bytes:
    """Bytes of the mapping around an address that are not in memory.

    Args:
        lines: Of `/proc/self/smaps`.
        address: Any in the mapping.
    """
    for number, line in enumerate(lines):
        bounds = _BOUNDS.match(line)
        if bounds and int(bounds[1], 16) <= address < int(bounds[2], 16):
            mapping = lines[number + 1 :]
            return (_kib(mapping, "Size") or 0) - (_kib(mapping, "Rss") or 0)
    return 0


def _kib(lines: Iterable[str], name: str) -> Bytes | None:
    """Bytes of the first line such as `Rss:  16 kB`."""
    for line in lines:
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * KIB
    return None


def _lines(path: str) -> list[str]:
    """Of a file of the system; none where it has no such file."""
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
