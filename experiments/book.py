"""The trials of an experiment: each a process, each written down when it has ended."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.ledger import Ledger
from experiments.trials import run_trial
from lms.machine.emulated_link import LinkRates

__all__ = ["Book"]


class Book(Ledger):
    """A ledger of trials: what is in it is not tried again, what is new is written.

    Args:
        path: The result file.
        settings: What its rows are measured with.
        folder: Where trials leave their logs.
        console: Where progress is told.
        longest: Seconds after which a trial is ended.
        anew: Keep nothing: the first new row replaces the file.
    """

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any],
        folder: Path,
        console: Console,
        longest: float = 900,
        *,
        anew: bool = False,
    ) -> None:
        super().__init__(path, settings, anew=anew)
        self._folder = folder
        self._console = console
        self._longest = longest

    def row(
        self,
        key: Mapping[str, Any],
        *,
        name: str,
        memory: int,
        flags: tuple[str, ...] = (),
        link: LinkRates | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        """The row of a trial; if it is not there, the trial is made.

        Args:
            key: What tells it from all others; begins the row.
            name: Of the trial, readable; two trials must not share one.
            memory: Bytes of the device.
            flags: Arguments of `experiments.training_trial`.
            link: The link to the host; None for the speed of the host's memory.
            threads: Ops at a time; None for TensorFlow's choice.
        """

        def measure() -> Mapping[str, Any]:
            trial = run_trial(
                name,
                memory=memory,
                command=("experiments.training_trial",),
                flags=flags,
                folder=self._folder,
                console=self._console,
                link=link,
                threads=threads,
                longest=self._longest,
            )
            row = {"error": trial.error, "seconds": trial.seconds}
            return row | (trial.result or {})

        return self.once(key, measure)

    def say(self, text: str) -> None:
        """A line for the terminal."""
        self._console.print(text, style="bold", highlight=False)
