"""Says what a preparation waits for: a line at once, and a bar if it takes long.

Whoever shows something puts a display around the work (`displayed`); the work tells it
how far it is (`tell`, `track`), and needs not know whether anybody looks.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Timer
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from lms.units import Seconds

__all__ = ["displayed", "tell", "track"]

# After so long a bar is shown, if there is a terminal.
_PATIENCE: Seconds = 5.0

T = TypeVar("T")


class _Display:
    """Lines on a console, and a bar that comes late and leaves nothing behind."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("LMS: tracing", total=None)
        self._timer = Timer(_PATIENCE, self._bar.start)
        self._timer.daemon = True
        if console.is_terminal:
            self._timer.start()

    def line(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def count(self, what: str, done: int, total: int | None) -> None:
        description = f"LMS: {what}"
        self._bar.update(
            self._task, description=description, completed=done, total=total
        )

    def close(self) -> None:
        self._timer.cancel()
        if self._timer.is_alive():
            self._timer.join()  # it may just have begun to show the bar
        if self._bar.live.is_started:  # else rich would print an empty line
            self._bar.stop()


_display: ContextVar[_Display | None] = ContextVar("display", default=None)


@contextmanager
def displayed(console: Console) -> Iterator[None]:
    """Show what is told within it.

    Example:
        >>> from io import StringIO
        >>> text = StringIO()
        >>> with displayed(Console(file=text)):
        ...     tell("measuring")
        >>> text.getvalue().split()
        ['measuring']
    """
    display = _Display(console)
    token = _display.set(display)
    try:
        yield
    finally:
        _display.reset(token)
        display.close()


def tell(line: str) -> None:
    """Say what begins now, and takes longer than a moment."""
    display = _display.get()
    if display is not None:
        display.line(line)


def track(what: str, items: Iterable[T]) -> Iterator[T]:
    """Items in turn; the bar shows how many there were.

    Args:
        what: What is done with them, such as "measuring ops".
        items: Counted if they are a sequence.

    Example:
        >>> list(track("measuring ops", [1, 2]))
        [1, 2]
    """
    total = len(items) if isinstance(items, Sequence) else None
    display = _display.get()
    for done, item in enumerate(items):
        if display is not None:
            display.count(what, done, total)
        yield item
    if display is not None:
        display.count("planning", 0, None)
