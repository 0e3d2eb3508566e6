"""What TensorFlow and Keras say of themselves and of the devices that they see."""

import keras
import tensorflow as tf

from lms.machine.inventory import Installation
from lms.tf import compat
from lms.tf.measure.devices import find_device

__all__ = ["read_installation"]


def read_installation() -> Installation:
    """Ask TensorFlow; it starts its devices for that."""
    built = tf.sysconfig.get_build_info()
    gpus = tf.config.list_physical_devices("GPU")
    growth = any(tf.config.experimental.get_memory_growth(gpu) for gpu in gpus)
    device = find_device()
    return Installation(
        backend=keras.config.backend(),
        cuda=built.get("cuda_version"),
        cudnn=built.get("cudnn_version"),
        onednn=compat.onednn_is_on(),
        gpus=len(gpus),
        device=device.name,
        limit=device.limit,
        growth=growth,
    )
