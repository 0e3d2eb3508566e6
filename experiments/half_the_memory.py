"""What does a step cost in half of the memory that plain Keras takes?

Trainings of one network take turns, step by step, each in a process and a device of its
own: plain Keras in a device with enough memory; the others in half of what it took,
a hard limit of the allocator:

    plain Keras     also with one op at a time, as a GPU computes
    the callback    also kept from running ops a second time
    IBM's rule      tuned automatically for 0.9 of the memory, or for less where that
                    fails

Each but plain Keras trains twice: with copies at the speed of the host's memory, and
over an emulated link on which swapping everything would double the step. Everything is
what the forward pass makes, the other reads, and may move: copying it out takes as long
as the forward pass and the backward pass together, and copying it back takes as long
again, beside the way out. Goals, of medians:

    without a link    a step takes at most 1.25 times plain Keras's
    over the link     at most 1.11 times max(F, B / d2h) + max(W, B / h2d)

F and W are the seconds of the forward and the backward pass, B the fewest bytes swapped
out by any of the plans that trained here. The sum is what the link allows at least for
so many bytes if no op ran twice: the time of ops that do is left out.

A card runs ops one by one. Its kernels are the CPU's: on one core they have the time
that the goals are about, on all cores TensorFlow's threads share each op.

Known weaknesses: F and W share the measured step of plain Keras in the ratio of their
ops' measured times. Copies take time of the cores that compute. Two processes that do
the same differ: on one core plain Keras with one op at a time does the same as with
TensorFlow's choice, and the table has both.
"""

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.contests import ENOUGH, RULE_SHARES, Entrant, Place, compete
from experiments.half_the_memory_finding import finding, goals, plot
from experiments.ledger import Row
from experiments.question import LINK, Answer, settings_of
from experiments.quiet import quiet_median
from experiments.runner import Book, unet_flags
from lms.machine.hardware import LinkRates
from lms.machine.host import usable_cores
from lms.units import MIB, format_bytes

__all__ = ["ANSWER", "main"]

_FOLDER = Path("build") / "experiments" / "half_the_memory"
_CORES = ("one", "all")
_LATENCY = 1e-5
_FEW_STEPS = 7  # to learn what plain Keras takes
_IDLE_STEPS = 2  # the first ones initialise

_ENTRANTS = (
    Entrant(name="plain", way="plain", is_free=True),
    Entrant(name="budget", way="budget"),
    Entrant(name="budget, nothing twice", way="budget", flags=("--recompute=never",)),
    Entrant(name="threshold", way="threshold", shares=RULE_SHARES),
)


def _add_settings(parser: Any) -> None:
    parser.add_argument("--size", type=int, default=48, help="voxels along an axis")
    parser.add_argument("--filters", type=int, default=8)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--steps", type=int, default=30, help="of each, that count")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cores", nargs="+", choices=_CORES, default=_CORES)
    names = [entrant.name for entrant in _ENTRANTS]
    parser.add_argument("--entrants", nargs="+", choices=names, default=names)


def _run(options: Any) -> None:
    """What is finished of the same settings is kept when a run goes on."""
    names = ("size", "filters", "depth", "steps", "seed")
    settings = settings_of(options, *names) | {"idle": _IDLE_STEPS}
    book = Book(options, settings, _FOLDER)
    for cores in options.cores:
        _run_on(cores, options, book)


def _run_on(cores: str, options: Any, book: Book) -> None:
    """Without a link, and over one on which moving all would double plain's step."""
    plain = _row(cores, book, options, "training")
    memory = plain["peak_bytes"] // 2 // MIB * MIB
    known = _row(cores, book, options, "prediction", "--predict", f"--memory={ENOUGH}")
    book.say(f"{cores} of the cores, half of plain's peak: {format_bytes(memory)}")
    key = {"kind": "turns", "on": cores}

    def measure(link: LinkRates | None) -> dict[str, Any]:
        return {"trainings": _take_turns(cores, options, memory, link)}

    free = book.once(key | {"link_rate": None}, lambda: measure(None))
    first = next(one for one in free["trainings"] if one["entrant"] == "plain")
    rate = known["crossing_bytes"] / quiet_median(first, skipped=_IDLE_STEPS)
    book.say(f"the link: {rate / 1e9:.3f} GB/s each way")
    link = LinkRates(h2d=rate, d2h=rate, latency=_LATENCY)
    book.once(key | {"link_rate": rate}, lambda: measure(link))


def _row(cores: str, book: Book, options: Any, kind: str, *flags: str) -> Row:
    """Of plain Keras with enough memory."""
    few = Namespace(**vars(options) | {"steps": _FEW_STEPS})
    row = book.row(
        {"kind": kind, "way": "plain", "on": cores},
        name=f"{kind} of plain Keras, {cores} of the cores",
        memory=ENOUGH,
        flags=unet_flags("plain", options.size, few, *flags, *_core(cores)),
    )
    if row["error"]:
        raise SystemExit(f"{options.size}^3 does not train plainly: {row['error']}")
    return row


def _core(cores: str) -> tuple[str, ...]:
    return (f"--core={min(os.sched_getaffinity(0))}",) if cores == "one" else ()


def _take_turns(
    cores: str, options: Any, memory: int, link: LinkRates | None
) -> list[dict[str, Any]]:
    """Let all train in turns, and say how each did."""
    long = Namespace(**vars(options) | {"steps": _IDLE_STEPS + options.steps})
    over = "" if link is None else ", over the link"
    place = Place(
        name=f"{cores} of the cores{over}",
        memory=memory,
        link=link,
        cores=1 if cores == "one" else usable_cores(),
        idle=_IDLE_STEPS,
        flags=lambda way, *more: unet_flags(
            way, options.size, long, *more, *_core(cores)
        ),
        folder=_FOLDER,
        console=Console(),
    )
    entrants = [one for one in _ENTRANTS if one.name in options.entrants]
    return compete(entrants, place, steps=options.steps)


ANSWER = Answer(
    name="half_the_memory",
    title="What a step costs in half of the memory",
    emulated=LINK,
    about=__doc__,
    add_settings=_add_settings,
    run=_run,
    finding=finding,
    plot=plot,
    goals=goals,
)
main = ANSWER.main

if __name__ == "__main__":
    raise SystemExit(main())
