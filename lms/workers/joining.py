"""Join a job as one of its workers, before TensorFlow makes its devices.

`MultiWorkerMirroredStrategy` is the only public way to start TensorFlow's server, its
collectives and its coordination service, which waits for all workers, names missing
ones and notices dead ones. No model is made in the strategy's scope, in which Keras 3
cannot train.

Known weaknesses: TensorFlow's gRPC authenticates no one: private networks only. Of two
workers with one rank only the second fails at once; the others wait for the missing
rank until time is up. While a worker waits, TensorFlow swallows SIGTERM: launchers then
kill the worker after their grace.
"""

import atexit
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

import keras
import tensorflow as tf

from lms.errors import WorkersError
from lms.machine.ranks import (
    Placement,
    cluster_variables,
    note_joined,
    read_placement,
)
from lms.tf import compat
from lms.tf.failures import lost_words
from lms.tf.uninterrupted import handled
from lms.units import Seconds
from lms.workers.agreement import agree
from lms.workers.collectives import Workers

__all__ = ["join"]

_joined: list[Workers] = []
_FAREWELL: Seconds = 10.0


def join(
    *, timeout: Seconds = 300.0, reductions: Literal["nccl", "ring"] | None = None
) -> Workers:
    """Join the other workers of this program's job, if it has any.

    Call `join` before anything runs: TensorFlow joins a cluster when it makes devices.
    The rank comes from TF_CONFIG (`python -m lms launch`, Ray, Kubernetes), from the
    variables of an MPI launcher on one host, or from Slurm's. A second call returns the
    first call's workers.

    Args:
        timeout: Seconds to wait for the other workers.
        reductions: Implementation of sums: NVIDIA's "nccl", or TensorFlow's "ring",
            which goes through the host. None takes the variable `LMS_REDUCTIONS`, else
            "nccl" where there is a GPU.

    Returns:
        The workers; rank 0 and size 1 where no variable names others.

    Raises:
        WorkersError: If TensorFlow has made its devices, the variables contradict each
            other, a worker is late or unlike this one, or a port is taken.

    Example:
        >>> workers = join()
        >>> workers.rank, workers.size, workers.is_chief
        (0, 1, True)
    """
    if _joined:
        return _joined[0]
    placement = read_placement()
    if placement.size == 1:
        return Workers(placement=placement)
    if compat.devices_are_made():
        raise WorkersError(
            "`lms.join` must be called before TensorFlow runs anything, got a program "
            "in which it has made its devices. Call it on the first lines, before any "
            "tensor, model or data set."
        )
    _take_own_gpu(placement)
    by = reductions or os.environ.get("LMS_REDUCTIONS")
    by = by or ("nccl" if tf.config.list_physical_devices("GPU") else "ring")
    if by not in ("nccl", "ring"):
        raise WorkersError(
            f"`reductions` must be 'nccl' or 'ring', got {by!r}. Leave it out, or "
            "unset LMS_REDUCTIONS."
        )
    server = _start(placement, timeout)
    workers = Workers(placement=placement, reductions=by, server=server)
    _refuse_unlike(workers, timeout)
    _joined.append(workers)
    note_joined(placement)
    atexit.register(_leave, workers)
    return workers


def _leave(workers: Workers) -> None:
    """Let the chief end last: other workers may still read from its server.

    The chief waits for 10 seconds at most, and not at all after an error.
    """
    error, until = sys.exc_info()[1], time.monotonic() + _FAREWELL
    if hasattr(sys, "last_type") or (error and getattr(error, "code", error)):
        return
    with suppress(tf.errors.OpError):
        compat.put_in_cluster(f"lms/left/{workers.rank}", "")
        for rank in range(workers.size) if workers.is_chief else ():
            left = max(0.001, until - time.monotonic())  # 0 would wait for ever
            compat.get_from_cluster(f"lms/left/{rank}", left)


def _take_own_gpu(placement: Placement) -> None:
    """Select this worker's GPU where the launcher shows all GPUs to each worker."""
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) <= 1:
        return
    if placement.local_size > len(gpus):
        raise WorkersError(
            f"each worker must have a GPU of its own, got {placement.local_size} "
            f"workers and {len(gpus)} GPUs on one host. Start fewer workers."
        )
    tf.config.set_visible_devices(gpus[placement.local_rank], "GPU")


def _start(placement: Placement, timeout: Seconds) -> object:
    """Start TensorFlow's server, which waits for the servers of all workers."""
    os.environ.update(cluster_variables(placement))
    compat.wait_for_cluster(placement.size, timeout)
    try:
        with _ended_by_ctrl_c():
            return tf.distribute.MultiWorkerMirroredStrategy()
    except tf.errors.OpError as error:
        raise WorkersError(_why_not(placement, error)) from error


@contextmanager
def _ended_by_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C end the program at once in the `with` block; restore handlers after.

    Python's own handlers would run only after TensorFlow returns. TensorFlow's
    preemption notifier would go on to swallow SIGTERM, by which launchers end programs.
    """
    own = signal.getsignal(signal.SIGTERM)
    with handled({signal.SIGTERM: own, signal.SIGINT: signal.SIG_DFL}):
        yield


def _why_not(placement: Placement, error: tf.errors.OpError) -> str:
    """Explain TensorFlow's error at its start."""
    rank, own = placement.rank, placement.addresses[placement.rank]
    missing = re.findall(r"^/job:worker/replica:0/task:(\d+)$", str(error), re.M)
    if missing:
        names = sorted({int(name) for name in missing})
        where = ", ".join(f"{name} ({placement.addresses[name]})" for name in names)
        return (
            f"all {placement.size} workers must join, got none from {where}. Read "
            "their output: a worker that fails before `lms.join` never joins."
        )
    if "start gRPC server" in str(error):
        return (
            f"worker {rank} must be able to listen on {own}, got: {lost_words(error)}."
            " Another program, or a worker of an earlier run, may have the port: end "
            "it, or start again with other ports."
        )
    if isinstance(error, tf.errors.AlreadyExistsError):
        return (
            f"each worker must have a rank of its own, got two with rank {rank}. End "
            "the one of an earlier run, or start the job with one launcher."
        )
    return (
        f"worker {rank} must reach worker 0 at {placement.addresses[0]}, got: "
        f"{lost_words(error)}. Check that it runs, that its name resolves and its "
        "port is open."
    )


def _refuse_unlike(workers: Workers, timeout: Seconds) -> None:
    gpus = tf.config.list_physical_devices("GPU")
    own = {
        "number of workers": workers.size,
        "versions": f"TensorFlow {tf.__version__}, Keras {keras.__version__}",
        "devices": "a GPU" if gpus else "no GPU",
        "reductions": workers.reductions,
    }
    advice = "Start all from one environment, with one launcher."
    agree(workers, own, at="who joins", advice=advice, timeout=timeout)
