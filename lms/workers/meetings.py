"""Meetings of a loose group with other groups, while Keras trains.

The chief of a group reads and writes the buffer, then broadcasts the values to its
group. A group that begins late, since it was restarted, goes on at the step of the last
push, so that all groups end after equally many steps.
"""

import json
import logging
from typing import Any

from lms.errors import WorkersError
from lms.workers.collectives import Workers
from lms.workers.groups import Groups

__all__ = ["Meetings"]

_LOG = logging.getLogger("lms")


class Meetings:
    """The meetings of one group, over all trainings of a program.

    Args:
        workers: The group's workers.
        name: The buffer's name.
        outer: The step between groups.
        every: Steps from one meeting to the next.
    """

    def __init__(self, workers: Workers, name: str, outer: Any, every: int) -> None:
        self._workers = workers
        self._name = name
        self._outer = outer
        self._every = every
        self._groups: Groups | None = None
        self._variables: list[Any] = []
        self._done: int | None = None
        self._last = 0
        self._until: float = 0.0

    def begin(self, model: Any, params: dict[str, Any]) -> None:
        """Open the buffer, and load its parameters if there are any.

        Raises:
            WorkersError: On all workers of the group, if the buffer is another model's.
        """
        values = (variable.value for variable in model.variables)
        self._variables = [value for value in values if value.dtype.is_floating]
        found = self._workers.gather(json.dumps(self._opened()), "the buffer")
        told = json.loads(found[0])
        if told["error"]:
            raise WorkersError(told["error"])
        if self._done is None:
            self._done = self._last = told["steps"]
            if self._done:
                said = "This group goes on with the buffer %r, at step %d."
                _LOG.warning(said, self._name, self._done)
        each = model.steps_per_execution  # counted also for an epoch's rest
        steps = params.get("steps") and -(-params["steps"] // each) * each
        self._until += float("inf") if steps is None else params["epochs"] * steps
        self._workers.take_chiefs(self._variables)

    def count(self, model: Any, steps: int) -> None:
        """Count steps, meet when it is time, and stop training where all groups end."""
        assert self._done is not None
        self._done += steps
        if self._done - self._last >= self._every:
            self._meet()
        if self._done >= self._until:
            model.stop_training = True

    def end(self) -> None:
        """Meet once more, if steps followed the last meeting."""
        if self._done != self._last:
            self._meet()

    def _meet(self) -> None:
        assert self._done is not None
        self._last = self._done
        if self._groups is not None:
            self._groups.meet(self._done)
        self._workers.take_chiefs(self._variables)

    def _opened(self) -> dict[str, Any]:
        """Open the buffer on the chief; return its first step, or an error."""
        if not self._workers.is_chief:
            return {}
        try:
            if self._groups is not None:
                self._groups.buffer.close()
            self._groups = Groups(self._name, self._outer, self._variables)
            return {"error": "", "steps": self._groups.begin()}
        except (WorkersError, OSError, ValueError) as error:
            return {"error": str(error)}
