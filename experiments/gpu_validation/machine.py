"""What the machine is: GPU, driver, CUDA, cuDNN; and whether the GPU computes."""

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import asdict

import tensorflow as tf

from lms.commands.diagnosis import judge
from lms.commands.doctor import gather
from lms.tf.measure.devices import Device
from lms.tf.measure.host_memory import available_host_bytes

__all__ = ["describe"]

_QUERY = "name,driver_version,memory.total,memory.used"


def describe(device: Device, note: Callable[..., None]) -> None:
    """Note the machine, and where a convolution was computed.

    Args:
        device: Where.
        note: Takes results by name.
    """
    built = tf.sysconfig.get_build_info()
    note(
        device=device.name,
        limit_bytes=device.limit,
        host_free_bytes=available_host_bytes(),
        built={
            key: str(built[key])
            for key in ("cuda_version", "cudnn_version", "is_cuda_build")
            if key in built
        },
        gpus=[
            tf.config.experimental.get_device_details(gpu)
            for gpu in tf.config.list_physical_devices("GPU")
        ],
        nvidia_smi=_nvidia_smi(),
    )
    with tf.device(device.name):
        volume = tf.random.stateless_normal([1, 16, 16, 16, 4], (0, 1))
        kernel = tf.random.stateless_normal([3, 3, 3, 4, 8], (0, 2))
        made = tf.nn.conv3d(volume, kernel, [1] * 5, "SAME")
    note(computed_on=made.device, sum=float(tf.reduce_sum(made)))
    note(findings=[asdict(finding) for finding in judge(gather())])


def _nvidia_smi() -> str | None:
    """What the driver's own program says, which needs no package; None without it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    words = [program, f"--query-gpu={_QUERY}", "--format=csv,noheader"]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=30
    )
    return (done.stdout or done.stderr).strip()
