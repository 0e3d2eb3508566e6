"""Schedules of a pipeline: the order in which each stage handles micro-batches.

    gpipe   stage 0   F0 F1 F2 F3 .  .  B0 B1 B2 B3        all forwards, then backwards
            stage 1   .  F0 F1 F2 F3 B0 B1 B2 B3
    1f1b    stage 0   F0 F1 .  B0 F2 B1 F3 B2 .  B3        each backward early
            stage 1   .  F0 B0 F1 B1 F2 B2 F3 B3

Both schedules run backwards in the order of micro-batches, so that gradients are added
up in one order: results do not depend on the schedule. In both, stages of equal length
wait for (S-1)/(M+S-1) of the time; `1f1b` holds the inputs of S micro-batches at most,
`gpipe` of all M.

Sources: Huang et al., GPipe (NeurIPS 2019), section 2.3; Narayanan et al., PipeDream
(SOSP 2019), section 3.2, and its flush in Megatron-LM (SC 2021), section 2.2.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from lms.units import Seconds

__all__ = ["SCHEDULES", "Action", "Schedule", "gpipe", "most_held", "one_f_one_b"]
__all__ += ["play"]


@dataclass(frozen=True, slots=True)
class Action:
    """One micro-batch on one stage.

    Args:
        kind: Direction of the pass.
        micro_batch: Number of the micro-batch, from 0.
    """

    kind: Literal["forward", "backward"]
    micro_batch: int


Schedule = tuple[tuple[Action, ...], ...]


def gpipe(stages: int, micro_batches: int) -> Schedule:
    """List the actions of each stage: all forwards, then all backwards.

    Example:
        >>> [a.micro_batch for a in gpipe(2, 2)[0]]
        [0, 1, 0, 1]
    """
    numbers = range(micro_batches)
    forwards = tuple(Action("forward", i) for i in numbers)
    return (forwards + tuple(Action("backward", i) for i in numbers),) * stages


def one_f_one_b(stages: int, micro_batches: int) -> Schedule:
    """List the actions of each stage: warm-up forwards, then both kinds in turn.

    Example:
        >>> [a.kind[0] for a in one_f_one_b(2, 3)[0]]
        ['f', 'f', 'b', 'f', 'b', 'b']
    """
    return tuple(
        _in_turn(min(micro_batches, stages - 1 - stage), micro_batches)
        for stage in range(stages)
    )


def _in_turn(ahead: int, micro_batches: int) -> tuple[Action, ...]:
    """List one stage's actions, with `ahead` forwards before the first pair."""
    found = [Action("forward", i) for i in range(ahead)]
    for i in range(micro_batches):
        if ahead + i < micro_batches:
            found.append(Action("forward", ahead + i))
        found.append(Action("backward", i))
    return tuple(found)


SCHEDULES: Mapping[str, Callable[[int, int], Schedule]] = MappingProxyType(
    {"gpipe": gpipe, "1f1b": one_f_one_b}
)


def most_held(actions: Sequence[Action]) -> int:
    """Count the most micro-batches that a stage has begun and not ended.

    Example:
        >>> [most_held(actions) for actions in one_f_one_b(3, 8)]
        [3, 2, 1]
    """
    held = most = 0
    for action in actions:
        held += 1 if action.kind == "forward" else -1
        most = max(most, held)
    return most


def play(
    schedule: Schedule, seconds: Callable[[int, Action], Seconds], wire: Seconds = 0.0
) -> tuple[Seconds, float]:
    """Simulate a schedule, in which actions wait for their inputs.

    Args:
        schedule: Actions by stage.
        seconds: Seconds of an action on a stage.
        wire: Seconds between two stages.

    Returns:
        Seconds until all stages end, and the bubble: the share of time that they wait.

    Raises:
        ValueError: If stages wait for one another for ever.

    Example:
        >>> play(gpipe(2, 3), lambda stage, action: 1.0)
        (8.0, 0.25)
    """
    ended: dict[tuple[int, Action] | None, Seconds] = {None: -wire}
    ends, busy, todo = [0.0] * len(schedule), 0.0, [deque(own) for own in schedule]
    while any(todo):
        before = len(ended)
        for stage, own in enumerate(todo):
            while own and (source := _source(stage, own[0], len(todo))) in ended:
                takes = seconds(stage, own[0])
                ends[stage] = max(ended[source] + wire, ends[stage]) + takes
                ended[stage, own.popleft()] = ends[stage]
                busy += takes
        if len(ended) == before:
            raise ValueError(
                "`schedule` must not deadlock, got one in which all stages wait. "
                "Let each backward follow its forward."
            )
    return max(ends), 1 - busy / (len(ends) * max(ends))


def _source(stage: int, action: Action, stages: int) -> tuple[int, Action] | None:
    """Return the action of another stage whose result an action reads, or None."""
    other = stage + (-1 if action.kind == "forward" else 1)
    return (other, action) if 0 <= other < stages else None
