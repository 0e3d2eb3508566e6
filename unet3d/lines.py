"""Texts for the user: progress as bars or log lines, counts, names and reasons."""

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.progress import Progress, TaskID

__all__ = ["as_csv", "check_integer", "counting", "differing_spacings", "grouped"]
__all__ += ["log", "several", "some", "tell"]


def several(count: int, noun: str) -> str:
    """Write a count with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows of equal keys as CSV, below a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def check_integer(name: str, value: int, *, least: int = 1, advice: str) -> None:
    """Refuse a value that is no integer, or below `least`."""
    if not isinstance(value, int) or isinstance(value, bool):
        kind = type(value).__name__
        raise TypeError(f"`{name}` must be an integer, got {kind}. Pass an int.")
    if value < least:
        raise ValueError(f"`{name}` must be at least {least}, got {value}. {advice}")


def tell(bars: Progress, text: str) -> None:
    """Write a line at once, above the bars; nothing where bars are off."""
    if not bars.disable:
        bars.console.print(text, markup=False, highlight=False, soft_wrap=True)


def log(bars: Progress, text: str) -> None:
    """Write a line at once where no terminal shows bars."""
    if not bars.console.is_terminal:
        tell(bars, text)


def counting(bars: Progress, task: TaskID, word: str) -> Callable[..., None]:
    """Return a function that advances a bar, and logs each tenth of its total."""

    def count(total: int | None = None) -> None:
        bars.update(task, advance=1, total=total)
        done, total = int(bars.tasks[task].completed), int(bars.tasks[task].total or 0)
        if done == total or done % (total // 10 or total) == 0:
            log(bars, f"{word} {done} of {total}")

    return count


def grouped(reasons: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Group names by reason; a group's key is the reason of its first name.

    Reasons are alike if only the subject's name and numbers differ.

    Example:
        >>> grouped([("a1", "no file a1_t1"), ("b", "no file b_t1"), ("b", "empty")])
        {'no file a1_t1': ['a1', 'b'], 'empty': ['b']}
    """
    groups: dict[str, tuple[str, list[str]]] = {}
    for name, reason in reasons:
        own = rf"(?<![^\W_]){re.escape(name)}(?![^\W_])"  # s20 is not in brats2017
        key = re.sub(r"\d+", "0", re.sub(own, "*", reason))
        names = groups.setdefault(key, (reason, []))[1]
        if name not in names:
            names.append(name)
    return dict(groups.values())


def some(names: Sequence[str], most: int = 5) -> str:
    """List the first `most` names, and count the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def differing_spacings(spacings: Mapping[str, Sequence[float] | None]) -> Iterator[str]:
    """Warn of voxel sizes that differ between subjects, which resizing ignores.

    Example:
        >>> next(differing_spacings({"a": (1, 1, 1), "b": (1, 1, 3)}))
        'spacings differ between subjects: 1 x 1 x 1 mm in a; 1 x 1 x 3 mm in b'
    """
    groups: dict[str, list[str]] = {}
    for name, sides in spacings.items():
        if sides is not None:
            words = " x ".join(f"{side:.3g}" for side in sides)
            groups.setdefault(words, []).append(name)
    if len(groups) > 1:
        told = [f"{words} mm in {some(names)}" for words, names in groups.items()]
        yield f"spacings differ between subjects: {'; '.join(told)}"
