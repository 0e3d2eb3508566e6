"""What is said when a device runs out of memory: in words that say what to do."""

from collections.abc import Iterator
from contextlib import contextmanager

from lms.errors import OutOfMemoryError
from lms.tf.rewrite.rebuilding import RAN_OUT
from lms.units import Bytes, format_bytes

__all__ = ["first_words", "given_up", "half_written"]
__all__ += ["refused_in_words", "unwatched"]

# What errors of TensorFlow say of it, also where shapes are inferred.
_NOT_FOLDED = "Unable to evaluate a constant node"
_SAID = ("OOM when", _NOT_FOLDED)


@contextmanager
def refused_in_words(doing: str) -> Iterator[None]:
    """Within it, a device without room for what is done raises an error of our own.

    Args:
        doing: What is done.

    Raises:
        OutOfMemoryError: In place of TensorFlow's error.
    """
    try:
        yield
    except (RAN_OUT, ValueError) as error:
        if not isinstance(error, RAN_OUT) and _NOT_FOLDED not in str(error):
            raise
        raise OutOfMemoryError(
            f"{doing} must find room on the device, got {first_words(error)}. Delete "
            "other models and tensors on it, let the input pipeline read less ahead, "
            "or use a smaller model."
        ) from error


def first_words(error: Exception) -> str:
    """The line of TensorFlow's message that says what did not fit."""
    text = str(error)
    said = (
        line[line.index(word) :]
        for word in _SAID
        for line in text.splitlines()
        if word in line
    )
    return next(said, text.strip().partition("\n")[0]).strip()


def given_up(reason: str, room: Bytes, plans: int) -> str:
    """A step ran out of memory with all plans that were made for it.

    Args:
        reason: What TensorFlow says.
        room: What it was planned into.
        plans: How many were tried.
    """
    return (
        f"a step must run in the {format_bytes(room)} that it was "
        f"planned into, got out of memory with {plans} plans: {reason}. The model's "
        "variables are as before the step. Use a smaller batch or volume, let the "
        "input pipeline read less ahead, or give a smaller `budget`."
    )


def unwatched(reason: str) -> str:
    """A step that is not planned ran out of memory, and may have written."""
    return (
        f"a step that seemed to fit must not run out of memory, got {reason}. Some of "
        "the model's variables may be updated and some not: load them from a "
        "checkpoint, and give a smaller `budget`, so that the step is planned."
    )


def half_written(reason: str) -> str:
    """A planned step ran out of memory after it had begun to write."""
    return (
        "a step must not run out of memory while it writes variables, got "
        f"{reason}. Some of the model's variables are updated and some are not: load "
        "them from a checkpoint, and use a smaller `budget`, batch or volume."
    )
