"""Initial values of large variables, made part by part in the host's memory.

    initialiser ──traced──> element-wise ops of random numbers ──some each──> array

An initialiser makes the whole tensor on the device, often three times over, and there
may be no room for it once. TensorFlow's stateless random numbers are counted (Philox:
Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): four of them belong
to a count, so rows can be drawn alone, with the same bits. Truncated normal ones are
drawn until they fit, from so many counts that are set aside for four of them
(`kReservedSamplesPerOutput` in random_op_cpu.h).

What cannot be made part by part, such as orthogonal matrices, is made on the device,
or if there is no room in a process of its own, which runs this file.
"""

import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import tensorflow as tf

from lms.machine import emulate
from lms.tf import compat
from lms.units import MIB, Bytes, format_bytes

__all__ = ["made_on_host"]

_LOG = logging.getLogger("lms")

_PART = MIB // 4
_NEEDED = 8  # bytes for each byte of what is made whole
_PER_COUNT, _MOST = 4, 4  # numbers of up to so many bytes
_PHILOX = (1, 3)  # by name, and what a CPU takes by itself
_RANDOM = {  # and the counts that four of them take
    "StatelessRandomUniformV2": 1,
    "StatelessRandomNormalV2": 1,
    "StatelessTruncatedNormalV2": 256,
}
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
    if tensor is None or isinstance(tensor, np.ndarray):
        return tensor
    is_drawn = tensor.op.type == "Const"  # by NumPy: not to be drawn once more
    size = tensor.shape.num_elements() * tensor.dtype.size
    if size < least and not is_drawn:
        return None
    array = compat.aligned(np.empty(tensor.shape.as_list(), _numpy_type(tensor)))
    flat = array.reshape(-1)
    count = _PART // tensor.dtype.size
    try:
        for first in range(0, len(flat), count):
            end = min(len(flat), first + count)
            flat[first:end] = _part(tensor, first, end).numpy()
    except _UnknownError:
        return _made_elsewhere(tensor)
    return array


def _numpy_type(tensor: Any) -> Any:
    return tensor.dtype.as_numpy_dtype


def _traced(value: Callable[[], Any]) -> Any:
    """The tensor in a graph of its own, or an array.

    None if it has effects or no known shape.
    """
    graph = tf.Graph()
    try:
        with graph.as_default():
            tensor = value()
    except Exception:  # whatever it says, it will say again when it runs
        return None
    if isinstance(tensor, np.ndarray):
        return tensor
    if not isinstance(tensor, tf.Tensor) or not tensor.shape.is_fully_defined():
        return None
    return tensor if tensor.shape.rank else None


def _part(tensor: Any, first: int, end: int) -> Any:
    """Some elements of a tensor, counted through all its axes; all of a scalar."""
    op = tensor.op
    if tensor.shape.rank == 0:
        return _small(tensor)
    if op.type == "Fill":
        return tf.fill([end - first], _small(op.inputs[1]))
    if op.type in _RANDOM:
        return _random(op, first, end)
    if op.type == "Const":
        return tf.constant(tf.get_static_value(tensor).reshape(-1)[first:end])
    if op.type == "Identity":
        return _part(op.inputs[0], first, end)
    if op.type not in _PAIRS or not _is_elementwise(op):
        raise _UnknownError(op.type)
    x, y = (_part(source, first, end) for source in op.inputs)
    return getattr(tf.raw_ops, op.type)(x=x, y=y)


def _is_elementwise(op: Any) -> bool:
    """Whether all that it reads is a scalar or of its own shape."""
    shape = op.outputs[0].shape
    return all(source.shape.rank == 0 or source.shape == shape for source in op.inputs)


def _random(op: Any, first: int, end: int) -> Any:
    dtype = op.outputs[0].dtype
    _, key, counter, alg = map(_small, op.inputs)
    if dtype.size > _MOST or int(alg) not in _PHILOX:
        raise _UnknownError(op.type)
    count = int(counter[0]) + first // _PER_COUNT * _RANDOM[op.type]
    if count >> 64:
        raise _UnknownError(op.type)
    counter = tf.constant([count, int(counter[1])], tf.uint64)
    draw = getattr(tf.raw_ops, op.type)
    return draw(shape=[end - first], key=key, counter=counter, alg=alg, dtype=dtype)


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


def _made_elsewhere(tensor: Any) -> np.ndarray | None:
    """What a process with plenty of memory makes, if the device has too little."""
    graph, size = tensor.graph, tensor.shape.num_elements() * tensor.dtype.size
    if _fits(size) or any(op.op_def.is_stateful for op in graph.get_operations()):
        return None
    array = compat.aligned(np.empty(tensor.shape.as_list(), _numpy_type(tensor)))
    try:
        read = _ask(tensor, array.reshape(-1).view(np.uint8))
    except (OSError, ValueError) as error:  # it ended, or the graph is too large
        read = error
    if read == size:
        return array
    _LOG.warning(
        "An initial value of %s could not be made in a process of its own, got %s. It "
        "is made on the device, where there may be no room for it.",
        format_bytes(size),
        read,
    )
    return None


def _ask(tensor: Any, into: np.ndarray) -> int:
    """Let another process make a value; returns how many bytes came."""
    threading = tf.config.threading
    asked = {
        "graph": tensor.graph.as_graph_def().SerializeToString(),
        "name": tensor.name,
        "inter": threading.get_inter_op_parallelism_threads(),
        "intra": threading.get_intra_op_parallelism_threads(),
        "is_deterministic": compat.ops_are_deterministic(),
    }
    with subprocess.Popen(
        [sys.executable, "-P", "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=_environment(into.nbytes),
    ) as process:
        question, answer = cast(Any, process.stdin), cast(Any, process.stdout)
        pickle.dump(asked, question)
        question.close()
        return answer.readinto(into)


def _fits(size: Bytes) -> bool:
    """Whether a value of such a size can be made on the device."""
    limit = emulate.device_limit()
    if limit is None:
        return True
    used = tf.config.experimental.get_memory_info("CPU:0")["current"]
    return used + _NEEDED * size <= limit


def _environment(size: Bytes) -> dict[str, str]:
    """Find the same packages there, by whatever way, and run the same kernels."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    onednn = {"TF_ENABLE_ONEDNN_OPTS": str(int(compat.onednn_is_on()))}
    room = emulate.environment(MIB + _NEEDED * size)
    return emulate.started_environment(
        room | onednn, {**os.environ, "PYTHONPATH": path}
    )


def _answer() -> None:
    """Make the value that is asked for, and print its bytes."""
    asked = pickle.load(sys.stdin.buffer)
    tf.config.threading.set_inter_op_parallelism_threads(asked["inter"])
    tf.config.threading.set_intra_op_parallelism_threads(asked["intra"])
    if asked["is_deterministic"]:
        tf.config.experimental.enable_op_determinism()
    graph = compat.GraphDef.FromString(asked["graph"])
    with compat.planned_as_is():
        (value,) = compat.build_function(graph, [], [asked["name"]]).call_flat()
    made = value.numpy().reshape(-1).view(np.uint8)
    sys.stdout.buffer.write(memoryview(made))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    _answer()
