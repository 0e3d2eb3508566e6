"""Shows the progress of a preparation: a line at once, a bar if it takes long.

The caller puts a display around the work (`displayed`). The work reports its progress
(`tell`, `track`), with or without a display.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Timer
from typing import TypeVar

from rich import progress
from rich.console import Console

from lms.units import Seconds

__all__ = ["displayed", "tell", "track"]

# Seconds until a terminal shows the bar.
_PATIENCE: Seconds = 5.0

T = TypeVar("T")

_bar: ContextVar[progress.Progress | None] = ContextVar("bar", default=None)


@contextmanager
def displayed(console: Console) -> Iterator[None]:
    """Show the progress of the work in the `with` block."""
    bar = progress.Progress(
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    bar.add_task("LMS: tracing", total=None)
    timer = Timer(_PATIENCE, bar.start)
    timer.daemon = True
    if console.is_terminal:
        timer.start()
    token = _bar.set(bar)
    try:
        yield
    finally:
        _bar.reset(token)
        timer.cancel()
        if timer.is_alive():
            timer.join()  # the timer may be starting the bar
        if bar.live.is_started:  # else rich would print an empty line
            bar.stop()


def tell(line: str) -> None:
    """Show a line about work that begins now and takes longer than a moment."""
    if (bar := _bar.get()) is not None:
        bar.console.print(line, highlight=False, markup=False)


def track(what: str, items: Sequence[T]) -> Iterator[T]:
    """Yield items in turn; the bar counts them."""
    for done, item in enumerate(items):
        _count(what, done, len(items))
        yield item
    _count("planning", 0, None)


def _count(what: str, done: int, total: int | None) -> None:
    if (bar := _bar.get()) is not None:
        (task,) = bar.task_ids
        bar.update(task, description=f"LMS: {what}", completed=done, total=total)
