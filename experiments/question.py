"""One question: its words, what it measures, what was found, its goals, a figure.

A file of this package answers one: its docstring asks it and says how, `ANSWER` has the
parts, and `python -m experiments.NAME` knows the words `run` and `draw`.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from experiments.ledger import Head, Rows, read_lines
from lms.emulation import emulate
from lms.emulation.card import emulated_memory
from profiling.tables import Table

__all__ = ["DEVICE", "LINK", "MET", "RESULTS", "Answer", "Finding"]
__all__ += ["cubed", "how_it_ended", "part_of", "settings_of", "shortened"]

RESULTS = Path(__file__).parent / "results"
_FIGURES = Path("build") / "experiments"

# What stands for what is not there.
DEVICE = (
    "The device: a CPU with the allocator that TensorFlow uses on GPUs and a hard "
    "limit. Copies run at the speed of the machine's memory."
)
LINK = (
    "The device, a CPU with the allocator that TensorFlow uses on GPUs and a hard "
    "limit; and its link, to whose speed copies are slowed."
)

# A goal, in words; None where measurements do not decide it.
MET = {True: "met", False: "not met", None: "not decided"}

# A few sentences and the tables, computed from the rows alone.
Finding = tuple[str, *tuple[Table, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The parts of an answer.

    Args:
        name: Of the module and of its files.
        title: Its headline in `docs/results.md`.
        emulated: What stands for what is not there.
        about: The docstring of its module.
        add_settings: Is called with the parser of `run`.
        run: Measures, by the options of `run`.
        finding: The sentences and the tables.
        plot: Draws into a file; None for no figure.
        goals: What was to be reached, and whether it was met; None if that is not
            decided.
        in_device: Whether `run` itself goes on in an emulated device of `--memory`.
    """

    name: str
    title: str
    emulated: str
    about: str | None
    add_settings: Callable[[Any], None]
    run: Callable[[Any], None]
    finding: Callable[[Head, Rows], Finding]
    plot: Callable[[Head, Rows, Path], None] | None = None
    goals: Callable[[Head, Rows], Iterable[tuple[str, bool | None]]] = lambda *_: ()
    in_device: bool = False

    @property
    def command(self) -> str:
        """What makes its results."""
        return f"python -m experiments.{self.name} run"

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run, or draw.

        Args:
            arguments: The words after `python -m experiments.NAME`.

        Returns:
            The exit status: 1 if a goal is not met.
        """
        words = list(sys.argv[1:] if arguments is None else arguments)
        options = self._parser().parse_args(words)
        if options.command == "draw":
            return self._draw(options.results, options.figure)
        if self.in_device and emulated_memory() is None:
            command = [sys.executable, "-m", f"experiments.{self.name}", *words]
            return emulate.run(command, memory=options.memory).returncode
        self.run(options)
        return 0

    def _parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(
            prog=f"python -m experiments.{self.name}",
            description=self.about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        commands = parser.add_subparsers(dest="command", required=True)
        run = commands.add_parser("run", help="measure, and write the result file")
        draw = commands.add_parser("draw", help="print and draw what the file says")
        results, figure = RESULTS / f"{self.name}.jsonl", _FIGURES / f"{self.name}.png"
        for command in (run, draw):
            command.add_argument("--results", type=Path, default=results)
        draw.add_argument("--figure", type=Path, default=figure)
        text = "measure all of it, also what the file has; without it, a run goes on"
        run.add_argument("--anew", action="store_true", help=text)
        self.add_settings(run)
        return parser

    def _draw(self, results: Path, figure: Path) -> int:
        head, rows = read_lines(results)
        said, *tables = self.finding(head, rows)
        console = Console(width=150, highlight=False, soft_wrap=True)
        for table in tables:
            console.print(_printable(table))
        console.print(said)
        if self.plot is not None:
            self.plot(head, rows, figure)
            console.print(f"Drawn: {figure}")
        goals = list(self.goals(head, rows))
        for text, is_met in goals:
            style = None if is_met else "red"
            console.print(f"Goal {MET[is_met]}: {text}", style=style)
        return int(not all(is_met for _, is_met in goals))


def _printable(table: Table) -> RichTable:
    title, columns, body = table
    shown = RichTable(title=title, title_justify="left")
    for i, name in enumerate(columns):
        shown.add_column(name, justify="left" if i < 2 else "right")
    for row in body:
        shown.add_row(*row)
    return shown


def settings_of(options: Any, *names: str) -> dict[str, Any]:
    """Options by name: what rows are measured with."""
    return {name: getattr(options, name) for name in names}


def cubed(size: int, base: int) -> float:
    """Voxels over those of another size."""
    return (size / base) ** 3


def how_it_ended(replans: int | None, chosen: str = "") -> str:
    """In words for a table, of a training that did not fail.

    Args:
        replans: How often it was planned anew.
        chosen: Knobs of IBM's rule.

    Example:
        >>> how_it_ended(None), how_it_ended(1), how_it_ended(3)[-7:]
        ('trained', 'trained, planned anew once', '3 times')
        >>> how_it_ended(0, "thresholds 9, 3, 0, sync off")
        'trained; thresholds 9, 3, 0, sync off'
    """
    knobs = f"; {chosen}" if chosen else ""
    if not replans:
        return f"trained{knobs}"
    times = "once" if replans == 1 else f"{replans} times"
    return f"trained, planned anew {times}{knobs}"


def part_of(share: float | None) -> str:
    """The part of a device that a plan was made for, after a way's name.

    Example:
        >>> part_of(0.8), part_of(None)
        (', 80%', '')
    """
    return "" if share is None else f", {share:.0%}"


def shortened(error: str) -> str:
    """An error in a few words.

    Example:
        >>> shortened("OOM when allocating tensor with shape[8,2] and type float on x")
        'out of memory at a tensor of [8,2]'
        >>> shortened("`budget` must be at least 9.00 MiB for IBM's rule: 1.00 MiB")
        'no plan: at least 9.00 MiB'
        >>> shortened("ValueError: it is so")
        'it is so'
    """
    crashed = ", process crashed" if "process crashed" in error else ""
    shape = re.search(r"OOM when allocating tensor with shape\[([\d,]*)\]", error)
    if shape:
        return f"out of memory at a tensor of [{shape[1]}]{crashed}"
    least = re.search(r"must be at least ([\d.]+ \w+) for (?:op '([^']*)')?", error)
    if least:
        op = (least[2] or "").rpartition("/")[2]
        return f"no plan: at least {least[1]}{op and f' for {op}'}"
    if error.startswith("exit status -9"):
        return "killed by the system, which ran out of memory"
    if "not done after" in error:
        return "took too long"
    return (error.partition(": ")[2] or error)[:90]
