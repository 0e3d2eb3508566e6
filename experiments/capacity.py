"""How large a model trains in one memory, in each way?

The memory is 1.05 times the peak that plain Keras measures at a base size, which for
the case study's network is its largest on 16 GB, 144^3. From there sizes rise by
trials of three steps until one fails: in coarse steps first, then from the last that
trained in fine ones. Cards are dry V100s: memory is TensorFlow's own allocator's, and
numbers are not computed. IBM's rule is tuned for less where it dies, as a careful
user would. A size that failed is tried once more.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from experiments.charts import COLOURS, Bar, Panel
from experiments.cost import NAMES, short
from experiments.question import Answer, sentences
from experiments.runner import Book, Rows, trained
from experiments.subjects import RULES, SUBJECTS, Subject, attempts, in_mib, to_be_had
from lms.units import format_bytes

__all__ = ["TITLE", "add_settings", "answer", "climb", "units"]

TITLE = "How large a model trains"
_SPARE = 1.05
_GOAL = 4.6  # times the voxels of plain Keras
_TRIES = 2
_OWN = ("grappler", "unified")  # of TensorFlow and the driver


def add_settings(parser: Any) -> None:
    """Which models, in which ways, and how far up."""
    names = list(SUBJECTS)
    parser.add_argument("--models", nargs="+", choices=names, default=names[:3])
    parser.add_argument("--ways", nargs="+", help="instead of all that there are")
    text = "instead of each model's own: start, coarse and fine steps"
    parser.add_argument("--sizes", type=int, nargs=3, help=text)
    parser.add_argument("--most", type=int, default=512, help="largest size to try")
    parser.add_argument("--small", action="store_true", help="sizes for a rehearsal")


def units(options: Any) -> Iterable[Callable[[Book], None]]:
    """A unit for each model."""
    for model in options.models:
        yield lambda book, model=model: _model(book, model, options)


def _model(book: Book, model: str, options: Any) -> None:
    subject = SUBJECTS[model]
    start, coarse, fine = options.sizes or (
        subject.start,
        subject.coarse,
        subject.fine,
    )
    key = {"model": model, "way": "plain", "size": start, "kind": "base"}
    base = book.row(key, _trial(subject, "plain", start, None, options))
    if not trained(base):
        return
    memory = in_mib(_SPARE * base["peak_bytes"])
    ways = options.ways or ("plain", *subject.peers, *_OWN, *RULES, "callback")
    for way in to_be_had(ways, book.card):

        def trains(size: int, way: str = way) -> bool:
            return size <= options.most and any(
                trained(_tried(book, subject, (way, size, i), memory, options))
                for i in range(1, _TRIES + 1)
            )

        list(climb(trains, start=start, coarse=coarse, fine=fine))


def _tried(
    book: Book, subject: Subject, of: tuple[str, int, int], memory: int, options: Any
) -> Any:
    way, size, attempt = of
    key = {"model": subject.model, "way": way, "size": size, "attempt": attempt}
    key |= {"kind": "training"}
    return attempts(book, key, _trial(subject, way, size, memory, options))


def _trial(
    subject: Subject, way: str, size: int, memory: int | None, options: Any
) -> Any:
    more: dict[str, Any] = {"shape": {subject.knob: size}, "memory": memory}
    return subject.trial(way, small=options.small, steps=3, slow_motion=1.0, **more)


def climb(
    works: Callable[[int], bool], *, start: int, coarse: int, fine: int
) -> Iterator[tuple[int, bool]]:
    """Sizes upward from `start`, each with whether it works, until one fails.

    Example:
        >>> list(climb(lambda size: size <= 5, start=2, coarse=2, fine=1))
        [(2, True), (4, True), (6, False), (5, True)]
    """
    size, good = start, None
    while works(size):
        yield size, True
        size, good = size + coarse, size
    yield size, False
    failed = size
    for size in range((good or failed) + fine, failed, fine):
        worked = works(size)
        yield size, worked
        if not worked:
            return


def answer(rows: Rows) -> Answer:
    """The largest size of each way, over plain Keras's."""
    body: list[list[str]] = []
    full: list[list[str]] = []
    panels: list[Panel] = []
    verdicts: list[tuple[bool | None, str]] = []
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [r for r in rows if r["model"] == model and r["kind"] == "training"]
        best = {way: _largest(own, way) for way in dict.fromkeys(r["way"] for r in own)}
        if not best.get("plain"):
            continue
        power = 3 if model == "unet" else 1
        times = {way: (size / best["plain"]) ** power for way, size in best.items()}
        panels.append(_panel(model, best, times))
        memory = format_bytes(own[0]["memory_bytes"])
        full += [_line(own, way, best, times, memory) for way in best]
        others = {w: t for w, t in times.items() if w not in ("callback", "plain")}
        ours, peer = (
            times.get("callback", 0.0),
            max(others, key=others.__getitem__, default=""),
        )
        title = SUBJECTS[model].title
        body.append(
            [
                title,
                memory,
                *(str(best.get(w) or "nothing") for w in ("plain", "callback", *RULES)),
                f"{ours:.2f}",
                f"{others.get(peer, 0):.2f}, {NAMES.get(short(peer), '')}",
            ]
        )
        if "callback" not in best:
            continue
        if model == "unet":
            text = f"{title}: {ours:.2f} times plain's voxels train, wanted {_GOAL}"
            verdicts.append((ours >= _GOAL, text))
        if peer:
            text = (
                f"{title}: the callback trains {ours:.2f} times plain's size, "
                f"{NAMES.get(short(peer), peer)} {others[peer]:.2f}"
            )
            verdicts.append(
                (None if ours == others[peer] else ours > others[peer], text)
            )
    columns = ["model", "memory", "plain", "callback", "IBM's rule", "serialised"]
    names = ["model", "way", "memory", "largest", "times plain's", "the next size"]
    return Answer(
        finding=sentences(verdicts)
        + " Each size is the largest of one search, whose edge is a matter of chance.",
        table=("Largest sizes", [*columns, "times", "best other"], body),
        more=[("Each way", names, full)],
        verdicts=verdicts,
        panels=[panels] if panels else (),
        headline="The largest size that trains in one memory, over plain Keras's",
    )


def _largest(rows: Rows, way: str) -> int:
    good = (row["size"] for row in rows if row["way"] == way and trained(row))
    return max(good, default=0)


def _line(
    rows: Rows, way: str, best: dict[str, int], times: dict[str, float], memory: str
) -> list[str]:
    failed = [r for r in rows if r["way"] == way and not trained(r)]
    why = [(r["error"] or r["refused"]["error"])[:90] for r in failed]
    title = SUBJECTS[rows[0]["model"]].title
    size = str(best[way] or "nothing")
    return [title, way, memory, size, f"{times[way]:.2f}", *why[-1:]]


def _panel(model: str, best: dict[str, int], times: dict[str, float]) -> Panel:
    bars = [
        Bar(
            label=NAMES[short(way)] if ":" not in way else way,
            length=times[way],
            colour=COLOURS[short(way)],
            text=f"{times[way]:.2f}: {best[way]}" if best[way] else "does not train",
        )
        for way in sorted(best, key=lambda way: times[way])
    ]
    unit = "voxels" if model == "unet" else "batch"
    title = SUBJECTS[model].title
    return Panel(title=title, x=f"{unit}, over plain Keras's", bars=bars, level=1.0)
