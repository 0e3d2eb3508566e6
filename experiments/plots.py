"""What the figures of experiments share, in the style of the library's own."""

from collections.abc import Mapping
from typing import Any

from lms.report.style import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    calm,
    new_figure,
    save,
)

__all__ = ["COLOURS", "INK", "MUTED", "calm", "new_figure"]
__all__ += ["save", "source"]

# One for each way to train, in all figures; variants of the callback's are paler.
COLOURS = {
    "plain": MUTED,
    "remat": ORANGE,
    "grappler": PURPLE,
    "by_hand": GREEN,
    "threshold": BLUE,
    "serialised": SKY,
    "budget": VERMILION,
    "cheap": "#EDA377",
    "mixed": "#B8A000",
}


def source(head: Mapping[str, Any]) -> str:
    """Machine and commit, for the note; of many commits the first.

    Example:
        >>> machine = {"processor": "CPU", "cores": 2}
        >>> source({"machine": machine, "commit": "1a, 2b, 3c"})
        'CPU, 2 cores; commit 1a and 2 others'
    """
    machine = head["machine"]
    first, *others = str(head["commit"]).split(", ")
    more = f" and {len(others)} other{'s' * (len(others) > 1)}" if others else ""
    return f"{machine['processor']}, {machine['cores']} cores; commit {first}{more}"
