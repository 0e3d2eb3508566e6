"""Measurements of a device, kept in this process and on disk.

Measurements hold for a device's model, the threads, the enabled kernels and the
versions. If one of these differs, the device is measured again.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

import tensorflow as tf

from lms.machine.host import processor_name, usable_cores
from lms.storage.cache import digest, read_entry, sources, write_entry
from lms.tf import compat
from lms.tf.measure.devices import Device
from lms.units import Bytes, Seconds

__all__ = ["Measurements", "keep_measurements", "measurements_of"]

_KIND = "measured"


@dataclass(slots=True, kw_only=True)
class Measurements:
    """Measurements of one device.

    Args:
        scratch: Bytes that ops need beside inputs and outputs, by bench key.
        reserved: Bytes that cuDNN's layers leave to their gradients, by bench key.
        seconds: Seconds of a call of an op alone, by bench key.
        rates: Rates of computing, of memory and of the link, each behind the bytes of
            the tensors that were measured.
    """

    scratch: dict[str, Bytes] = field(default_factory=dict[str, Bytes])
    reserved: dict[str, Bytes] = field(default_factory=dict[str, Bytes])
    seconds: dict[str, Seconds] = field(default_factory=dict[str, Seconds])
    rates: dict[str, tuple[int, float]] = field(
        default_factory=dict[str, tuple[int, float]]
    )


_known: dict[str, Measurements] = {}
_kept: dict[str, str] = {}  # digests of what is on disk


def measurements_of(device: Device) -> Measurements:
    """Measurements of a device, to which callers add."""
    name = _name(device)
    if name not in _known:
        _known[name] = read_entry(_KIND, name, Measurements) or Measurements()
        _kept[name] = digest(_known[name])
    return _known[name]


def keep_measurements() -> None:
    """Store new measurements on disk."""
    for name, known in _known.items():
        if digest(known) != _kept[name]:
            write_entry(_KIND, name, known)
            _kept[name] = digest(known)


def _name(device: Device) -> str:
    threading = tf.config.threading
    return digest(
        sources(),
        tf.__version__,
        _cudnn(),
        device.name,
        _model(device),
        processor_name(),  # of the processor that launches the ops
        usable_cores(),
        threading.get_inter_op_parallelism_threads(),
        threading.get_intra_op_parallelism_threads(),
        compat.ops_are_deterministic(),
        compat.onednn_is_on(),
        tf.config.experimental.tensor_float_32_execution_enabled(),
    )


def _cudnn() -> str | None:
    """Version of cuDNN's wheel: reserve space and scratch may depend on it."""
    with suppress(PackageNotFoundError):
        return version("nvidia-cudnn-cu12")
    return None


def _model(device: Device) -> str | None:
    if not device.is_gpu:
        return None
    index = int(device.name.rpartition(":")[2])
    physical = [
        gpu
        for gpu in tf.config.get_visible_devices("GPU")
        for _ in tf.config.get_logical_device_configuration(gpu) or [None]
    ]
    return str(tf.config.experimental.get_device_details(physical[index]))
