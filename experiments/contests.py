"""Ways to train that compete: they take turns, step by step.

Each is a process and a device of its own (`experiments.turns`). Its first steps, which
initialise and show what runs out of memory, are made before the turns begin. A way that
fails is tried again with the next share of its memory.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.turns import Turns, take_turns
from lms.machine.hardware import LinkRates
from lms.units import MIB, Bytes

__all__ = ["ENOUGH", "RULE_SHARES", "Entrant", "Place", "compete"]

ENOUGH = 4096 * MIB
RULE_SHARES = (None, 0.8, 0.6)  # of the memory; IBM's rule is tuned for 0.9 of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A way to train.

    Args:
        name: What it is called.
        way: As `experiments.training_trial` knows it.
        shares: Parts of the memory that it plans for, the next where one fails; None
            for what it takes of itself.
        flags: More arguments.
        is_free: Whether it has enough memory, and no link.
    """

    name: str
    way: str
    shares: tuple[float | None, ...] = (None,)
    flags: tuple[str, ...] = ()
    is_free: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where ways compete.

    Args:
        name: What is special about it, readable; names files.
        memory: Of the device of those that are not free.
        link: The same of the link; None for the speed of the host's memory.
        cores: That each may use.
        idle: First steps, which do not count.
        flags: The trial's arguments, of a way and of more arguments.
        folder: Where results and logs go.
        console: Where it is said how each began.
    """

    name: str
    memory: Bytes
    link: LinkRates | None
    cores: int
    idle: int
    flags: Callable[..., tuple[str, ...]]
    folder: Path
    console: Console


def compete(
    entrants: Sequence[Entrant], place: Place, *, steps: int
) -> list[dict[str, Any]]:
    """Let all train in turns, and say how each did, those that failed too.

    Args:
        entrants: The ways.
        place: Where.
        steps: That count, of each.
    """
    trainings = [one for entrant in entrants for one in _enter(entrant, place)]
    try:
        ready = [training for _, training in trainings]
        take_turns(ready, steps=steps, console=place.console)
    finally:
        ends = [(told, *training.end()) for told, training in trainings]
    return [told | {"error": error} | result for told, error, result in ends]


def _enter(entrant: Entrant, place: Place) -> Iterator[tuple[dict[str, Any], Turns]]:
    """Prepare an entrant's trainings: those that failed, and the one that is ready."""
    own = ENOUGH if entrant.is_free else place.memory
    link = None if entrant.is_free else place.link
    for share in entrant.shares:
        planned = () if share is None else (f"--budget={int(share * own)}",)
        words = entrant.name if share is None else f"{entrant.name}, {share:.0%}"
        training = Turns(
            f"{words}, {place.name}",
            memory=own,
            flags=place.flags(entrant.way, *planned, *entrant.flags),
            folder=place.folder,
            link=link,
        )
        for _ in range(place.idle):
            if training.waits:
                training.step()
        ready = "ready" if training.waits else "failed"
        place.console.print(f"{ready:6}  {training.name}")
        yield {"entrant": entrant.name, "memory_bytes": own, "share": share}, training
        if training.waits:
            return
