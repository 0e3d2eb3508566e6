"""What does it give, and cost, to keep weights and slots on the host?

Models with Adam: a perceptron of 6 x 2048 units, a small transformer, keras-hub's GPT-2
in a small configuration, and a recommender whose table of items is larger than the
device. Each trial is a process on an emulated device of its own. Four parts:

    trained   `fit` of three epochs with validation, a checkpoint and a schedule of the
              learning rate: by plain Keras in enough memory, and with the state on the
              host, where it is 3 and 6 times the device, or with the slots there, where
              it is 1.5 and 2 times the device. They take turns, step by step
    largest   in one memory, the largest model that trains, searched by halves: width
              of the perceptron and the transformer, items of the recommender
    least     the least memory that the planner names when 1 MiB is asked for, and the
              least device near it that trains
    link      steps over links of so many bytes per second, beside their prediction

Each step gives a ratio to the step of plain Keras in the same turn, by the processor's
seconds of all threads and by the clock; the first two steps trace and plan, and are
left out. Bytes are counted by what carries the copies. Numbers are a hash of losses,
weights, slots and the saved weights, with op determinism.

The least is compared with what any plan has on the device at some time: the persistent
bytes, the weights of the largest layer, what goes into and comes out of it, and two
slices of an update.

Goals: where state is 3 times the device, all train with plain Keras's numbers; a step
copies at most 32 bytes of state for each parameter, 12 where the host updates it, 16
where only slots live there; measured peaks are within 15 % of
the predicted ones; and each largest model has at least 4 times plain Keras's
parameters.

Known weaknesses: copies run at the speed of the host's memory, and on the cores that
compute. Sizes of the search are 9 % apart, and each is tried once, though near the
edge plain Keras runs out of memory by chance. A plan is as its ops were timed: in
another run a step may copy a few bytes more.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.ledger import Row
from experiments.question import LINK, Answer, settings_of
from experiments.runner import Book
from experiments.search import bisect
from experiments.servers import LATENCY
from experiments.state_on_host_finding import finding, goals, plot
from experiments.state_on_host_rows import MODES
from experiments.turns import Turns, take_turns
from lms.machine.emulated_link import LinkRates
from lms.units import GIB, MIB, format_bytes

__all__ = ["ANSWER", "main", "rungs"]

_FOLDER = Path("build") / "experiments" / "state_on_host"
_PROGRAM = "experiments.state_on_host_trial"
_ENOUGH = 4 * GIB
_PARTS = ("trained", "largest", "least", "link")
_SEARCHED = 32 * MIB  # the memory of that part
_GRAIN = 8  # sizes of a search while they double
_MORE, _TRIES = 1.05, 8  # the search for the least device
_LINK_STEPS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """A model.

    Args:
        name: In `experiments.state_on_host_models`.
        devices: MiB of which its state is some 3 and 6 times as much.
        knob: What grows in the search; empty for no search.
        first: Where the search begins.
        doublings: How often it may double.
        fixed: Other arguments of the model in the search.
    """

    name: str
    devices: tuple[int, ...]
    knob: str = ""
    first: int = 0
    doublings: int = 0
    fixed: tuple[str, ...] = ()


_SUBJECTS = (
    _Subject(
        name="mlp",
        devices=(96, 48),
        knob="width",
        first=512,
        doublings=2,
        fixed=("depth=4",),
    ),
    _Subject(
        name="transformer",
        devices=(33, 16),
        knob="width",
        first=96,
        doublings=4,
        fixed=("depth=2",),
    ),
    _Subject(name="gpt2", devices=(30, 15)),
    _Subject(
        name="recommender",
        devices=(48, 24),
        knob="items",
        first=16384,
        doublings=5,
    ),
)


def _add_settings(parser: Any) -> None:
    names = [subject.name for subject in _SUBJECTS]
    parser.add_argument("--models", nargs="+", choices=names, default=names)
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=_PARTS)
    parser.add_argument("--modes", nargs="+", choices=tuple(MODES), default=[*MODES])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="of each epoch")
    parser.add_argument("--seed", type=int, default=0)
    text = "bytes per second, each way; 0 for the speed of the host's memory"
    rates = (0, 2e9, 5e8)
    parser.add_argument("--rates", type=float, nargs="+", default=rates, help=text)


def _run(options: Any) -> None:
    """Finished trials of the same settings are kept when a run goes on."""
    settings = settings_of(options, "epochs", "steps", "seed")
    settings |= {"grain": _GRAIN, "searched": _SEARCHED}
    settings |= {"subjects": [asdict(subject) for subject in _SUBJECTS]}
    book = Book(options, settings, _FOLDER, program=_PROGRAM)
    subjects = [each for each in _SUBJECTS if each.name in options.models]
    moved = [mode for mode in options.modes if mode != "plain"]
    for subject in subjects:
        if "trained" in options.parts:
            for mode in moved:
                _train(subject, mode, options, book)
        if "largest" in options.parts and subject.knob:
            for mode in options.modes:
                _search(subject, mode, options, book)
        if "least" in options.parts and subject.knob:
            for mode in moved:
                _search_least(subject, mode, options, book)
        if "link" in options.parts and subject.name in ("mlp", "transformer"):
            for rate in options.rates:
                _cross(subject, rate, options, book)


def _train(subject: _Subject, mode: str, options: Any, book: Book) -> None:
    """By plain Keras, and in each device, in turns."""
    devices = [size * MIB for size in subject.devices]
    if mode == "slots":  # the weights have to fit
        devices = [devices[0] * 2, devices[0] * 3 // 2]
    ways = [("plain", _ENOUGH), *((mode, size) for size in devices)]
    count = options.epochs * options.steps
    usual = _words(options, epochs=options.epochs, steps=options.steps)

    def measure() -> Row:
        trainings = [
            Turns(
                f"{subject.name}, {way}, in {format_bytes(memory)}",
                memory=memory,
                flags=(f"--model={subject.name}", f"--mode={way}", *usual),
                folder=book.folder,
                program=_PROGRAM,
            )
            for way, memory in ways
        ]
        take_turns(trainings, steps=count, console=book.console)
        found: list[Row] = []
        for (way, memory), training in zip(ways, trainings, strict=True):
            error, result = training.end()
            start = {"mode": way, "memory_bytes": memory, "error": error}
            found.append(start | result)
        return {"trainings": found}

    book.once({"kind": "trained", "model": subject.name, "mode": mode}, measure)


def _search(subject: _Subject, mode: str, options: Any, book: Book) -> None:
    """The largest that trains in one memory."""
    sizes = rungs(subject.first, subject.doublings)

    def trains(place: int) -> bool:
        key = {"kind": "largest", "model": subject.name, "mode": mode}
        key |= {"size": sizes[place], "most": sizes[-1]}
        shape = (f"{subject.knob}={sizes[place]}", *subject.fixed)
        row = _row(key, _SEARCHED, shape, options, book, steps=3)
        return row["error"] is None

    found = [size for size, worked in bisect(trains, len(sizes)) if worked]
    best = sizes[max(found)] if found else "nothing"
    book.say(f"{subject.name}, {MODES[mode]}: {best} trains")


def rungs(first: int, doublings: int) -> list[int]:
    """Sizes from `first` on that grow by one part of 8 of a doubling, in fours.

    Example:
        >>> rungs(256, 1)[:3], len(rungs(256, 1)), rungs(256, 1)[-1]
        ([256, 280, 304], 9, 512)
    """
    places = range(doublings * _GRAIN + 1)
    return [round(first * 2 ** (i / _GRAIN) / 4) * 4 for i in places]


def _search_least(subject: _Subject, mode: str, options: Any, book: Book) -> None:
    """From the least that the planner names, up until a training succeeds."""
    key = {"kind": "named", "model": subject.name, "mode": mode}
    named = _row(key, _ENOUGH, (), options, book, "--budget=1MiB", steps=2)
    least = named.get("least_bytes")
    if least is None:
        book.say(f"the least for {subject.name} is not known: {named['error']}")
        return
    memory = least * 32 / 31  # the budget is the memory less a part of 32
    for _ in range(_TRIES):
        device = max(int(memory) // MIB, int(least) // MIB + 1) + 1
        key = {"kind": "least", "model": subject.name, "mode": mode}
        if _row(key, device * MIB, (), options, book, steps=3)["error"] is None:
            return
        memory = device * MIB * _MORE


def _cross(subject: _Subject, rate: float, options: Any, book: Book) -> None:
    """Steps over a link of so many bytes per second."""
    link = LinkRates(h2d=rate, d2h=rate, latency=LATENCY) if rate else None
    key = {"kind": "link", "model": subject.name, "mode": "host", "link_rate": rate}
    memory = subject.devices[0] * MIB
    _row(key, memory, (), options, book, steps=_LINK_STEPS, link=link)


def _row(  # noqa: PLR0913 - one keyword for each thing that may differ
    key: Row,
    memory: int,
    shape: Sequence[str],
    options: Any,
    book: Book,
    *more: str,
    steps: int,
    link: LinkRates | None = None,
) -> dict[str, Any]:
    """The row of a few steps and nothing else."""
    which = ", ".join(str(v) for name, v in key.items() if name != "most")
    return book.row(
        {**key, "memory_bytes": memory},
        name=which,
        memory=memory,
        flags=(
            f"--model={key['model']}",
            f"--mode={key['mode']}",
            *_words(options, epochs=1, steps=steps),
            "--bare",
            *more,
            "--shape",
            *shape,
        ),
        link=link,
    )


def _words(options: Any, *, epochs: int, steps: int) -> tuple[str, ...]:
    return f"--epochs={epochs}", f"--steps={steps}", f"--seed={options.seed}"


ANSWER = Answer(
    name="state_on_host",
    title="Weights and slots on the host",
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
