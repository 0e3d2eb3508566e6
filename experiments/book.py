"""The trials of an experiment: each a process, each written down as soon as it ended.

A run that is killed goes on with the trials that are missing. Each row says at which
commit it was measured, since a run may go on after a change.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.lines import finished_rows, write_lines
from experiments.trials import run_trial
from lms.link import LinkRates
from profiling.record import circumstances

__all__ = ["Book"]


class Book:
    """The rows so far: what is in it is not tried again, what is new is written.

    Args:
        path: The result file.
        settings: Rows of other settings are not kept.
        folder: Where trials leave their logs.
        console: Where progress is told.
        longest: Seconds after which a trial is ended.
    """

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any],
        folder: Path,
        console: Console,
        longest: float = 900,
    ) -> None:
        self._path = path
        self._settings = settings
        self._folder = folder
        self._console = console
        self._longest = longest
        self._rows = finished_rows(path, settings)

    def row(
        self,
        key: Mapping[str, Any],
        *,
        name: str,
        memory: int,
        flags: tuple[str, ...] = (),
        link: LinkRates | None = None,
    ) -> dict[str, Any]:
        """The row of a trial; if it is not there, the trial is made.

        Args:
            key: What tells it from all others; begins the row.
            name: Of the trial, readable; two trials must not share one.
            memory: Bytes of the device.
            flags: Arguments of `experiments.training_trial`.
            link: The link to the host; None for the speed of the host's memory.
        """
        found = self.find(key)
        if found is not None:
            return found
        trial = run_trial(
            name,
            memory=memory,
            command=("experiments.training_trial",),
            flags=flags,
            folder=self._folder,
            console=self._console,
            link=link,
            longest=self._longest,
        )
        row = {**key, "error": trial.error, "seconds": trial.seconds}
        row |= {"commit": circumstances()["commit"]} | (trial.result or {})
        self.add(row)
        return row

    def find(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """The row of this key, if there is one."""
        for row in self._rows:
            if all(row.get(name) == value for name, value in key.items()):
                return row
        return None

    def add(self, *rows: dict[str, Any]) -> None:
        """Write rows down, all of them or none."""
        self._rows += rows
        write_lines(self._path, self._settings, self._rows)

    def say(self, text: str) -> None:
        """A line for the terminal."""
        self._console.print(text, style="bold", highlight=False)
