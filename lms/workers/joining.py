"""Become one of the workers of a job, before TensorFlow makes its devices.

TensorFlow's server, its coordination service (which notices dead workers) and its
collectives are started by `MultiWorkerMirroredStrategy`: it is their only public door.
No model is made in its scope, in which Keras 3 cannot train.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import keras
import tensorflow as tf

from lms.errors import WorkersError
from lms.machine.placement import (
    Placement,
    cluster_variables,
    note_joined,
    read_placement,
)
from lms.tf import compat
from lms.units import Seconds
from lms.workers.collectives import Workers
from lms.workers.lost import lost_in_words
from lms.workers.rendezvous import meet

__all__ = ["join", "lost_workers_in_words"]

_joined: list[Workers] = []


def join(
    *, timeout: Seconds = 300.0, reductions: Literal["nccl", "ring"] | None = None
) -> Workers:
    """Join the other workers of this program's job, if it has any.

    Call it before anything runs: TensorFlow joins a cluster when it makes its devices.
    Which worker this is say TF_CONFIG (`python -m lms launch`, Ray, Kubernetes), the
    variables of Slurm, or those of an MPI launcher on one host. A second call returns
    the same.

    Args:
        timeout: How many seconds to wait for the others.
        reductions: Who sums gradients: NVIDIA's "nccl", or TensorFlow's "ring", which
            takes the way through the host. None takes what `LMS_REDUCTIONS` says, else
            "nccl" where there is a GPU.

    Returns:
        The workers; alone, with rank 0 and size 1, where nobody names others.

    Raises:
        WorkersError: If it is too late, the variables make no sense, a worker does not
            come in time or is not like this one, or a port is taken.

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
    meet(placement, said=_versions(), timeout=timeout)
    _take_own_gpu(placement)
    by = reductions or os.environ.get("LMS_REDUCTIONS") or _usual_reductions()
    if by not in ("nccl", "ring"):
        raise WorkersError(
            f"`reductions` must be 'nccl' or 'ring', got {by!r}. Leave it out, or "
            "unset LMS_REDUCTIONS."
        )
    server = _start(placement)
    _joined.append(Workers(placement=placement, reductions=by, server=server))
    note_joined(placement)
    return _joined[0]


@contextmanager
def lost_workers_in_words() -> Iterator[None]:
    """Within it, a worker that has ended is said in words.

    Raises:
        WorkersError: In place of TensorFlow's error, in a program that has joined.
    """
    if not _joined:
        yield
        return
    with lost_in_words(_joined[0].rank, _joined[0].size):
        yield


def _usual_reductions() -> str:
    return "nccl" if tf.config.list_physical_devices("GPU") else "ring"


def _versions() -> str:
    kind = "a GPU" if tf.config.list_physical_devices("GPU") else "no GPU"
    return f"TensorFlow {tf.__version__}, Keras {keras.__version__}, {kind}"


def _take_own_gpu(placement: Placement) -> None:
    """One GPU for each worker of a host, where launchers show all of them to all."""
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) <= 1:
        return
    if placement.local_size > len(gpus):
        raise WorkersError(
            f"each worker must have a GPU of its own, got {placement.local_size} "
            f"workers and {len(gpus)} GPUs on one host. Start fewer workers."
        )
    tf.config.set_visible_devices(gpus[placement.local_rank], "GPU")


def _start(placement: Placement) -> object:
    """Start TensorFlow's server; what its notifier of preemption does is undone.

    It would swallow SIGTERM, by which launchers end a program.
    """
    before = signal.getsignal(signal.SIGTERM)
    os.environ.update(cluster_variables(placement))
    server = tf.distribute.MultiWorkerMirroredStrategy()
    # Python sets signals in its main thread alone; Ray trains in another one.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)
    return server
