"""Reword TensorFlow's errors about another worker that has ended."""

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from lms.errors import WorkersError
from lms.machine.ranks import joined

__all__ = ["lost_in_words", "lost_words"]

_TOLD = 300  # characters shown of TensorFlow's message

# Errors of a step when another worker has ended, at once or after missed heartbeats.
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
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
    said = [line for line in lines if line and not line.startswith("[[")]
    about = [line for line in said if "ollective" in line or "heartbeat" in line]
    about = [line for line in about if not line.startswith("File ")]
    return (about or said or [type(error).__name__])[0][:_TOLD]
