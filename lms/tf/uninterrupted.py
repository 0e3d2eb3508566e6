"""Signals that wait: what must not be left half-done ends before Python hears of them.

Ctrl-C in the middle of a step, or while a step that failed is undone, would otherwise
leave some of the variables old and some new.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["uninterrupted"]

# The first handler that raises is the last one.
_WAIT = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let handlers of Ctrl-C and SIGTERM wait within it; they are called at its end.

    Other threads than the main one hear of no signals anyway.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: dict[int, Any] = {}
    owns = {number: signal.getsignal(number) for number in _WAIT}
    owns = {number: own for number, own in owns.items() if callable(own)}
    try:
        for number in owns:
            signal.signal(number, heard.__setitem__)
        yield
    finally:
        for number, own in owns.items():
            signal.signal(number, own)
        for number in owns:
            if number in heard:
                owns[number](number, heard[number])
