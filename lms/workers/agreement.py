"""Checks that all workers agree, each telling all: else one waits for ever.

Words go by way of the cluster's own store, which answers while workers wait elsewhere.
"""

import json
from collections.abc import Mapping
from typing import Any

from lms.errors import WorkersError
from lms.units import Seconds
from lms.workers.collectives import LONGEST, Workers

__all__ = ["agree"]


def agree(
    workers: Workers,
    own: Mapping[str, Any],
    *,
    at: str,
    advice: str,
    timeout: Seconds = LONGEST,
) -> None:
    """See that all workers say the same of themselves; all raise, or none does.

    Args:
        workers: All.
        own: What this one says, by the name of each thing: for JSON.
        at: Where in the program it is; the same on all workers.
        advice: What to do where they are unlike.
        timeout: How many seconds to wait for each of the others.

    Raises:
        WorkersError: If one says something else, or, by another error, nothing.
    """
    texts = workers.gather(json.dumps(own), at, timeout=timeout)
    first, *others = map(json.loads, texts)
    for name in first:
        for rank, other in enumerate(others, 1):
            if first[name] != other.get(name):
                raise WorkersError(
                    f"all workers must have the same {name}, got "
                    f"{_shown(first[name], other.get(name))} on worker 0 and "
                    f"{_shown(other.get(name), first[name])} on worker {rank}. {advice}"
                )


def _shown(value: Any, other: Any) -> str:
    """A value; of a list what the other one does not have."""
    if not isinstance(value, list):
        return str(value)
    own = [one for one in value if one not in (other or [])]
    return own[0] if own else f"{len(value)} of them"
