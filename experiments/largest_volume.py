"""At one fixed device memory, which is the largest size that trains, in which way?

The memory is 1.05 times the peak that plain Keras measures at a base size. From there
sizes rise by trials, each a training of three steps in a process and a device of its
own, until one fails: in coarse steps first, then from the last that trained in fine
ones. What is near the edge fails by chance, so a size has two attempts, both recorded.

    model          what grows               base    steps
    3D U-Net       voxels along each axis   48      8, the network's own granularity
    ResNet         images of the batch      32      32, then 8
    transformer    length of the sequence   256     128, then 32

Ways: plain Keras; the mode of `keras.RematScope` with the least peak at the base size;
Grappler's recomputation heuristics; blocks of the U-Net within `tf.recompute_grad`;
Keras's policy `mixed_bfloat16`, which changes numbers; IBM's rule with thresholds tuned
automatically, and the same with all levels serialised and every copy waited for, which
its users had to ask for; the callback, whose budget is all of the device but a part of
32. The rule is tuned for 0.9 of the device, as IBM's TFLMS did; where that fails, since
its order is not held and its step is not planned anew, for less. For plain Keras, the
rule and the callback the largest size is also predicted, without training: the first
that is predicted not to fit ends that search.

Goal: with the callback, at least 4.6 times the voxels of plain Keras train.

Known weaknesses: no input pipeline: one batch is on the device, none waits beside it,
in every way alike. A prediction is made on a device with enough memory, where it can
always be made.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from experiments.largest_volume_finding import finding, goals, plot
from experiments.ledger import Row
from experiments.question import DEVICE, Answer
from experiments.runner import Book
from experiments.search import climb
from lms.units import MIB, format_bytes

__all__ = ["ANSWER", "main"]

_FOLDER = Path("build") / "experiments" / "largest_volume"
_SPARE = 1.05  # of what plain Keras takes at the base size
_ATTEMPTS = 2
_RULE_SHARES = (None, 0.8, 0.6)  # of the memory; IBM's rule is tuned for 0.9 of it
_ENOUGH = 4096 * MIB
_REMAT_MODES = ("full", "activations", "larger_than", "list_of_layers")
_MIXED = "mixed:mixed_bfloat16"
_WITH_BLOCKS = ("unet",)  # models whose blocks `experiments.by_hand` knows
_RULES = ("threshold", "serialised")
_WAYS = ("plain", "remat", "grappler", "by_hand", "mixed", *_RULES, "budget")
_PREDICTED = ("plain", "threshold", "budget")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """What grows, from where, and in which steps."""

    name: str
    knob: str
    start: int
    coarse: int
    fine: int
    flags: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()


_SUBJECTS = (
    _Subject(name="unet", knob="size", start=48, coarse=8, fine=8),
    _Subject(name="resnet", knob="batch", start=32, coarse=32, fine=8),
    _Subject(name="transformer", knob="length", start=256, coarse=128, fine=32),
)


def _add_settings(parser: Any) -> None:
    names = [subject.name for subject in _SUBJECTS]
    parser.add_argument("--models", nargs="+", choices=names, default=names)
    parser.add_argument("--ways", nargs="+", choices=_WAYS, default=_WAYS)
    parser.add_argument("--steps", type=int, default=3, help="of each training")
    parser.add_argument("--seed", type=int, default=0)
    text = "of the first model, instead of its own: start, coarse and fine steps"
    parser.add_argument("--sizes", type=int, nargs=3, help=text)
    text = "arguments of the first model's function that stay, such as filters=4"
    parser.add_argument("--fixed", nargs="*", default=[], metavar="NAME=N", help=text)


def _run(options: Any) -> None:
    """Finished trials of the same settings are kept when a run goes on."""
    subjects = [_subject(name, options) for name in options.models]
    settings = {
        "steps": options.steps,
        "seed": options.seed,
        "spare": _SPARE,
        "attempts": _ATTEMPTS,
        "rule_shares": _RULE_SHARES,
        "subjects": [_told(subject) for subject in subjects],
    }
    book = Book(options, settings, _FOLDER)
    for subject in subjects:
        _search_all(subject, options.ways, book)


def _subject(name: str, options: Any) -> _Subject:
    subject = next(subject for subject in _SUBJECTS if subject.name == name)
    flags = (f"--steps={options.steps}", f"--seed={options.seed}")
    if name != options.models[0]:
        return replace(subject, flags=flags)
    start, coarse, fine = options.sizes or (subject.start, subject.coarse, subject.fine)
    return replace(
        subject,
        start=start,
        coarse=coarse,
        fine=fine,
        flags=flags,
        fixed=tuple(options.fixed),
    )


def _told(subject: _Subject) -> dict[str, Any]:
    return {name: v for name, v in asdict(subject).items() if name != "flags"}


def _search_all(subject: _Subject, ways: Sequence[str], book: Book) -> None:
    plain = _probe(subject, "plain", book)
    if plain["error"]:
        raise SystemExit(f"{subject.name} does not train at all: {plain['error']}")
    memory = int(_SPARE * plain["peak_bytes"]) // MIB * MIB
    book.say(f"{subject.name}: the device has {format_bytes(memory)}")
    for way in ways:
        chosen = _chosen(way, subject, book)
        if chosen is None:
            continue
        sizes = _sizes(
            subject, lambda size, way=chosen: _trains(subject, way, size, memory, book)
        )
        best = max((size for size, worked in sizes if worked), default=None)
        book.say(f"{subject.name}, {chosen}: {best or 'nothing'} trains")
        if way in _PREDICTED:
            list(
                _sizes(
                    subject,
                    lambda size, way=way: _fits(subject, way, size, memory, book),
                )
            )


def _sizes(
    subject: _Subject, works: Callable[[int], bool]
) -> Iterator[tuple[int, bool]]:
    return climb(works, start=subject.start, coarse=subject.coarse, fine=subject.fine)


def _probe(subject: _Subject, way: str, book: Book) -> dict[str, Any]:
    """What a way takes at the base size where there is enough memory."""
    key = {"kind": "probe", "model": subject.name, "way": way, "size": subject.start}
    return _row(subject, key, _ENOUGH, book)


def _chosen(way: str, subject: _Subject, book: Book) -> str | None:
    """The way in full; None where it cannot be had."""
    if way == "by_hand" and subject.name not in _WITH_BLOCKS:
        return None
    if way == "remat":
        return _best_remat(subject, book)
    return _MIXED if way == "mixed" else way


def _best_remat(subject: _Subject, book: Book) -> str | None:
    """The mode with the least peak; the others' peaks and errors are recorded too."""
    probes = [_probe(subject, f"remat:{mode}", book) for mode in _REMAT_MODES]
    trained = [row for row in probes if row["error"] is None]
    if not trained:
        return None
    return min(trained, key=lambda row: row["peak_bytes"])["way"]


def _trains(subject: _Subject, way: str, size: int, memory: int, book: Book) -> bool:
    shares = _RULE_SHARES if way in _RULES else [None] * _ATTEMPTS
    for attempt, share in enumerate(shares, start=1):
        key = {"kind": "training", "model": subject.name, "way": way, "size": size}
        key |= {"attempt": attempt, "memory_bytes": memory}
        budget = () if share is None else (f"--budget={int(share * memory)}",)
        if _row(subject, key, memory, book, *budget)["error"] is None:
            return True
    return False


def _fits(subject: _Subject, way: str, size: int, memory: int, book: Book) -> bool:
    key = {"kind": "prediction", "model": subject.name, "way": way, "size": size}
    key |= {"memory_bytes": memory}
    words = ["--predict", f"--memory={memory}"]
    return _row(subject, key, _ENOUGH, book, *words)["error"] is None


def _row(
    subject: _Subject, key: Row, memory: int, book: Book, *more: str
) -> dict[str, Any]:
    again = f", attempt {key['attempt']}" if key.get("attempt", 1) > 1 else ""
    return book.row(
        key,
        name=f"{key['kind']} of {key['model']} {key['size']}, {key['way']}{again}",
        memory=memory,
        flags=(
            f"--model={key['model']}",
            f"--way={key['way']}",
            *subject.flags,
            *more,
            "--shape",
            f"{subject.knob}={key['size']}",
            *subject.fixed,
        ),
    )


ANSWER = Answer(
    name="largest_volume",
    title="The largest that trains in a fixed memory",
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
