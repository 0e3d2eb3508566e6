"""Checks that all workers agree: unlike workers would wait for each other for ever.

Each worker publishes its facts in the cluster's key-value store, which answers while
workers wait elsewhere.
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
    """Check that all workers have equal facts; either all workers raise, or none.

    Args:
        workers: The workers of the job.
        own: Facts of this worker by name, in JSON's types.
        at: A place in the program, equal on all workers.
        advice: The next step where workers differ.
        timeout: Seconds to wait for each other worker.

    Raises:
        WorkersError: If a fact differs, or a worker does not answer.
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
    """Return a value as text; of a list only the first item that `other` lacks."""
    if not isinstance(value, list):
        return str(value)
    own = [one for one in value if one not in (other or [])]
    return own[0] if own else f"{len(value)} of them"
