"""The doors of state on the host: what a user calls before `fit`.

`fit` makes an optimizer's slots before any callback is asked, so they must be on the
host by then.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from lms.errors import UnsupportedError
from lms.tf import compat
from lms.tf.host_variables import LEAST, move, take_arrays
from lms.tf.initial_values import made_on_host

__all__ = ["check_device", "keep_on_host", "on_host"]


@contextmanager
def on_host() -> Iterator[None]:
    """Within it, large variables are made on the host, such as a model's weights.

    A planned step (`LMSCallback`, `fit_in_memory`) copies to the device what its ops
    read, and writes back what it changes. The device never holds all of it.

    Raises:
        UnsupportedError: On a GPU.

    Example:
        >>> import keras
        >>> import lms
        >>> with lms.on_host():
        ...     model = keras.Sequential([keras.Input((512,)), keras.layers.Dense(64)])
        >>> lms.keep_on_host(model)  # after `compile` its optimizer's slots too
    """
    check_device()

    def creator(next_creator: Any, **arguments: Any) -> Any:
        if tf.executing_eagerly():
            value, dtype = arguments.get("initial_value"), arguments.get("dtype")
            arguments["initial_value"] = _initial(value, dtype)
        variable = next_creator(**arguments)
        if tf.executing_eagerly():
            move(variable)
        return variable

    take_arrays()
    with tf.variable_creator_scope(creator):
        yield


def keep_on_host(model: keras.Model) -> None:
    """Let a model's large weights, and its optimizer's slots, live on the host.

    Call it after `compile` and before `fit`, which would make the slots on the device.
    A model that does not fit the device even once is built within `lms.on_host()`.

    Args:
        model: A built model.

    Raises:
        TypeError: If it is no Keras model.
        ValueError: If it is not built: its weights do not exist.
        UnsupportedError: On a GPU.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"`model` must be a keras.Model, got {type(model).__name__}. Build "
            "variables of your own within `with lms.on_host():`."
        )
    if not model.built:
        raise ValueError(
            f"`model` must be built, got {model.name!r} without weights. Give it an "
            "`Input`, or call `model.build(shape)`."
        )
    check_device()
    for weight in model.variables:
        move(weight.value)
    take_arrays()
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return
    with on_host():
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
    for slot in optimizer.variables:
        move(slot.value)


def check_device() -> None:
    """Refuse a device that state on the host was never tried with.

    Raises:
        UnsupportedError: On a GPU.
    """
    if tf.config.list_logical_devices("GPU"):
        raise UnsupportedError(
            "state must be kept on the host of a CPU, emulated or not, got a GPU: that "
            "was not tried yet. Build the model within `tf.device('CPU:0')`, which "
            "TensorFlow copies whole tensors from, or keep its state on the device."
        )


def _initial(value: Any, dtype: Any) -> Any:
    """A value that is made on the host, where it can be."""
    if not callable(value):
        return value

    def made() -> Any:
        known = made_on_host(value, LEAST)
        if known is None:
            return value()
        numpy_type = known.dtype if dtype is None else tf.as_dtype(dtype).as_numpy_dtype
        return compat.host_tensor(known.astype(numpy_type, copy=False))

    return made
