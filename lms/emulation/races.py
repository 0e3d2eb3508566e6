"""Races that an emulated card found: read, told apart, and told.

The driver (`native/races.h`) appends a line for each race to a file, which all
processes of a program share. A race whose two accesses are both TensorFlow's own, as
listed here with its source, does not count against the program.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from lms.errors import LMSError
from lms.units import Bytes

__all__ = ["FOUND", "PATH", "RACE_VARIABLES", "Access", "Race", "found_races"]
__all__ += ["program_of", "race_variables", "races_in", "report", "run_watched"]

# Exit code of a program in which there was a race.
FOUND: Final = 4

# Variables of a process whose card looks for races; the first names the file of races.
PATH: Final = "LMS_CARD_RACES"
_LATE: Final = "LMS_CARD_LATE"
RACE_VARIABLES: Final = (PATH, _LATE)

_BY_SIGNAL: Final = 128
_SHOWN: Final = 20  # races in full


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One of a race's two accesses.

    Args:
        kind: `kernel`, `H2D`, `D2H`, `D2D`, `memset`, `nccl`, or `op` for the host.
        writes: Whether bytes were written.
        op: Name of the op, as far as known.
        stream: The stream and its card, or `host`.
        tensor: Name of the tensor, as far as known.
        size: Bytes of the whole access.
    """

    kind: str
    writes: bool
    op: str
    stream: str
    tensor: str
    size: Bytes

    def __str__(self) -> str:
        by = f" {self.op!r}" if self.op else ""
        verb = "writes" if self.writes else "reads"
        of = f" of {self.tensor!r}" if self.tensor else ""
        return f"{self.kind}{by} {verb} {self.size} bytes{of} ({self.stream})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """Two accesses to one byte that nothing orders, in the order of their calls."""

    first: Access
    second: Access


@dataclass(frozen=True, slots=True, kw_only=True)
class _Own:
    """A race of TensorFlow's own: patterns of both accesses, and its source."""

    first: str
    second: str
    source: str


# Races that TensorFlow has without lms.
_OWN: Final[Sequence[_Own]] = ()


def race_variables(
    path: Path | str | None = None, late: int | None = None
) -> dict[str, str]:
    """Return the variables by which a card looks for races.

    Args:
        path: A file to which the driver appends races; None to look for none.
        late: Copies take effect at a moment drawn by this seed, or for 0 as late as is
            legal; None for at once.

    Raises:
        ValueError: If `late` is below 0.

    Example:
        >>> race_variables("races", late=0)
        {'LMS_CARD_RACES': 'races', 'LMS_CARD_LATE': '0'}
    """
    if late is not None and late < 0:
        raise ValueError(
            f"`late` must be a seed of at least 0, got {late}. Leave it out for copies "
            "that are made at once."
        )
    found = {} if path is None else {PATH: str(path)}
    return found if late is None else {**found, _LATE: str(late)}


def found_races() -> list[Race]:
    """Return the races that this program's card has found until now.

    Raises:
        LMSError: If no card of this process looks for races.
    """
    if (path := os.environ.get(PATH)) is None:
        raise LMSError(
            "`found_races` must be called where a card looks for races, got a process "
            "without one. Start the program with `python -m lms emulate --races`, or "
            "call `lms.emulate.limit_memory(races=True)` on its first line."
        )
    return races_in(Path(path))


def races_in(path: Path) -> list[Race]:
    """Read the races that a driver wrote; none if there is no file.

    Example:
        >>> races_in(Path("no such file"))
        []
    """
    if not path.exists():
        return []
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    return [
        Race(first=_access(line[1:7]), second=_access(line[7:13]))
        for line in lines
        if line[0] == "race"
    ]


def program_of(races: Sequence[Race]) -> list[Race]:
    """Return races without those of TensorFlow's own."""
    return [race for race in races if not any(_is_own(race, own) for own in _OWN)]


def report(races: Sequence[Race]) -> str:
    """Write races as text, those of TensorFlow's own apart.

    Example:
        >>> report([])
        'No race was found.'
    """
    program = program_of(races)
    own = [race for race in races if race not in program]
    return "\n".join(_said("race", program) + _said("race of TensorFlow's own", own))


def run_watched(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a program whose card looks for races; tell what was found.

    Args:
        command: The program and its arguments; `--` before them is left out.
        variables: The program's whole environment, but for the file of races.

    Returns:
        4 if there was a race of the program's, else its own exit code, or 128 plus the
        number of the signal that ended it.

    Raises:
        ValueError: If there is no program, or it cannot be started.
    """
    program = list(command[1:] if command[:1] == ["--"] else command)
    if not program:
        raise ValueError(
            "COMMAND must name a program, got nothing. Write it after `--`."
        )
    with tempfile.TemporaryDirectory(prefix="lms-races-") as folder:
        path = Path(folder) / "races"
        code = _ended(program, {**variables, **race_variables(path)})
        races = races_in(path)
    sys.stderr.write(f"{report(races)}\n")
    if program_of(races):
        return FOUND
    return code if code >= 0 else _BY_SIGNAL - code


def _access(words: Sequence[str]) -> Access:
    kind, verb, op, stream, tensor, size = words
    writes = verb == "writes"
    return Access(
        kind=kind, writes=writes, op=op, stream=stream, tensor=tensor, size=int(size)
    )


def _is_own(race: Race, own: _Own) -> bool:
    said = (str(race.first), str(race.second))
    return all(
        re.search(pattern, text)
        for pattern, text in zip((own.first, own.second), said, strict=True)
    )


def _said(what: str, races: Sequence[Race]) -> list[str]:
    if not races:
        return [] if " " in what else ["No race was found."]
    head, _, tail = what.partition(" ")
    counted = f"{len(races)} {head}{'' if len(races) == 1 else 's'} {tail}".rstrip()
    lines = [f"{counted}:"]
    for number, race in enumerate(races[:_SHOWN], 1):
        lines += [f"  {number}. {race.first}", f"     {race.second}"]
    more = len(races) - _SHOWN
    return [*lines, f"  and {more} more"] if more > 0 else lines


def _ended(program: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a program to its end; it gets this process's signals."""
    try:
        process = subprocess.Popen(program, env=dict(variables))
    except OSError as error:
        raise ValueError(
            f"COMMAND must be a program that can be started, got '{program[0]}' "
            f"({error.strerror}). Check its name and path."
        ) from error

    def forward(number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGINT:  # the terminal sends Ctrl-C to both
            process.send_signal(number)

    kept = {
        number: signal.signal(number, forward)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        return process.wait()
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
