"""Signals that wait: what must not be left half-done ends before Python hears of them.

Ctrl-C in the middle of a step, or while a step that failed is undone, would otherwise
leave some of the variables old and some new.
"""

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

__all__ = ["handled", "uninterrupted"]

# The first handler that raises is the last one.
_WAIT = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def handled(handlers: Mapping[Any, Any]) -> Iterator[None]:
    """Let signals have other handlers within it: in the main thread, which hears them.

    What was ignored stays so: below `nohup`, and in the background of a shell.

    Args:
        handlers: Those, by the signals' numbers.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before: dict[int, Any] = {}
    try:
        for number, handler in handlers.items() if is_main else ():
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let handlers of Ctrl-C and SIGTERM wait within it; they are called at its end."""
    heard: dict[int, Any] = {}
    owns = {number: signal.getsignal(number) for number in _WAIT}
    owns = {number: own for number, own in owns.items() if callable(own)}
    try:
        with handled(dict.fromkeys(owns, heard.__setitem__)):
            yield
    finally:
        for number in owns:
            if number in heard:
                owns[number](number, heard[number])
