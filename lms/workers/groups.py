"""Loose groups of workers: asynchronous parameter averaging, in which no group waits.

    group 0   step step step ... push ──> buffer ──> mean of the groups ──> outer step
    group 1       step step ... push ──────^  (whenever it gets there)

Within a group gradients are averaged in each step. Every few steps a group pushes its
parameters, reads the last push of each other group, and takes a step towards the mean:
a group that is late, stopped or gone delays no other. A push counts in at most two
meetings of another group, so that a dead group does not hold the others back. A group
that restarts begins with the last push of all; a group that is alone just trains.

    nesterov   d = anchor - mean,  v = m v + d,  anchor -= r (d + m v)     DiLoCo
    elastic    own -= s (own - mean)                                       EASGD

Known weakness: each group has its own anchor and velocity, where DiLoCo shares one
pair; all pairs are equal where all groups meet at the same time.

Sources: Douillard et al., DiLoCo (2023), algorithm 1; Zhang, Choromanska and LeCun,
Deep learning with elastic averaging SGD (NeurIPS 2015), equations 5 and 6.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from lms.workers.buffer import Buffer

__all__ = ["Elastic", "Groups", "Nesterov", "outer_of"]

_MEETINGS: Final = 2  # most meetings of another group in which a push counts


@dataclass(slots=True)
class Nesterov:
    """DiLoCo's outer step: momentum over the mean update of the groups.

    Args:
        rate: The outer learning rate.
        momentum: The share of the velocity that stays.

    Example:
        >>> outer = Nesterov(rate=0.5, momentum=0.0)
        >>> outer.begin([np.float32(4)])
        >>> float(outer.step([np.float32(3)], [np.float32(2)])[0])
        3.0
    """

    rate: float = 0.7
    momentum: float = 0.9
    _anchor: list[Any] = field(default_factory=list)
    _velocity: list[Any] = field(default_factory=list)

    def begin(self, own: Sequence[Any]) -> None:
        """Set the anchor to these parameters and the velocity to zero."""
        self._anchor = list(own)
        self._velocity = [np.zeros_like(one) for one in own]

    def step(self, own: Sequence[Any], mean: Sequence[Any]) -> list[Any]:
        """Move the anchor towards the mean, with momentum; return the anchor."""
        del own  # the mean includes it
        rate, momentum = np.float32(self.rate), np.float32(self.momentum)
        for i, one in enumerate(mean):
            moved = self._anchor[i] - one
            self._velocity[i] = momentum * self._velocity[i] + moved
            self._anchor[i] = self._anchor[i] - rate * (
                moved + momentum * self._velocity[i]
            )
        return list(self._anchor)


@dataclass(frozen=True, slots=True)
class Elastic:
    """Elastic averaging: a spring between a group and the mean.

    Args:
        strength: Share of the distance to the mean, up to 1.

    Example:
        >>> float(Elastic().step([np.float32(3)], [np.float32(2)])[0])
        2.5
    """

    strength: float = 0.5

    def begin(self, own: Sequence[Any]) -> None:
        """Do nothing: elastic steps keep no state."""

    def step(self, own: Sequence[Any], mean: Sequence[Any]) -> list[Any]:
        """Move the parameters towards the mean."""
        part = np.float32(self.strength)
        return [a - part * (a - b) for a, b in zip(own, mean, strict=True)]


_OUTER = {"nesterov": Nesterov, "elastic": Elastic}


def outer_of(outer: str) -> Any:
    """Make an outer step by its name.

    Raises:
        ValueError: If the name is unknown.
    """
    if outer not in _OUTER:
        raise ValueError(
            f"`outer` must be one of {', '.join(_OUTER)}, got {outer!r}. Leave it out "
            "for 'nesterov'."
        )
    return _OUTER[outer]()


class Groups:
    """The access of a group's chief to the shared buffer.

    Args:
        name: The buffer's name.
        outer: The step between groups.
        variables: The parameters: floating-point `tf.Variable`s, alike in all groups.

    Raises:
        WorkersError: If the buffer is of another model.
    """

    def __init__(self, name: str, outer: Any, variables: Iterable[Any]) -> None:
        self._outer = outer
        self._variables = list(variables)
        names = map(str, range(len(self._variables)))
        own = self._own()
        self.buffer = Buffer(name, dict(zip(names, own, strict=True)))
        self._seen: dict[int, list[int]] = {}

    def begin(self) -> int:
        """Load the last push; return its step."""
        step, values = self.buffer.begin(self._own())
        self._assign(values)
        self._outer.begin(values)
        return step

    def meet(self, step: int) -> int:
        """Push, and step towards the mean of recent pushes; return their number."""
        own = self._own()
        self.buffer.push(own, step)
        lately = [
            values
            for slot, (count, values) in self.buffer.read().items()
            if slot == self.buffer.slot or self._is_new(slot, count)
        ]
        if len(lately) == 1:
            self._outer.begin(own)  # else momentum would overshoot
            return 1
        mean = [
            sum(parts) / np.float32(len(parts)) for parts in zip(*lately, strict=True)
        ]
        self._assign(self._outer.step(own, mean))
        return len(lately)

    def _is_new(self, slot: int, count: int) -> bool:
        """Tell whether a push may still count in this meeting; counts the meeting."""
        seen = self._seen.get(slot, [count, 0])
        times = seen[1] + 1 if seen[0] == count else 1
        self._seen[slot] = [count, times]
        return times <= _MEETINGS

    def _own(self) -> list[Any]:
        return [variable.numpy() for variable in self._variables]

    def _assign(self, values: Sequence[Any]) -> None:
        for variable, value in zip(self._variables, values, strict=True):
            variable.assign(value)
