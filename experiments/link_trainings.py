"""Trainings over scaled links: alone, and two at once that share a bus.

Each way to train has two processes. Each has a core of its own and a device of its own,
and both have one link's bandwidth together. In each round the first makes a step alone,
then both make one at the same time; ways take turns. So a pair is slower than one alone
for two reasons, the bus and the machine's memory: plain Keras, which copies nothing,
shows the second.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from experiments.book import Book
from experiments.quiet import quiet_median
from experiments.servers import LATENCY, SERVERS
from experiments.turns import Turns
from lms.link import LinkRates
from lms.units import MIB, Bytes, format_bytes
from profiling.record import circumstances
from profiling.timelines import median_figures

__all__ = ["train"]

_ENOUGH = 8192 * MIB
_SPARE = 1.05  # of what plain Keras takes at the smaller size
_IDLE_STEPS = 2  # the first ones initialise


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
        options: `small` and `large` voxels along an axis, `channels` and `levels` of
            the network, `steps` that count and steps to `record` of each kind, `seed`.
        book: Gets a row of plain Keras at the smaller size, and one for each server.
        folder: Where trials leave their logs.
        console: Where progress is told.
    """
    base = book.row(
        {"kind": "base", "size": options.small},
        name=f"{options.small}^3 in a large device",
        memory=_ENOUGH,
        flags=(
            "--way=plain",
            f"--steps={_IDLE_STEPS + options.steps}",
            "--core=0",
            *_flags(options, options.small),
        ),
    )
    if base["error"]:
        raise SystemExit(f"{options.small}^3 does not train: {base['error']}")
    memory = int(_SPARE * base["peak_bytes"]) // MIB * MIB
    step = quiet_median(base, skipped=_IDLE_STEPS)
    book.say(f"the small device has {format_bytes(memory)}")
    for name, server in SERVERS.items():
        key = {"kind": "measured", "server": name}
        if book.find(key) is not None:
            continue
        rate = server.scaled_rate(peak=base["peak_bytes"], step=step)
        book.say(f"{name}'s link, scaled: {rate / 1e9:.3f} GB/s each way")
        found = list(_trained(name, rate, memory, options, folder, console))
        row = {**key, "link_rate": rate, "memory_bytes": memory, "trainings": found}
        book.add(row | {"commit": circumstances()["commit"]})


def _flags(options: Any, size: int) -> tuple[str, ...]:
    shape = (f"size={size}", f"filters={options.channels}", f"depth={options.levels}")
    return ("--model=unet", f"--seed={options.seed}", "--shape", *shape)


@dataclass(slots=True, kw_only=True)
class _Pair:
    """Two trainings of one way; `kinds` says of each step of the first what it was."""

    told: dict[str, Any]
    first: Turns
    second: Turns | None = None
    kinds: list[str] = field(default_factory=list)

    @property
    def waits(self) -> bool:
        """Whether steps are left."""
        return any(
            each is not None and each.waits for each in (self.first, self.second)
        )

    def step(self, *, together: bool) -> None:
        """Let the first make a step, or both."""
        both = (self.first, self.second) if together else (self.first,)
        ready = [each for each in both if each is not None and each.waits]
        if self.first in ready:
            self.kinds.append("together" if len(ready) > 1 else "alone")
        for each in ready:
            each.begin()
        for each in ready:
            each.finish()

    def end(self, recorded: int) -> dict[str, Any]:
        """The row: seconds of steps alone and together, and what was recorded."""
        error, result = self.first.end()
        if self.second is not None:
            other, _ = self.second.end()
            error = error or other
        row = self.told | {"error": error}
        if error:
            return row
        count = len(result["step_seconds"])
        timed, seen = self.kinds[-count - recorded : -recorded], self.kinds[-recorded:]
        row |= {"peak_bytes": result["peak_bytes"], "report": result.get("report")}
        return row | {
            kind: _summary(result, timed, seen, kind) for kind in ("alone", "together")
        }


def _summary(
    result: Mapping[str, Any], timed: Sequence[str], seen: Sequence[str], kind: str
) -> dict[str, Any]:
    """Steps of one kind: `timed` and `seen` say which those of the result are."""
    chosen = {
        name: [
            each for each, is_ in zip(result[name], timed, strict=True) if is_ == kind
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
    """All ways in turns, those that failed to begin too."""
    pairs: list[_Pair] = []
    try:
        for way in _WAYS:
            for pair in _enter(server, way, rate, memory, options, folder):
                state = "ready" if pair.waits else "failed"
                console.print(f"{state:6}  {pair.first.name}")
                pairs.append(pair)
        _take_turns(pairs, options.steps + options.record, console)
    finally:
        rows = [pair.end(2 * options.record) for pair in pairs]
    return rows


def _take_turns(pairs: Sequence[_Pair], rounds: int, console: Console) -> None:
    with Progress(console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("Steps alone and together", total=rounds)
        while any(pair.waits for pair in pairs):
            for together in (False, True):
                for pair in pairs:
                    pair.step(together=together)
            progress.advance(bar)


def _enter(
    server: str,
    way: _Way,
    rate: float,
    memory: Bytes,
    options: Any,
    folder: Path,
) -> Iterator[_Pair]:
    """Prepare a way's trainings: those that failed, and the pair that is ready."""
    size = options.small if way.is_small else options.large
    own = _ENOUGH if way.name == "plain" else memory
    folder.mkdir(parents=True, exist_ok=True)
    bus = folder / f"bus-{server}-{way.name}-{size}"
    link = LinkRates(h2d=rate, d2h=rate, latency=LATENCY, bus=bus)

    def begin(number: int, share: float | None) -> Turns:
        # The first makes each step twice: alone, and together with the second.
        times = 2 - number
        planned = () if share is None else (f"--budget={int(share * own)}",)
        words = "" if share is None else f" {share:.0%}"
        training = Turns(
            f"{size}^3 {way.name}{words}, {server}, {number + 1} of 2",
            memory=own,
            flags=(
                f"--way={way.name}",
                f"--steps={_IDLE_STEPS + times * options.steps}",
                f"--record={times * options.record}",
                f"--core={number}",
                *planned,
                *_flags(options, size),
            ),
            folder=folder,
            link=link,
        )
        for _ in range(_IDLE_STEPS):
            if training.waits:
                training.step()
        return training

    for share in way.shares:
        told = {"way": way.name, "size": size, "share": share}
        pair = _Pair(told=told, first=begin(0, share), kinds=["idle"] * _IDLE_STEPS)
        if pair.first.waits:
            pair.second = begin(1, share)
        yield pair
        if pair.first.waits:
            return
