"""Delay signals until critical work has ended.

Ctrl-C in the middle of a step, or while a failed step is undone, would otherwise leave
some variables old and some new.
"""

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

__all__ = ["handled", "uninterrupted"]

# Handlers are called in this order; after one that raises, no other is called.
_WAIT = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def handled(handlers: Mapping[Any, Any]) -> Iterator[None]:
    """Within the context, replace signal handlers by number; only in the main thread.

    Ignored signals stay ignored: below `nohup`, and in the background of a shell.
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
    """Within the context, delay handlers of Ctrl-C and SIGTERM until its end."""
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
