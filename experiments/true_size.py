"""The case study's network at its true size: 192^3 in a memory that 144^3 fills?

16 filters, 5 levels, batch 1, float32, as IBM trained it on a GPU of 16 GB, where 144^3
was the largest that trained without TFLMS. Here the device is a memory-limited CPU of
about 6.5 GiB in which today's plain Keras trains 144^3 and runs out at 192^3. Each
trial is a training of a few steps in a process of its own:

    144^3, plain Keras      how long a step takes
    192^3, plain Keras      runs out of memory; and so long a step takes in a device
                            with enough memory
    192^3, the callback     trains in the same memory
    192^3, least memory     from what the planner calls the least, in steps of 5 %
    224^3, 256^3, ...       upward, as far as device and host can carry

A step of 192^3 has 2.37 times the voxels: its time is compared with that of 144^3 times
so many, as IBM did, and with plain Keras's own of 192^3. Plain Keras with enough memory
trains before the callback and once more after it: all of these steps together are what
others are compared with. A ratio has an interval that holds both medians in 95 % of
cases (`experiments.intervals`). The curves are predicted bytes, op by op; the peaks
beside them are measured, but for that of plain Keras at 192^3, which did not train.

Known weaknesses: swapped tensors lie in the memory of the same machine, whose size ends
the search upward. Copies run at the speed of that memory, far above a GPU's link, on
cores that would otherwise compute. Plain Keras of a size that the host cannot hold is
not timed. Trainings do not take turns, for lack of host memory. The first step is left
out: it initialises.
"""

from pathlib import Path
from typing import Any

from experiments.ledger import Row
from experiments.question import DEVICE, Answer, settings_of
from experiments.runner import Book, unet_flags
from experiments.search import climb
from experiments.true_size_finding import finding, goals, plot
from lms.units import GIB, MIB, format_bytes, parse_size

__all__ = ["ANSWER", "main"]

_FOLDER = Path("build") / "experiments" / "true_size"
_LONGEST = 3600  # seconds of a trial
_ENOUGH = 48 * GIB  # a limit that nothing comes near
_MORE, _TRIES = 1.05, 5  # the search for the least memory


def _add_settings(parser: Any) -> None:
    parser.add_argument("--memory", default="6.5GiB", help="of the emulated device")
    parser.add_argument("--sizes", type=int, nargs=2, default=(144, 192))
    parser.add_argument("--filters", type=int, default=16)
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12, help="of each training")
    parser.add_argument("--most", type=int, default=256, help="largest size to try")
    parser.add_argument("--seed", type=int, default=0)


def _run(options: Any) -> None:
    """Finished trials of the same settings are kept when a run goes on."""
    names = ("memory", "sizes", "filters", "depth", "steps", "seed")
    book = Book(options, settings_of(options, *names), _FOLDER, _LONGEST)
    memory = parse_size(options.memory, name="memory") // MIB * MIB
    small, large = options.sizes
    _train("plain", small, memory, options, book)
    _predict("plain", small, memory, options, book)
    _train("plain", large, memory, options, book)
    bases = [(size, turn) for turn in (1, 2) for size in (small, large)]
    for size, turn in bases[:2]:
        _train_plainly(size, turn, options, book)
    _train("budget", large, memory, options, book)
    for size, turn in bases[2:]:
        _train_plainly(size, turn, options, book)
    _search_least(large, options, book)
    _search_largest(large, memory, options, book)


def _train(way: str, size: int, memory: int, options: Any, book: Book) -> Row:
    """Train a few steps in a device of `memory`."""
    return book.row(
        {"kind": "training", "way": way, "size": size, "memory_bytes": memory},
        name=f"{size}^3, {way}, in {format_bytes(memory)}",
        memory=memory,
        flags=unet_flags(way, size, options, "--curves"),
    )


def _train_plainly(size: int, turn: int, options: Any, book: Book) -> None:
    """What others are compared with: plain Keras in a device with enough memory."""
    book.row(
        {"kind": "base", "way": "plain", "size": size, "turn": turn},
        name=f"{size}^3, plain, with enough memory, turn {turn}",
        memory=_ENOUGH,
        flags=unet_flags("plain", size, options),
    )


def _predict(way: str, size: int, memory: int, options: Any, book: Book) -> Row:
    """Plan for a device of `memory`, without training."""
    words = ("--predict", f"--memory={memory}", "--curves")
    return book.row(
        {"kind": "prediction", "way": way, "size": size, "memory_bytes": memory},
        name=f"prediction of {size}^3, {way}, in {format_bytes(memory)}",
        memory=_ENOUGH,
        flags=unet_flags(way, size, options, *words),
    )


def _search_least(size: int, options: Any, book: Book) -> None:
    """From the least that the planner names, up until a training succeeds."""
    refused = _predict("budget", size, 2 * MIB, options, book)  # far too little
    least = refused.get("least_bytes")
    if least is None:
        book.say(f"the least for {size}^3 is not known: {refused['error']}")
        return
    memory = least * 32 / 31  # the budget is the memory less a part of 32
    for _ in range(_TRIES):
        device = (int(memory) // MIB + 1) * MIB
        if _train("budget", size, device, options, book)["error"] is None:
            return
        memory *= _MORE


def _search_largest(size: int, memory: int, options: Any, book: Book) -> None:
    """Upward from `size`, which may train, in steps of the network's own grain."""

    def trains(larger: int) -> bool:
        if larger > options.most:
            return False
        return _train("budget", larger, memory, options, book)["error"] is None

    fine = 2 ** (options.depth - 1)
    for larger, trained in climb(trains, start=size, coarse=2 * fine, fine=fine):
        if larger <= options.most:
            book.say(f"{larger}^3 {'trains' if trained else 'does not train'}")


ANSWER = Answer(
    name="true_size",
    title="The case study's network at its true size",
    emulated=DEVICE,
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
