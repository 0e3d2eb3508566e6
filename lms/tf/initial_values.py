"""Initial values of large variables, made part by part in the host's memory.

    initialiser ──traced──> element-wise ops of random numbers ──rows at a time──> array

An initialiser makes the whole tensor on the device, often three times over, and there
may be no room for it once. TensorFlow's stateless random numbers are counted (Philox:
Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): four of them belong
to a count, so rows can be drawn alone, with the same bits.

Known weakness: constants, uniform and normal numbers only. Truncated normal ones are
drawn until they fit, and are made whole on the device, as other values are.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from lms.tf import compat
from lms.units import MIB, Bytes

__all__ = ["made_on_host"]

_PART = MIB
_PER_COUNT = 4  # numbers of up to four bytes
_PHILOX = (1, 3)  # by name, and what a CPU takes by itself
_RANDOM = ("StatelessRandomUniformV2", "StatelessRandomNormalV2")
_PAIRS = ("Mul", "AddV2", "Sub", "RealDiv")


class _UnknownError(Exception):
    """An op that cannot be run for some rows alone."""


def made_on_host(value: Callable[[], Any], least: Bytes) -> np.ndarray | None:
    """What an initialiser yields, without room for it on the device.

    Args:
        value: The initialiser; it is traced, and must have no effects.
        least: Smaller values are left.

    Returns:
        The array, in memory that TensorFlow takes as it is; None where the initialiser
        must run as it is.
    """
    tensor = _traced(value)
    if tensor is None or tensor.shape.num_elements() * tensor.dtype.size < least:
        return None
    shape = tensor.shape.as_list()
    row = tensor.shape.num_elements() // shape[0]
    count = max(1, _PART // (row * tensor.dtype.size * _PER_COUNT)) * _PER_COUNT
    array = compat.aligned(np.empty(shape, tensor.dtype.as_numpy_dtype))
    try:
        for first in range(0, shape[0], count):
            end = min(shape[0], first + count)
            array[first:end] = _rows(tensor, first, end).numpy()
    except _UnknownError:
        return None
    return array


def _traced(value: Callable[[], Any]) -> Any:
    """The tensor in a graph of its own; None if it has effects or no known shape."""
    graph = tf.Graph()
    try:
        with graph.as_default():
            tensor = value()
    except Exception:  # whatever it says, it will say again when it runs
        return None
    if not isinstance(tensor, tf.Tensor) or not tensor.shape.is_fully_defined():
        return None
    return tensor if tensor.shape.rank else None


def _rows(tensor: Any, first: int, end: int) -> Any:
    """Some rows of a tensor of the whole shape; all of a scalar."""
    op = tensor.op
    if tensor.shape.rank == 0:
        return _small(tensor)
    shape = [end - first, *tensor.shape.as_list()[1:]]
    if op.type == "Fill":
        return tf.fill(shape, _small(op.inputs[1]))
    if op.type in _RANDOM:
        return _random(op, shape, first)
    if op.type == "Identity":
        return _rows(op.inputs[0], first, end)
    if op.type not in _PAIRS:
        raise _UnknownError(op.type)
    x, y = (_rows(source, first, end) for source in op.inputs)
    return getattr(tf.raw_ops, op.type)(x=x, y=y)


def _random(op: Any, shape: list[int], first: int) -> Any:
    dtype = op.outputs[0].dtype
    begin = first * int(np.prod(shape[1:]))
    _, key, counter, alg = map(_small, op.inputs)
    if dtype.size > _PER_COUNT or begin % _PER_COUNT or int(alg) not in _PHILOX:
        raise _UnknownError(op.type)
    count = int(counter[0]) + begin // _PER_COUNT
    if count >> 64:
        raise _UnknownError(op.type)
    counter = tf.constant([count, int(counter[1])], tf.uint64)
    draw = getattr(tf.raw_ops, op.type)
    return draw(shape=shape, key=key, counter=counter, alg=alg, dtype=dtype)


def _small(tensor: Any) -> Any:
    """A scalar, or a seed: run as it is."""
    op = tensor.op
    if op.type == "Const":
        return tf.constant(tf.get_static_value(tensor), tensor.dtype)
    if op.type == "StatelessRandomGetKeyCounter":
        found = tf.raw_ops.StatelessRandomGetKeyCounter(seed=_small(op.inputs[0]))
        return found[tensor.value_index]
    if op.type == "StatelessRandomGetAlg":
        return tf.raw_ops.StatelessRandomGetAlg()
    if op.type == "Cast":
        return tf.cast(_small(op.inputs[0]), tensor.dtype)
    if op.type in (*_PAIRS, "FloorMod"):
        x, y = map(_small, op.inputs)
        return getattr(tf.raw_ops, op.type)(x=x, y=y)
    raise _UnknownError(op.type)
