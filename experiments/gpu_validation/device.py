"""The device of a trial, made before TensorFlow computes anything.

A logical device with a limit makes a large GPU a small one. In a rehearsal the limit
was set by the variables that the process was started with.

Sources: `BaseGPUDeviceFactory` in tensorflow/core/common_runtime/gpu/gpu_device.cc; a
GPU with a logical device takes all of that memory at once, whatever `allow_growth` is
in Python, but not if TF_FORCE_GPU_ALLOW_GROWTH says otherwise (gpu_process_state.cc).
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from lms.errors import LMSError
from lms.tf import compat
from lms.tf.measure.devices import Device, find_device
from lms.units import MIB, Bytes

__all__ = ["NoGpuError", "make_device"]


class NoGpuError(LMSError):
    """TensorFlow sees no GPU."""


def make_device(
    kind: str, memory: Bytes | None, options: Mapping[str, Any] | None = None
) -> Device:
    """Limit the device, and find it as the library does.

    Args:
        kind: "gpu" or "cpu".
        memory: Bytes of a GPU; None for all of it.
        options: GPU options without a public setter.

    Raises:
        NoGpuError: If there is none.
    """
    if options:
        compat.set_gpu_options(**options)
    if kind == "cpu":
        return find_device()
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        raise NoGpuError(
            "no GPU found by TensorFlow. Run this where `nvidia-smi` works and "
            "tensorflow[and-cuda] is installed, or rehearse with --device cpu."
        )
    tf.config.set_visible_devices(gpus[:1], "GPU")
    if memory is not None:
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=memory // MIB)
        tf.config.set_logical_device_configuration(gpus[0], [limit])
    return find_device()
