"""Programs in processes and emulated devices of their own, and how each ended.

`run_trial` runs one, with a limit of time; a `Book` keeps the rows of those that have
ended, so that a run goes on where it was stopped.

The program is a module that takes `--output FILE` and writes its result there as JSON.
What it prints goes to a log beside it, so that the terminal stays calm. TensorFlow's
warnings are in it: some of oneDNN's kernels crash right after they report that memory
ran out, before Python hears of it.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from experiments.ledger import Ledger
from lms.emulation import emulate
from lms.machine.hardware import LinkRates
from lms.units import GIB, format_bytes
from profiling.record import read_json

__all__ = ["OUT_OF_MEMORY", "Book", "Trial", "run_trial", "unet_flags"]
__all__ += ["why_it_failed"]

OUT_OF_MEMORY = "OOM when allocating tensor"

# Bytes of a card on which nothing runs out of memory.
_ENOUGH = 16 * GIB

_LONGEST = 900  # seconds

# Ours come first: ops that are measured may run out of memory before a plan is refused.
# Keras writes its reason below a line of its own.
_REASONS = (
    r"^lms\.errors\.\w+: .*",
    rf"{OUT_OF_MEMORY}.*",
    r"^\s*[\w.]*(?:Error|Exception)\b.*(?:(?<=\.call\(\)\.)\s*\n\s*.*)?",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How a program ended.

    Args:
        name: What is special about it, readable.
        memory: Bytes of the device; None if it had enough of it.
        seconds: Wall time of the whole process.
        error: The line of its log that says why it failed; None if it did not.
        result: What it wrote; None if it failed.
    """

    name: str
    memory: int | None
    seconds: float
    error: str | None
    result: dict[str, Any] | None


class Book(Ledger):
    """A ledger of trials: what is in it is not tried again, what is new is written.

    Args:
        options: Of the command line: `results`, and `anew` to keep nothing.
        settings: What its rows are measured with.
        folder: Where trials leave their logs.
        longest: Seconds after which a trial is ended.
        program: The module that its trials run.
    """

    def __init__(
        self,
        options: Any,
        settings: Mapping[str, Any],
        folder: Path,
        longest: float = _LONGEST,
        program: str = "experiments.training_trial",
    ) -> None:
        super().__init__(options.results, settings, anew=options.anew)
        self.folder = folder
        self.console = Console()
        self._longest = longest
        self._program = program

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
            flags: Arguments of the program.
            link: The link to the host; None for the speed of the host's memory.
        """

        def measure() -> Mapping[str, Any]:
            trial = run_trial(
                name,
                memory=memory,
                command=(self._program,),
                flags=flags,
                folder=self.folder,
                console=self.console,
                link=link,
                longest=self._longest,
            )
            row = {"error": trial.error, "seconds": trial.seconds}
            return row | (trial.result or {})

        return self.once(key, measure)

    def say(self, text: str) -> None:
        """A line for the terminal."""
        self.console.print(text, style="bold", highlight=False)


def run_trial(  # noqa: PLR0913 - one keyword for each thing that may differ
    name: str,
    *,
    memory: int | None,
    command: Sequence[str],
    folder: Path,
    console: Console,
    flags: Sequence[str] = (),
    link: LinkRates | None = None,
    longest: float = _LONGEST,
) -> Trial:
    """Run a module in a device of `memory`, and say how it went.

    Args:
        name: As in `Trial`; names the files in `folder` too.
        memory: As in `Trial`.
        command: The module, and its arguments but `--output`.
        folder: Where its result and its log go; made if missing.
        console: Where a spinner turns meanwhile.
        flags: More arguments.
        link: The link to the host that copies are slowed to.
        longest: Seconds after which it is ended.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"\W+", "-", name.lower())
    output, log = folder / f"{stem}.json", folder / f"{stem}.log"
    output.unlink(missing_ok=True)
    words = [sys.executable, "-m", *command, *flags, f"--output={output}"]
    label = name if memory is None else f"{name} ({format_bytes(memory)})"
    started = time.perf_counter()
    with _spinner(console) as spinner, log.open("w") as sink:
        spinner.add_task(label)
        code = _exit_code(words, memory or _ENOUGH, link, sink, longest)
    seconds = time.perf_counter() - started
    error = why_it_failed(log.read_text(errors="replace"), code)
    result = read_json(output) if error is None else None
    _say(label, seconds, error, console)
    return Trial(name=name, memory=memory, seconds=seconds, error=error, result=result)


def why_it_failed(log: str, code: int) -> str | None:
    r"""The line of a log that says why: ours, out of memory, else the last error.

    Example:
        >>> why_it_failed("Traceback ...\nValueError: no\n", 1)
        'ValueError: no'
        >>> why_it_failed("done\n", 0)
    """
    if code == 0:
        return None
    for pattern in _REASONS:
        found = [_plain(text) for text in re.findall(pattern, log, re.MULTILINE)]
        if found:
            return found[-1] + (" - and the process crashed" if code < 0 else "")
    last = log.strip().rpartition("\n")[2] or "nothing printed"
    return f"exit status {code}: {last}"


def _plain(text: str) -> str:
    """On one line, and not in bold."""
    return re.sub(r"\s+", " ", re.sub(r"\x1b\[\d*m", "", text)).strip()


def _spinner(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,  # no trace of it in a log
    )


def _exit_code(
    words: Sequence[str],
    memory: int,
    link: LinkRates | None,
    sink: Any,
    longest: float,
) -> int:
    try:
        return emulate.run(
            words,
            memory=memory,
            link=link,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "1"},
            stdout=sink,
            stderr=subprocess.STDOUT,
            timeout=longest,
        ).returncode
    except subprocess.TimeoutExpired:
        sink.write(f"TimeoutError: not done after {longest:.0f} s\n")
        return 124


def _say(label: str, seconds: float, error: str | None, console: Console) -> None:
    if error is None:
        console.print(f"[green]done   [/]  {label}, {seconds:.0f} s")
        return
    console.print(f"[red]failed [/]  {label}, {seconds:.0f} s")
    console.print(
        f"         {error}",
        style="dim",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def unet_flags(way: str, size: int, options: Any, *more: str) -> tuple[str, ...]:
    """Arguments of `experiments.training_trial` for the case study's network.

    Args:
        way: To train.
        size: Voxels along an axis.
        options: `steps`, `seed`, `filters` and `depth`.
        more: Others.
    """
    words = ("--model=unet", f"--way={way}", f"--steps={options.steps}")
    shape = (f"size={size}", f"filters={options.filters}", f"depth={options.depth}")
    return (*words, f"--seed={options.seed}", *more, "--shape", *shape)
