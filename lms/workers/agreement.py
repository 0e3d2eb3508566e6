"""Checks that all workers agree, each telling all: else one waits for ever.

Words go by way of the cluster's own store, which answers while workers wait elsewhere.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

from lms.errors import WorkersError
from lms.units import Seconds
from lms.workers.averaging import optimizers_of
from lms.workers.collectives import Workers

__all__ = ["Place", "meet", "refuse_other_epoch", "refuse_unlike"]

# Seconds for the others at the end of an epoch: all steps are made together, but one
# may validate or write files longer; and for those whose epoch is not over.
_LONG: Seconds = 600.0
_SHORT: Seconds = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in `fit` a worker is.

    Args:
        name: In words.
        steps: Of the epoch so far.
        metrics: Names of the numbers that it has.
    """

    name: str
    steps: int
    metrics: tuple[str, ...]


def meet(workers: Workers, place: Place, *, of: int) -> None:
    """See that all workers are at the same place.

    Args:
        workers: All.
        place: Where this one is.
        of: Steps that an epoch has.

    Raises:
        WorkersError: If one is elsewhere, or does not come.
    """
    is_over = place.steps >= of
    own = json.loads(json.dumps(asdict(place)))
    try:
        told = workers.gather(
            json.dumps(own), "place", timeout=_LONG if is_over else _SHORT
        )
    except WorkersError as error:
        if is_over:
            raise
        raise WorkersError(
            f"all workers must end an epoch together, got {place.steps} of {of} steps "
            f"on worker {workers.rank}. Let no callback stop one worker alone, and "
            "give each as many batches."
        ) from error
    for rank, theirs in enumerate(map(json.loads, told)):
        for name, value in own.items():
            if theirs[name] != value:
                raise WorkersError(
                    f"all workers must have the same {_WORDS[name]} in an epoch, got "
                    f"{value!r} on worker {workers.rank} and {theirs[name]!r} on "
                    f"worker {rank}. Validate on all or on none, with the same "
                    "metrics and as many batches."
                )


_WORDS = {"name": "course", "steps": "steps", "metrics": "metrics"}


def refuse_unlike(workers: Workers, model: Any, params: dict[str, Any]) -> None:
    """Compare what must be the same; all workers raise, or none does."""
    if not optimizers_of(model):
        raise WorkersError(
            "a model on several workers must have an optimizer, got one without. Give "
            "`compile` one, or average gradients yourself: `workers.mean(gradients)`."
        )
    variables = [(v.path, tuple(v.shape), v.dtype) for v in model.trainable_variables]
    own = {
        "steps in an epoch": params.get("steps"),
        "epochs": params.get("epochs"),
        "steps per execution": model.steps_per_execution,
        "optimizers": [type(one).__name__ for one in optimizers_of(model).values()],
        "trainable variables": [str(one) for one in variables],
    }
    said = [json.loads(text) for text in workers.gather(json.dumps(own), "the begin")]
    for name, value in said[0].items():
        for rank, theirs in enumerate(said):
            if theirs[name] != value:
                raise WorkersError(
                    f"all workers must have the same {name}, got "
                    f"{_shown(value, theirs[name])} on worker 0 and "
                    f"{_shown(theirs[name], value)} on worker {rank}. Build the same "
                    "model on all, and give each as many batches: "
                    "`data.shard(workers.size, workers.rank)`, `steps_per_epoch`."
                )
    if said[0]["steps in an epoch"] is None:
        raise WorkersError(
            "all workers must know how many steps an epoch has, got data of unknown "
            "length. Give `fit` the argument `steps_per_epoch`."
        )


def _shown(value: Any, other: Any) -> str:
    """A value; of a list what the other one does not have."""
    if not isinstance(value, list):
        return str(value)
    own = [one for one in value if one not in other]
    return own[0] if own else f"{len(value)} of them"


def refuse_other_epoch(workers: Workers, epoch: int) -> None:
    """All begin with the same epoch, or raise."""
    first, *others = map(int, workers.gather(str(epoch), "the first epoch"))
    for rank, other in enumerate(others, 1):
        if other != first:
            raise WorkersError(
                f"all workers must begin with the same epoch, got {first} on worker 0 "
                f"and {other} on worker {rank}. Give all the same `initial_epoch`; a "
                "callback that restores training, such as `BackupAndRestore`, must "
                "find the same on all."
            )
