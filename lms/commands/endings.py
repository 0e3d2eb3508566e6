"""Ends of a command: its exit code, or one line with the cause of its failure.

An error that the user can mend becomes one line: value, rule, next step. Any other
error is a bug and keeps its traceback; `LMS_DEBUG=1` shows every traceback.

Known weakness: Python handles a signal only after the running op has ended.
"""

import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

from lms.errors import LMSError
from lms.tf.uninterrupted import handled

__all__ = ["end_well"]

_DEBUG = "LMS_DEBUG"
_BAD = 2
_TOO_LITTLE = 3
_BY_SIGNAL = 128

_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
_MENDABLE = (LMSError, ValueError, OSError, MemoryError)


def end_well(
    run: Callable[[], int],
    say: Callable[[str], None],
    *,
    advice: Callable[[], str] = str,
) -> int:
    """Run a command; turn errors that a user can mend into a line and an exit code.

    Args:
        run: The command; returns its own exit code.
        say: Writes the line.
        advice: Returns the next step after a signal or a disk's fault, or "".

    Returns:
        The command's code; 2 after a bad value or file, 3 where there is too little
        memory, 130 after Ctrl-C, 143 after SIGTERM.
    """
    heard = list[signal.Signals]()
    try:
        with _listening(heard):
            return run()
    except BaseException as error:
        # A library whose import is interrupted may raise an error of its own.
        number = heard[0] if heard else None
        if isinstance(error, KeyboardInterrupt):
            number = number or signal.SIGINT
        mendable = number is not None or isinstance(error, _MENDABLE)
        if os.environ.get(_DEBUG) or not mendable:
            raise
        if number is None:
            # Only after a disk's fault: our own errors name the next step.
            after = advice() if isinstance(error, OSError) and error.errno else ""
            say(f"Error: {_told(error)} {after}".rstrip())
            return _TOO_LITTLE if isinstance(error, MemoryError) else _BAD
        say(f"Ended by {_NAMES[number]}. {advice()}".rstrip())
        return _BY_SIGNAL + number


def _told(error: BaseException) -> str:
    if isinstance(error, MemoryError) and not isinstance(error, LMSError):
        return f"the host has too little memory ({error})."
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    what = "a file" if error.filename is None else f"`{error.filename}`"
    step = "Check its path, its permissions, and the free space on its disk."
    return f"could not use {what}: {error.strerror}. {step}"


@contextmanager
def _listening(heard: list[signal.Signals]) -> Generator[None, None, None]:
    """Let SIGTERM end the command as Ctrl-C does, so that files are cleaned up."""

    def end(number: int, _frame: FrameType | None) -> None:
        heard.append(signal.Signals(number))
        raise KeyboardInterrupt

    own = (signal.SIG_DFL, signal.default_int_handler)  # a user's handler stays
    numbers = [number for number in _NAMES if signal.getsignal(number) in own]
    with handled(dict.fromkeys(numbers, end)):
        yield
