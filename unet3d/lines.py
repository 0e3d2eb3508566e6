"""Says how far something is: as bars on a terminal, as lines in a log."""

from collections.abc import Callable

from rich.progress import Progress, TaskID

__all__ = ["counting", "log", "tell"]


def tell(bars: Progress, text: str) -> None:
    """Write a line at once, above the bars; nothing where they are off."""
    if not bars.disable:
        bars.console.print(text, markup=False, highlight=False, soft_wrap=True)


def log(bars: Progress, text: str) -> None:
    """Write a line at once where no terminal shows bars."""
    if not bars.console.is_terminal:
        tell(bars, text)


def counting(bars: Progress, task: TaskID, word: str) -> Callable[[], None]:
    """Counts one more on a bar, and in a log writes each tenth of many."""

    def count() -> None:
        bars.advance(task)
        done, total = int(bars.tasks[task].completed), int(bars.tasks[task].total or 0)
        if done == total or done % (total // 10 or total) == 0:
            log(bars, f"{word} {done} of {total}")

    return count
