"""Trainings over scaled links: alone, two at once, and two at once that share a bus.

Each way to train has three processes, each with a device of its own. The first has one
of the machine's cores, the others have the other core. In each round the first makes a
step alone, one at the same time as a second that has a bus of its own, and one at the
same time as a third on its own bus; ways take turns. What the second costs are the
caches, the memory and the execution units that both cores have in common; what the
third costs beyond is the bus.
"""

import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.progress import Progress

from experiments.ledger import Rows
from experiments.link_teams import IDLE_STEPS, Team
from experiments.quiet import quiet_median
from experiments.runner import Book, threads_for, unet_flags
from experiments.servers import LATENCY, SERVERS
from experiments.turns import Turns, take_turns
from lms.machine.emulated_link import LinkRates
from lms.units import MIB, Bytes, format_bytes

__all__ = ["train"]

_ENOUGH = 8192 * MIB
_SPARE = 1.05  # of what plain Keras takes at the smaller size
_MANY = 10**9  # steps of mates: as many as are asked for

# Kinds of steps: alone, beside a training with a bus of its own, and on one bus.
_KINDS = ("alone", "beside", "sharing")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """A way to train.

    Args:
        name: As `experiments.training_trial` knows it.
        is_small: Whether it trains the smaller size.
        shares: Parts of the device that a plan is made for, the next where one fails;
            None for what it takes of itself.
    """

    name: str
    is_small: bool = False
    shares: tuple[float | None, ...] = (None,)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of its steps: plain Keras copies nothing that a bus could slow."""
        return _KINDS[:2] if self.name == "plain" else _KINDS


_WAYS = (
    _Way(name="plain", is_small=True),
    _Way(name="plain"),
    _Way(name="threshold", shares=(None, 0.8, 0.6)),
    _Way(name="budget"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where ways are compared.

    Args:
        server: Whose link is scaled.
        rate: Bytes per second of that link each way.
        memory: Of the small device.
        options: As for `train`.
        book: As for `train`.
    """

    server: str
    rate: float
    memory: Bytes
    options: Any
    book: Book


def train(options: Any, book: Book) -> None:
    """Train on both servers' links; what is in the book already is left out.

    Args:
        options: `small` and `large` voxels along an axis, `trained_filters` and
            `trained_depth` of the network, `steps` that count and steps to `record` of
            each kind, `seed`, and `servers` whose links are scaled.
        book: Gets a row of plain Keras at the smaller size, and one for each server.
    """
    key = {"kind": "base", "size": options.small}
    base = book.once(key, lambda: _base(options, book))
    if base["error"]:
        raise SystemExit(f"{options.small}^3 does not train: {base['error']}")
    peak, step = base["peak_bytes"], quiet_median(base, skipped=IDLE_STEPS)
    memory = int(_SPARE * peak) // MIB * MIB
    book.say(f"the small device has {format_bytes(memory)}")
    for name in options.servers:
        rate = SERVERS[name].scaled_rate(peak=peak, step=step)
        book.say(f"{name}'s link, scaled: {rate / 1e9:.3f} GB/s each way")
        place = _Place(
            server=name, rate=rate, memory=memory, options=options, book=book
        )
        book.once({"kind": "measured", "server": name}, lambda at=place: _measured(at))


def _base(options: Any, book: Book) -> dict[str, Any]:
    """Plain Keras at the smaller size, in turns with the larger one.

    As in what is compared with it: others use the caches between its steps.
    """
    steps = IDLE_STEPS + options.steps
    trainings = [
        Turns(
            f"{size}^3 in a large device",
            memory=_ENOUGH,
            flags=_flags("plain", size, 0, steps, options),
            folder=book.folder,
        )
        for size in (options.small, options.large)
    ]
    try:
        take_turns(trainings, steps=steps, console=book.console)
    finally:
        (error, result), _ = [training.end() for training in trainings]
    return {"error": error, **result}


def _flags(
    way: str, size: int, core: int, steps: int, options: Any, *more: str
) -> tuple[str, ...]:
    """Arguments of a trial on one of the cores that this process may use."""
    cores = sorted(os.sched_getaffinity(0))
    own = f"--core={cores[min(core, len(cores) - 1)]}"
    filters, depth = options.trained_filters, options.trained_depth
    network = Namespace(filters=filters, depth=depth, seed=options.seed, steps=steps)
    return unet_flags(way, size, network, own, *more)


def _measured(place: _Place) -> dict[str, Any]:
    """All ways in turns; those that fail again with less, beside plain Keras."""
    rows = _in_turns(_WAYS, place)
    while ways := [way for each in _WAYS if (way := _left(each, rows))]:
        again = _in_turns([_WAYS[0], *ways], place)
        rows += [row for row in again if row["way"] != "plain"]
    order = [way.name for way in _WAYS]
    rows.sort(key=lambda row: order.index(row["way"]))
    known = {"link_rate": place.rate, "memory_bytes": place.memory}
    return known | {"trainings": rows}


def _left(way: _Way, rows: Rows) -> _Way | None:
    """The way with the shares that were not tried yet; None if that is no use."""
    tried = [row for row in rows if row["way"] == way.name]
    if any(row["error"] is None for row in tried) or len(tried) >= len(way.shares):
        return None
    return replace(way, shares=way.shares[len(tried) :])


def _in_turns(ways: Sequence[_Way], place: _Place) -> list[dict[str, Any]]:
    """Rows of trainings that take turns, those that failed to begin too."""
    options, console = place.options, place.book.console
    teams: list[Team] = []
    failed: list[dict[str, Any]] = []
    try:
        for team in (team for way in ways for team in _enter(way, place)):
            console.print(f"{'ready' if team.waits else 'failed':6}  {team.first.name}")
            if team.waits:
                teams.append(team)
            else:  # its mates would take memory while others are timed
                failed.append(team.end(options.record))
        with Progress(console=console, disable=not console.is_terminal) as progress:
            rounds = options.steps + options.record
            bar = progress.add_task("Steps of each kind", total=rounds)
            while any(team.waits for team in teams):
                for kind in _KINDS:
                    for team in teams:
                        team.step(kind)
                progress.advance(bar)
    finally:
        rows = [team.end(options.record) for team in teams]
    return [*failed, *rows]


def _enter(way: _Way, place: _Place) -> Iterator[Team]:
    """Prepare a way's trainings: those that failed, and the team that is ready."""
    size = place.options.small if way.is_small else place.options.large
    for share in way.shares:
        first = _begin("alone", way, size, share, place)
        mates = {
            kind: _begin(kind, way, size, share, place)
            if kind != "alone" and first.waits
            else None
            for kind in way.kinds
        }
        told = {"way": way.name, "size": size, "share": share}
        team = Team(told=told, first=first, mates=mates)
        yield team
        if team.waits:
            return


def _begin(
    kind: str, way: _Way, size: int, share: float | None, place: _Place
) -> Turns:
    """Prepare the one that is measured, of kind "alone", or its mate of a kind."""
    options, folder = place.options, place.book.folder
    own = _ENOUGH if way.name == "plain" else place.memory
    words = "" if share is None else f" {share:.0%}"
    flags = () if share is None else (f"--budget={int(share * own)}",)
    core, steps = 1, _MANY
    if kind == "alone":
        core, steps = 0, IDLE_STEPS + len(way.kinds) * options.steps
        flags += (f"--record={len(way.kinds) * options.record}",)
    folder.mkdir(parents=True, exist_ok=True)  # of the bus
    bus = "second" if kind == "beside" else "first"
    bus = folder / f"bus-{place.server}-{way.name}-{size}-{bus}"
    link = LinkRates(h2d=place.rate, d2h=place.rate, latency=LATENCY, bus=bus)
    training = Turns(
        f"{size}^3 {way.name}{words}, {place.server}, {kind}",
        memory=own,
        flags=_flags(way.name, size, core, steps, options, *flags),
        folder=folder,
        link=link,
        threads=threads_for(way.name, link, cores=1),
    )
    for _ in range(IDLE_STEPS):
        if training.waits:
            training.step()
    return training
