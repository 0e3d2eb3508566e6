"""Gives the card to one timed trial alone, or to many trials that are not timed.

The variable `VARIABLE` names the folder of two locks, which trials at once share;
without it no trial waits. A trial that wants the card alone goes before later trials.
"""

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from lms.emulation.card import emulated_memory
from lms.units import Seconds

__all__ = ["VARIABLE", "Turn", "turn_of"]

VARIABLE = "EXPERIMENTS_TURNS"
_MOST = 90  # seconds of a turn, after which the process is ended


class Turn:
    """The turn of a process; a turn within a turn does nothing."""

    def __init__(self, folder: str | None, *, alone: bool) -> None:
        names = (Path(folder, name) for name in ("gate", "card")) if folder else ()
        self._locks = [os.open(name, os.O_RDWR | os.O_CREAT, 0o600) for name in names]
        self._alone, self._depth = alone, 0
        self.waited: Seconds = 0.0

    @contextmanager
    def taken(self, *, alone: bool = True) -> Iterator[None]:
        """Hold the card: alone if `alone` and the trial is timed, else with others."""
        self._depth += 1
        is_first = self._depth == 1 and bool(self._locks)
        if is_first:
            self._take(fcntl.LOCK_EX if alone and self._alone else fcntl.LOCK_SH)
        try:
            yield
        finally:
            self._depth -= 1
            if is_first:
                signal.alarm(0)
                fcntl.flock(self._locks[1], fcntl.LOCK_UN)

    def _take(self, kind: int) -> None:
        gate, card = self._locks
        begun = time.monotonic()
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(card, kind)
        fcntl.flock(gate, fcntl.LOCK_UN)
        self.waited += time.monotonic() - begun
        if emulated_memory() is None:  # an emulated card may be slow
            signal.alarm(_MOST)

    def around(
        self, function: Callable[..., Any], *, alone: bool = True
    ) -> Callable[..., Any]:
        """Wrap a function: each call is within a turn."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.taken(alone=alone):
                return function(*args, **kwargs)

        return call


def turn_of(asked: Mapping[str, Any]) -> Turn:
    """Make the turn of a trial; beside other trials its planning takes turns too."""
    folder = os.environ.get(VARIABLE)
    timed = asked["traced"] or asked["probe"] or not asked["deterministic"]
    turn = Turn(folder, alone=bool(timed))
    if folder:
        from lms.tf import prepare
        from lms.tf.measure import workload

        # Scratch is measured in bytes: no need to be alone.
        prepare._measured = turn.around(prepare._measured, alone=False)  # noqa: SLF001
        workload.measure_costs = turn.around(workload.measure_costs)
        workload.measure_hardware = turn.around(workload.measure_hardware)
    return turn
