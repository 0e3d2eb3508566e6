"""Meetings of a group with others, while Keras trains it.

The chief of a group reads and writes the buffer; the group's other workers get its
values. A group that begins late, because it was started again, goes on at the step of
what was pushed last, so that all groups end after as many steps.
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
        workers: Those of the group.
        name: The buffer's.
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
        """Open the buffer, and begin with its parameters if there are any.

        Raises:
            WorkersError: On all workers of the group, if it is of another model.
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
        each = model.steps_per_execution  # so many count, also where an epoch has fewer
        steps = params.get("steps") and -(-params["steps"] // each) * each
        self._until += float("inf") if steps is None else params["epochs"] * steps
        self._workers.take_chiefs(self._variables)

    def count(self, model: Any, steps: int) -> None:
        """Count steps, meet where it is time, and end where all groups end."""
        assert self._done is not None
        self._done += steps
        if self._done - self._last >= self._every:
            self._meet()
        if self._done >= self._until:
            model.stop_training = True

    def end(self) -> None:
        """Meet once more, with what was learned since."""
        if self._done != self._last:
            self._meet()

    def _meet(self) -> None:
        assert self._done is not None
        self._last = self._done
        if self._groups is not None:
            self._groups.meet(self._done)
        self._workers.take_chiefs(self._variables)

    def _opened(self) -> dict[str, Any]:
        """The chief's words to the others: the step it begins with, or an error."""
        if not self._workers.is_chief:
            return {}
        try:
            if self._groups is not None:
                self._groups.buffer.close()
            self._groups = Groups(self._name, self._outer, self._variables)
            return {"error": "", "steps": self._groups.begin()}
        except (WorkersError, OSError, ValueError) as error:
            return {"error": str(error)}
