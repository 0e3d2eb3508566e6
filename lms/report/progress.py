"""Shows the progress of a preparation: a line at once, a bar if it takes long.

The caller puts a display around the work (`displayed`). The work reports its progress
(`tell`, `track`), with or without a display.
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

# Seconds until a terminal shows the bar.
_PATIENCE: Seconds = 5.0

T = TypeVar("T")


class _Display:
    """Lines on a console, and a late bar that is erased at the end."""

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
            self._timer.join()  # the timer may be starting the bar
        if self._bar.live.is_started:  # else rich would print an empty line
            self._bar.stop()


_display: ContextVar[_Display | None] = ContextVar("display", default=None)


@contextmanager
def displayed(console: Console) -> Iterator[None]:
    """Show the progress of the work in the `with` block.

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
    """Show a line about work that begins now and takes longer than a moment."""
    display = _display.get()
    if display is not None:
        display.line(line)


def track(what: str, items: Iterable[T]) -> Iterator[T]:
    """Yield items in turn; the bar counts them.

    Args:
        what: The work on the items, such as "measuring ops".
        items: The bar shows the total of a sequence.

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
