"""Trainings over scaled links: alone, two at once, and two at once that share a bus.

Each way to train has three processes, each with a device of its own. The first has one
of the machine's cores, the others have the other core. In each round the first makes a
step alone, one at the same time as a second that has a bus of its own, and one at the
same time as a third on its own bus; ways take turns. What the second costs are the
caches, the memory and the execution units that both cores have in common; what the
third costs beyond is the bus.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from experiments.book import Book
from experiments.quiet import quiet_median
from experiments.servers import LATENCY, SERVERS
from experiments.trials import threads_for
from experiments.turns import Turns, take_turns
from lms.machine.emulated_link import LinkRates
from lms.units import MIB, Bytes, format_bytes
from profiling.timelines import median_figures

__all__ = ["train"]

_ENOUGH = 8192 * MIB
_SPARE = 1.05  # of what plain Keras takes at the smaller size
_MANY = 10**9  # steps of mates: as many as are asked for
_IDLE_STEPS = 4  # the first ones initialise, and show what runs out of memory

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


_WAYS = (
    _Way(name="plain", is_small=True),
    _Way(name="plain"),
    _Way(name="threshold", shares=(0.9, 0.7, 0.5)),
    _Way(name="budget"),
)


def train(options: Any, book: Book, folder: Path, console: Console) -> None:
    """Train on both servers' links; what is in the book already is left out.

    Args:
        options: `small` and `large` voxels along an axis, `trained_filters` and
            `trained_depth` of the network, `steps` that count and steps to `record` of
            each kind, `seed`, and `servers` whose links are scaled.
        book: Gets a row of plain Keras at the smaller size, and one for each server.
        folder: Where trials leave their logs.
        console: Where progress is told.
    """
    base = book.once(
        {"kind": "base", "size": options.small},
        lambda: _base(options, folder, console),
    )
    if base["error"]:
        raise SystemExit(f"{options.small}^3 does not train: {base['error']}")
    memory = int(_SPARE * base["peak_bytes"]) // MIB * MIB
    step = quiet_median(base, skipped=_IDLE_STEPS)
    book.say(f"the small device has {format_bytes(memory)}")
    for name in options.servers:
        rate = SERVERS[name].scaled_rate(peak=base["peak_bytes"], step=step)
        book.say(f"{name}'s link, scaled: {rate / 1e9:.3f} GB/s each way")

        def measure(name: str = name, rate: float = rate) -> dict[str, Any]:
            found = list(_trained(name, rate, memory, options, folder, console))
            return {"link_rate": rate, "memory_bytes": memory, "trainings": found}

        book.once({"kind": "measured", "server": name}, measure)


def _base(options: Any, folder: Path, console: Console) -> dict[str, Any]:
    """Plain Keras at the smaller size, in turns with the larger one.

    As in what is compared with it: others use the caches between its steps.
    """
    steps = _IDLE_STEPS + options.steps
    trainings = [
        Turns(
            f"{size}^3 in a large device",
            memory=_ENOUGH,
            flags=(
                "--way=plain",
                f"--steps={steps}",
                f"--core={_core(0)}",
                *_flags(options, size),
            ),
            folder=folder,
        )
        for size in (options.small, options.large)
    ]
    try:
        take_turns(trainings, steps=steps, console=console)
    finally:
        (error, result), _ = [training.end() for training in trainings]
    return {"error": error, **result}


def _core(number: int) -> int:
    """One of the cores that this process may use."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[min(number, len(cores) - 1)]


def _flags(options: Any, size: int) -> tuple[str, ...]:
    shape = f"filters={options.trained_filters}", f"depth={options.trained_depth}"
    return ("--model=unet", f"--seed={options.seed}", "--shape", f"size={size}", *shape)


@dataclass(slots=True, kw_only=True)
class _Team:
    """A training, and those that may step with it.

    Args:
        told: What tells it from others.
        first: The training that is measured.
        mates: By kind of step, who steps at the same time; None for nobody.
        kinds: Of what kind each step of the first one was.
    """

    told: dict[str, Any]
    first: Turns
    mates: Mapping[str, Turns | None]
    kinds: list[str] = field(default_factory=list)

    @property
    def everyone(self) -> list[Turns]:
        """The first one and its mates."""
        return [self.first, *(mate for mate in self.mates.values() if mate)]

    @property
    def waits(self) -> bool:
        """Whether the first one has steps left, and nobody has failed."""
        return all(each.waits for each in self.everyone)

    def step(self, kind: str) -> None:
        """Let the first one make a step, with its mate if it has one."""
        if kind not in self.mates or not self.waits:
            return
        self.kinds.append(kind)
        mate = self.mates[kind]
        together = [self.first, *([mate] if mate else [])]
        for each in together:
            each.begin()
        for each in together:
            each.finish()

    def end(self, recorded: int) -> dict[str, Any]:
        """The row: seconds of each kind of step, and what was recorded of so many."""
        ended = [(each.waits, *each.end()) for each in self.everyone]
        # A mate that waits would make more steps: nobody needs them.
        errors = [error for waited, error, _ in ended if error and not waited]
        _, stopped, result = ended[0]
        row = self.told | {"error": errors[0] if errors else stopped}
        if row["error"]:
            return row
        recorded *= len(self.mates)
        count = len(result["step_seconds"])
        timed, seen = self.kinds[-count - recorded : -recorded], self.kinds[-recorded:]
        row |= {"peak_bytes": result["peak_bytes"], "report": result.get("report")}
        row["cores"] = result["cores"]
        return row | {kind: _summary(result, timed, seen, kind) for kind in self.mates}


def _summary(
    result: Mapping[str, Any], timed: Sequence[str], seen: Sequence[str], kind: str
) -> dict[str, Any]:
    """Steps of one kind: `timed` and `seen` say which those of the result are."""
    chosen = {
        name: [
            seconds
            for seconds, is_ in zip(result[name], timed, strict=True)
            if is_ == kind
        ]
        for name in ("step_seconds", "stolen_seconds")
    }
    recorded = zip(result["recorded"], seen, strict=True)
    figures = median_figures([each for each, is_ in recorded if is_ == kind])
    return chosen | {"seconds": quiet_median(chosen), "recorded": figures}


def _trained(
    server: str,
    rate: float,
    memory: Bytes,
    options: Any,
    folder: Path,
    console: Console,
) -> list[dict[str, Any]]:
    """All ways in turns; those that fail again with less, beside plain Keras."""
    rows: list[dict[str, Any]] = []
    ways = _WAYS
    while ways:
        company = () if ways is _WAYS else _WAYS[:1]
        found = _in_turns(
            (*company, *ways), server, rate, memory, options, folder, console
        )
        rows += [row for row in found if ways is _WAYS or row["way"] != "plain"]
        left = (_left(way, rows) for way in ways)
        ways = tuple(way for way in left if way is not None)
    order = [way.name for way in _WAYS]
    return sorted(rows, key=lambda row: order.index(row["way"]))


def _left(way: _Way, rows: Sequence[Mapping[str, Any]]) -> _Way | None:
    """The way with the shares that were not tried yet; None if that is no use."""
    tried = [row for row in rows if row["way"] == way.name]
    if any(row["error"] is None for row in tried) or len(tried) >= len(way.shares):
        return None
    return replace(way, shares=way.shares[len(tried) :])


def _in_turns(  # noqa: PLR0913 - what differs between trainings
    ways: Sequence[_Way],
    server: str,
    rate: float,
    memory: Bytes,
    options: Any,
    folder: Path,
    console: Console,
) -> list[dict[str, Any]]:
    """Trainings that take turns, those that failed to begin too."""
    teams: list[_Team] = []
    failed: list[dict[str, Any]] = []
    try:
        for way in ways:
            for team in _enter(server, way, rate, memory, options, folder):
                state = "ready" if team.waits else "failed"
                console.print(f"{state:6}  {team.first.name}")
                if team.waits:
                    teams.append(team)
                else:  # its mates would take memory while others are timed
                    failed.append(team.end(options.record))
        _take_turns(teams, options.steps + options.record, console)
    finally:
        rows = [team.end(options.record) for team in teams]
    return [*failed, *rows]


def _take_turns(teams: Sequence[_Team], rounds: int, console: Console) -> None:
    with Progress(console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("Steps of each kind", total=rounds)
        while any(team.waits for team in teams):
            for kind in _KINDS:
                for team in teams:
                    team.step(kind)
            progress.advance(bar)


def _enter(
    server: str,
    way: _Way,
    rate: float,
    memory: Bytes,
    options: Any,
    folder: Path,
) -> Iterator[_Team]:
    """Prepare a way's trainings: those that failed, and the team that is ready."""
    size = options.small if way.is_small else options.large
    own = _ENOUGH if way.name == "plain" else memory
    kinds = [kind for kind in _KINDS if kind != "sharing" or way.name != "plain"]
    folder.mkdir(parents=True, exist_ok=True)

    def begin(number: int, share: float | None) -> Turns:
        """The first one makes steps of all kinds, its mates as many as it needs."""
        counted = {"steps": _MANY, "record": 0}
        if not number:
            counted = {name: len(kinds) * getattr(options, name) for name in counted}
            counted["steps"] += _IDLE_STEPS
        planned = () if share is None else (f"--budget={int(share * own)}",)
        words = "" if share is None else f" {share:.0%}"
        of_bus = 0 if number == len(kinds) - 1 else number  # the last has the first's
        bus = folder / f"bus-{server}-{way.name}-{size}-{of_bus}"
        link = LinkRates(h2d=rate, d2h=rate, latency=LATENCY, bus=bus)
        training = Turns(
            f"{size}^3 {way.name}{words}, {server}, {number + 1} of {len(kinds)}",
            memory=own,
            flags=(
                f"--way={way.name}",
                *(f"--{name}={count}" for name, count in counted.items()),
                f"--core={_core(min(number, 1))}",
                *planned,
                *_flags(options, size),
            ),
            folder=folder,
            link=link,
            threads=threads_for(way.name, link, cores=1),
        )
        for _ in range(_IDLE_STEPS):
            if training.waits:
                training.step()
        return training

    for share in way.shares:
        first = begin(0, share)
        mates = {
            kind: begin(number, share) if number and first.waits else None
            for number, kind in enumerate(kinds)
        }
        team = _Team(
            told={"way": way.name, "size": size, "share": share},
            first=first,
            mates=mates,
            kinds=["idle"] * _IDLE_STEPS,
        )
        yield team
        if team.waits:
            return
