"""Why a trial failed, in a few words for a table."""

import re

__all__ = ["shortened"]


def shortened(error: str) -> str:
    """An error in a few words.

    Example:
        >>> shortened("OOM when allocating tensor with shape[8,2] and type float on x")
        'out of memory at a tensor of [8,2]'
        >>> shortened("ValueError: it is so")
        'it is so'
    """
    crashed = ", process crashed" if "process crashed" in error else ""
    shape = re.search(r"OOM when allocating tensor with shape\[([\d,]*)\]", error)
    if shape:
        return f"out of memory at a tensor of [{shape[1]}]{crashed}"
    least = re.search(r"must be at least ([\d.]+ \w+) for op '([^']*)'", error)
    if least:
        return f"no plan: at least {least[1]} for {least[2].rpartition('/')[2]}"
    if error.startswith("exit status -9"):
        return "killed by the system, which ran out of memory"
    if "not done after" in error:
        return "took too long"
    return (error.partition(": ")[2] or error)[:90]
