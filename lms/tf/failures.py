"""Recognise TensorFlow's errors about memory and workers; write messages for users."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf

from lms.errors import LMSError, OutOfMemoryError, WorkersError
from lms.machine.host import PINNED_VARIABLE
from lms.machine.ranks import joined
from lms.units import Bytes, format_bytes

__all__ = ["NOT_UNDONE", "changed_on_the_way", "first_words", "given_up"]
__all__ += ["half_written", "host_is_full", "lost_in_words", "lost_words"]
__all__ += ["ran_out", "ran_out_on_host", "refused_in_words"]

_MIXED = "Some of the model's variables may be updated and some not"
NOT_UNDONE = f"{_MIXED}: load them from a checkpoint."

# TensorFlow's words where a constant finds no memory, also in shape inference.
_NOT_FOLDED = "Unable to evaluate a constant node"

# Words of kernels whose library found no memory, whatever the error's class: cuDNN's
# (conv_ops_gpu.h, cuda_dnn.cc), cuBLAS's (cuda_blas.cc), the driver's, and those of
# receives, which do not check their tensor (gpu_util.cc, `PrepareCopy`). Recurrent ops
# (cudnn_rnn_ops.cc) drop the cause: an H200 reported their words alone. The first words
# are XLA's. The last words may stand for the error of another replica, which cancelled
# the reduction: a step that ran out of memory on one card ended so.
_LIBRARIES = (
    "Out of memory while trying to allocate",
    "No algorithm worked!",
    "CUDNN failed to allocate the scratch space",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "failed to create cublas handle",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "Failed to allocate the requested memory size",
    "Failed to allocate request for",
    "Dst tensor is not initialized",
    "Failed to call DoRnn",
    "Collective ops is aborted by: group is cancelled",
)
_SAID = ("OOM when", "SameWorkerRecvDone unable", _NOT_FOLDED, *_LIBRARIES)

# Name of the pool of pinned memory, or a receive on the host, which names no pool.
_ON_HOST = re.compile(
    "gpu_host_bfc|SameWorkerRecvDone unable .* Key: [^;]*;[^;]*;[^;]*CPU:[0-9]+;"
)

_TOLD = 300  # characters shown of TensorFlow's message

# Errors of a step when another worker has ended, at once or after missed heartbeats.
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
)


def ran_out(error: BaseException) -> bool:
    """Tell whether TensorFlow's error says that memory is used up, by class or by text.

    Example:
        >>> ran_out(tf.errors.NotFoundError(None, None, "No algorithm worked!"))
        True
    """
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return True
    said = str(error) if isinstance(error, tf.errors.OpError) else ""
    return any(words in said for words in _LIBRARIES)


def ran_out_on_host(error: BaseException) -> bool:
    """Tell whether the host's pinned memory is used up."""
    return ran_out(error) and _ON_HOST.search(str(error)) is not None


@contextmanager
def refused_in_words(doing: str) -> Iterator[None]:
    """Within the context, turn TensorFlow's out-of-memory errors into our own.

    Args:
        doing: The activity, such as "plan a step".

    Raises:
        OutOfMemoryError: In place of TensorFlow's error.
    """
    try:
        yield
    except LMSError:  # the text of a refusal is made where somebody reads
        raise
    except (tf.errors.OpError, ValueError) as error:
        if not ran_out(error) and _NOT_FOLDED not in str(error):
            raise
        raise OutOfMemoryError(
            f"Could not {doing}: out of memory on the device ({first_words(error)}). "
            "Delete other models and tensors on the device, let the input pipeline "
            "read less ahead, or use a smaller model."
        ) from error


def first_words(error: BaseException) -> str:
    """The line of TensorFlow's message that says what did not fit."""
    text = str(error)
    said = (
        line[line.index(word) :]
        for word in _SAID
        for line in text.splitlines()
        if word in line
    )
    return next(said, text.strip().partition("\n")[0]).strip()


def changed_on_the_way(changed: Sequence[str], *, is_undone: bool) -> str:
    """Message: a moved tensor came back with other bytes, or a second run differs."""
    more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
    variables = NOT_UNDONE
    if is_undone:
        variables = "The model's variables are as before the step: save them."
    return (
        f"Could not trust a step: {changed[0]}{more}. {variables} Test the memory of "
        "host and device, and report what `save_record` writes."
    )


def host_is_full(reason: str, is_undone: bool) -> str:  # noqa: FBT001 - said in words
    """Message: the host has no pinned memory for a copy."""
    undone = "The model's variables are as before the step: save them."
    variables = undone if is_undone else f"{_MIXED}."
    return (
        f"Could not pin host memory for swapped tensors: {reason}. Raise "
        f"{PINNED_VARIABLE} where there is more RAM, or give a smaller `host_memory`, "
        f"so that more is recomputed. {variables}"
    )


def given_up(reason: str, budget: Bytes | None, plans: int) -> str:
    """Message: a step ran out of memory with each of its plans."""
    within = "" if budget is None else f" in its budget of {format_bytes(budget)}"
    count = "1 plan" if plans == 1 else f"{plans} plans"
    return (
        f"Could not run a step{within}: out of memory "
        f"with {count} ({reason}). The model's variables are as before the step. "
        "Use a smaller batch or volume, let the input pipeline read less ahead, or "
        "give a smaller `budget`."
    )


def half_written(reason: str, *, had_plan: bool) -> str:
    """Message: a step ran out of memory, and may have written variables.

    With a plan, memory ran out after the commit point.
    """
    if not had_plan:
        return (
            f"Could not finish a step that seemed to fit: {reason}. {NOT_UNDONE[:-1]}, "
            "and give a smaller `budget`, so that the step is planned."
        )
    return (
        f"Could not finish a step: out of memory while it writes variables ({reason}). "
        "Some of the model's variables are updated and some are not: load them from a "
        "checkpoint, and use a smaller `budget`, batch or volume."
    )


@contextmanager
def lost_in_words() -> Iterator[None]:
    """Within the context, turn errors about an ended worker into our own.

    Raises:
        WorkersError: In place of TensorFlow's error, in a program that has joined.
    """
    own = joined()
    try:
        yield
    except _LOST as error:
        if own.size == 1:
            raise
        raise WorkersError(
            f"worker {own.rank} of {own.size} cannot go on: another worker has ended "
            f"or does not answer ({lost_words(error)}). Read the output of the other "
            "workers; restart all workers from the last checkpoint."
        ) from error


def lost_words(error: Exception) -> str:
    """The line of TensorFlow's message on the worker, without places in the graph."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(("[[", "File "))]
    about = [line for line in said if "ollective" in line or "heartbeat" in line]
    return (about or said or [type(error).__name__])[0][:_TOLD]
