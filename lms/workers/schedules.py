"""Schedules of a pipeline: the order in which each stage handles micro-batches.

    gpipe   stage 0   F0 F1 F2 F3 .  .  B0 B1 B2 B3        all forwards, then backwards
            stage 1   .  F0 F1 F2 F3 B0 B1 B2 B3
    1f1b    stage 0   F0 F1 .  B0 F2 B1 F3 B2 .  B3        a backward as soon as it can
            stage 1   .  F0 B0 F1 B1 F2 B2 F3 B3

Backwards are in the order of micro-batches in both, so that gradients are added up in
one order: the numbers do not depend on the schedule. Stages wait for (S-1)/(M+S-1) of
the time in both where all take as long; `1f1b` holds the inputs of S micro-batches at
most and not of all M.

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
        kind: What is done.
        micro_batch: Its number, from 0.
    """

    kind: Literal["forward", "backward"]
    micro_batch: int


Schedule = tuple[tuple[Action, ...], ...]


def gpipe(stages: int, micro_batches: int) -> Schedule:
    """All forwards, then all backwards: the actions of each stage in order.

    Example:
        >>> [a.micro_batch for a in gpipe(2, 2)[0]]
        [0, 1, 0, 1]
    """
    numbers = range(micro_batches)
    forwards = tuple(Action("forward", i) for i in numbers)
    return (forwards + tuple(Action("backward", i) for i in numbers),) * stages


def one_f_one_b(stages: int, micro_batches: int) -> Schedule:
    """Forwards for the stages behind, then a forward and a backward in turn.

    Example:
        >>> [a.kind[0] for a in one_f_one_b(2, 3)[0]]
        ['f', 'f', 'b', 'f', 'b', 'b']
    """
    return tuple(
        _in_turn(min(micro_batches, stages - 1 - stage), micro_batches)
        for stage in range(stages)
    )


def _in_turn(ahead: int, micro_batches: int) -> tuple[Action, ...]:
    """Forwards that are so many ahead of the backwards."""
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
    """The most micro-batches that a stage has begun and not ended.

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
    """Play a schedule: a forward waits for the stage before, a backward for the next.

    Args:
        schedule: Actions by stage.
        seconds: Seconds of an action on a stage.
        wire: Seconds between two stages.

    Returns:
        Seconds until all have ended, and the share of the stages' time in which they
        wait: the bubble.

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
                "`schedule` must let some stage go on, got one in which all wait. "
                "Let each backward follow its forward."
            )
    return max(ends), 1 - busy / (len(ends) * max(ends))


def _source(stage: int, action: Action, stages: int) -> tuple[int, Action] | None:
    """The action of another stage whose result this one reads."""
    other = stage + (-1 if action.kind == "forward" else 1)
    return (other, action) if 0 <= other < stages else None
