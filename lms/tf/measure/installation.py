"""TensorFlow and Keras as they are installed, and the devices that they see."""

import keras
import tensorflow as tf

from lms.machine.inventory import Installation
from lms.tf.measure.devices import find_device, memory_grows

__all__ = ["read_installation"]


def read_installation() -> Installation:
    """Ask TensorFlow; it starts its devices for that."""
    built = tf.sysconfig.get_build_info()
    gpus = tf.config.list_physical_devices("GPU")
    details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
    device = find_device()
    return Installation(
        backend=keras.config.backend(),
        cuda=built.get("cuda_version"),
        cudnn=built.get("cudnn_version"),
        gpus=len(gpus),
        device=device.name,
        limit=device.limit,
        growth=memory_grows(),
        capability=details.get("compute_capability"),
    )
