"""The case study's network at its true size: 192^3 in a memory that 144^3 fills?

16 filters, 5 levels, batch 1, float32, as IBM trained it on a GPU of 16 GB, where 144^3
was the largest that trained plainly. Here the device is a memory-limited CPU of about
6.5 GiB in which today's TensorFlow trains 144^3 plainly and runs out at 192^3. Each
trial is a training of a few steps in a process of its own:

    144^3, plain            how long a step takes
    192^3, plain            runs out of memory
    192^3, with a budget    trains in the same memory
    192^3, least memory     from what the planner calls the least, in steps of 5 %
    224^3, 256^3, ...       upward, as far as device and host can carry

A step of 192^3 has 2.37 times the voxels: its time is compared with that of 144^3 times
so many. The curves are predicted bytes, op by op; the peaks beside them are measured.

Known weaknesses: swapped tensors lie in the memory of the same machine, whose size ends
the search upward. Copies run at the speed of that memory, far above a GPU's link, on
cores that would otherwise compute. The first step is left out: it initialises.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.book import Book
from experiments.lines import command_line
from experiments.search import climb
from experiments.true_size_drawing import draw
from lms.units import MIB, format_bytes, parse_size

__all__ = ["main"]

_NAME = "true_size"
_FOLDER = Path("build") / "experiments" / _NAME
_LONGEST = 3600  # seconds of a trial
_ENOUGH = "48GiB"  # a limit that nothing comes near, to predict
_MORE, _TRIES = 1.05, 5  # the search for the least memory


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or draw.

    Args:
        arguments: The words after `python -m experiments.true_size`.

    Returns:
        The exit status: 1 if the larger size does not train where only the smaller
        one trains plainly.
    """
    options = command_line(_NAME, __doc__, _add_settings).parse_args(
        sys.argv[1:] if arguments is None else arguments
    )
    if options.command == "draw":
        return draw(options.results, options.figure)
    _run(options)
    return 0


def _add_settings(parser: Any) -> None:
    parser.add_argument("--memory", default="6.5GiB", help="of the emulated device")
    parser.add_argument("--sizes", type=int, nargs=2, default=(144, 192))
    parser.add_argument("--filters", type=int, default=16)
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="of each training")
    parser.add_argument("--most", type=int, default=256, help="largest size to try")
    parser.add_argument("--seed", type=int, default=0)


def _run(options: Any) -> None:
    """Finished trials of the same settings are kept when a run goes on."""
    names = ("memory", "sizes", "filters", "depth", "steps", "seed")
    settings = {name: getattr(options, name) for name in names}
    book = Book(
        options.results,
        settings,
        _FOLDER,
        Console(),
        longest=_LONGEST,
        anew=options.anew,
    )
    memory = parse_size(options.memory, name="memory") // MIB * MIB
    small, large = options.sizes
    trials = _Trials(options, book)
    trials.train("plain", small, memory)
    trials.predict("plain", small, memory)
    trials.train("plain", large, memory)
    trials.train("budget", large, memory)
    _search_least(trials, large)
    _search_largest(trials, large, memory)


class _Trials:
    """Trainings and predictions of one network."""

    def __init__(self, options: Any, book: Book) -> None:
        self._options = options
        self.book = book

    def train(self, way: str, size: int, memory: int) -> dict[str, Any]:
        """Train a few steps in a device of `memory`."""
        key = {"kind": "training", "way": way, "size": size, "memory_bytes": memory}
        name = f"{size}^3, {way}, in {format_bytes(memory)}"
        return self._row(key, name, memory, "--curves")

    def predict(self, way: str, size: int, memory: int) -> dict[str, Any]:
        """Plan for a device of `memory`, without training."""
        key = {"kind": "prediction", "way": way, "size": size, "memory_bytes": memory}
        name = f"prediction of {size}^3, {way}, in {format_bytes(memory)}"
        words = ("--predict", f"--memory={memory}", "--curves")
        return self._row(key, name, parse_size(_ENOUGH), *words)

    @property
    def grain(self) -> int:
        """The network's own granularity."""
        return 2 ** (self._options.depth - 1)

    @property
    def most(self) -> int:
        """The largest size to try."""
        return self._options.most

    def _row(
        self, key: dict[str, Any], name: str, memory: int, *more: str
    ) -> dict[str, Any]:
        wanted = self._options
        flags = ("--model=unet", f"--way={key['way']}", f"--steps={wanted.steps}")
        shape = (f"size={key['size']}", f"filters={wanted.filters}")
        return self.book.row(
            key,
            name=name,
            memory=memory,
            flags=(
                *flags,
                f"--seed={wanted.seed}",
                *more,
                "--shape",
                *shape,
                f"depth={wanted.depth}",
            ),
        )


def _search_least(trials: _Trials, size: int) -> None:
    """From the least that the planner names, up until a training succeeds."""
    refused = trials.predict("budget", size, 2 * MIB)  # far too little
    least = refused.get("least_bytes")
    if least is None:
        trials.book.say(f"the least for {size}^3 is not known: {refused['error']}")
        return
    memory = least * 32 / 31  # the budget is the memory less a part of 32
    for _ in range(_TRIES):
        trial = trials.train("budget", size, (int(memory) // MIB + 1) * MIB)
        if trial["error"] is None:
            return
        memory *= _MORE


def _search_largest(trials: _Trials, size: int, memory: int) -> None:
    """Upward from `size`, which may train."""

    def trains(larger: int) -> bool:
        if larger > trials.most:
            return False
        return trials.train("budget", larger, memory)["error"] is None

    fine = trials.grain
    for larger, trained in climb(trains, start=size, coarse=2 * fine, fine=fine):
        if larger <= trials.most:
            trials.book.say(f"{larger}^3 {'trains' if trained else 'does not train'}")


if __name__ == "__main__":
    raise SystemExit(main())
