"""The host's memory, which holds what the device does not."""

import os
from contextlib import suppress

import psutil

from lms.errors import WorkersError
from lms.machine.pinned import PINNED_VARIABLE, pinned_limit, swappable
from lms.machine.placement import read_placement, workers_here
from lms.tf import compat
from lms.units import MIB, Bytes

__all__ = ["available_host_bytes", "free_host_bytes", "limit_pinned_memory"]


def available_host_bytes() -> Bytes | None:
    """Host memory that programs may still take; None where the system does not say."""
    try:
        return psutil.virtual_memory().available
    except (OSError, RuntimeError):
        return None


def free_host_bytes() -> Bytes | None:
    """Host memory that swapped tensors may take; None where the system does not say.

    Several workers of one host get equal parts.
    """
    free = available_host_bytes()
    if free is None:
        return None
    # All of them plan at about the same time.
    return swappable(free // workers_here(), pinned_limit())


def limit_pinned_memory() -> None:
    """Let TensorFlow pin no more than the host has, where nobody says how much.

    Its pool is made with the devices and reads the variable then, so this is called
    when lms is loaded; where they are made already, it is too late.
    """
    if compat.devices_are_made():
        return
    free, workers = available_host_bytes(), 1
    with suppress(WorkersError):  # `join` will say it
        workers = read_placement().local_size
    if free is not None:
        most = swappable(free // workers, pinned_limit())
        os.environ.setdefault(PINNED_VARIABLE, str(most // MIB))
