"""Trainings that take turns, step by step: what disturbs one disturbs all.

Each is a process on an emulated device of its own: `experiments.training_trial`, or
another program that knows `--in-turns`. It waits while others step, so that each has
the machine to itself.
"""

import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any

from rich.console import Console
from rich.progress import Progress

from experiments.runner import why_it_failed
from lms.emulation import emulate
from lms.machine.hardware import LinkRates
from profiling.record import read_json

__all__ = ["Turns", "take_turns"]

_LONGEST = 900  # seconds that one may prepare


class Turns:
    """A training that makes one step at a time, when it is told to.

    It prepares at once: the constructor returns when it waits for its first turn, or
    has failed.

    Args:
        name: What is special about it, readable; names its files too.
        memory: Bytes of its device.
        flags: Arguments of the program but `--output`.
        folder: Where its result and its log go; made if missing.
        link: The link to the host; None for the speed of the host's memory.
        program: The module that is run.
    """

    def __init__(
        self,
        name: str,
        *,
        memory: int,
        flags: Sequence[str],
        folder: Path,
        link: LinkRates | None = None,
        program: str = "experiments.training_trial",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        stem = re.sub(r"\W+", "-", name.lower())
        self.name = name
        self._output, self._log = folder / f"{stem}.json", folder / f"{stem}.log"
        self._output.unlink(missing_ok=True)
        words = [sys.executable, "-m", program, *flags, "--in-turns"]
        with self._log.open("w") as log:
            self._process: Any = subprocess.Popen(
                [*words, f"--output={self._output}"],
                env=emulate.environment(memory, link=link)
                | {"TF_CPP_MIN_LOG_LEVEL": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.waits = self._is_waiting()

    def step(self) -> None:
        """Make a step; it no longer waits when that was the last, or failed."""
        self.begin()
        self.finish()

    def begin(self) -> None:
        """Let it begin a step: others may begin theirs before it ends."""
        with suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def finish(self) -> None:
        """Wait for the end of the step that it has begun."""
        self.waits = self._is_waiting()

    def end(self) -> tuple[str | None, dict[str, Any]]:
        """Why it failed, if it did; and its result."""
        if self.waits:  # others failed, or the user gave up
            self._process.kill()
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        code = self._process.wait()
        self._process.stdout.close()
        error = why_it_failed(self._log.read_text(errors="replace"), code)
        return error, {} if error else read_json(self._output)

    def _is_waiting(self) -> bool:
        """Wait for its word; there is none when it has ended."""
        clock = Timer(_LONGEST, self._process.kill)
        clock.start()
        try:
            return bool(self._process.stdout.readline())
        finally:
            clock.cancel()


def take_turns(trainings: Sequence[Turns], *, steps: int, console: Console) -> None:
    """Let all make their steps, in an order that is turned around each time.

    Args:
        trainings: Those that take part; one that ends early is left out from then on.
        steps: How many each is expected to make.
        console: Where a bar grows.
    """
    with Progress(console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("Steps of each in turn", total=steps)
        order = list(trainings)
        while order := [training for training in order if training.waits]:
            for training in order:
                training.step()
            order.reverse()
            progress.advance(bar)
