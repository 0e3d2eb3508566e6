"""The largest model that trains in one memory, in each way.

The memory is 1.05 times the peak that plain Keras measures at a base size, which for
the case study's network is its largest on 16 GB, 144^3. From there sizes rise by
trials of three steps until one fails: in coarse steps first, then from the last that
trained in fine ones. Cards are dry V100s: memory is TensorFlow's own allocator's, and
numbers are not computed. A size that failed is tried once more. Cards of another
`--preset` have rows of their own; `--sizes` are tried alone.
"""

from collections.abc import Callable
from typing import Any

from experiments import subjects
from experiments.question import COLOURS, Answer, Bar, Panel, Verdict, sentences
from experiments.runner import Book
from experiments.stats import Rows, ending, trained
from experiments.subjects import RULES, SUBJECTS, Subject, in_mib, named, short
from lms.machine.hardware import PRESETS
from lms.units import format_bytes

__all__ = ["SETTINGS", "SPARE", "TITLE", "answer", "climb", "measure"]

TITLE = "How large a model trains"
SETTINGS = {"models": tuple(SUBJECTS)[:3], "ways": (), "most": 512, "small": False}
SETTINGS |= {"sizes": (), "steps": 3, "tries": 2, "preset": subjects.PRESET}
KNOWN = {"models": tuple(SUBJECTS), "ways": None, "sizes": None, "preset": PRESETS}
SPARE = 1.05
_GOAL = 4.6  # times the voxels of plain Keras


def measure(book: Book, model: str, options: Any) -> None:
    """Climb in each way, in the memory of plain Keras's base size."""
    subject = SUBJECTS[model]
    start, coarse, fine = subject.sizes
    if options.small:
        start = coarse = fine = subject.small[subject.knob]

    def tried(key: dict[str, Any], memory: int | None) -> bool:
        key = {"model": model, **key}
        shape = {subject.knob: key["size"]}
        known: dict[str, Any] = {"small": options.small, "shape": shape}
        known |= {"steps": options.steps, "preset": options.preset, "slow_motion": 1.0}
        trial = subject.trial(key["way"], memory=memory, **known)
        return trained(subjects.attempts(book, key, trial))

    base = {"way": "plain", "size": start, "kind": "base"}
    if not tried(base, None):
        return
    found = book.find({"model": model, **base})
    memory = in_mib(SPARE * found["peak_bytes"]) if found else 0
    ways = ("plain", *subject.peers, *subjects.LIMITED[1:], *RULES, "callback")
    for way in subjects.to_be_had(options.ways or ways, book.card):

        def trains(size: int, way: str = way) -> bool:
            key = {"way": way, "size": size, "kind": "training"}
            tries = ({**key, "attempt": i + 1} for i in range(options.tries))
            return size <= options.most and any(tried(one, memory) for one in tries)

        if options.sizes:
            _ = [trains(int(size)) for size in options.sizes]
            continue
        climb(trains, start=start, coarse=coarse, fine=fine)


def climb(
    works: Callable[[int], bool], *, start: int, coarse: int, fine: int
) -> int | None:
    """The largest size from `start` up that works, in coarse steps, then fine ones.

    Example:
        >>> climb(lambda size: size <= 5, start=2, coarse=2, fine=1)
        5
    """
    size, good = start, None
    while works(size):
        size, good = size + coarse, size
    for between in range((good or size) + fine, size, fine):
        if not works(between):
            break
        good = between
    return good


def answer(rows: Rows) -> Answer:
    """The largest size of each way, over plain Keras's."""
    body: list[list[str]] = []
    full: list[list[str]] = []
    panels: list[Panel] = []
    verdicts: list[Verdict] = []
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [r for r in rows if r["model"] == model and r["kind"] == "training"]
        best = {way: _largest(own, way) for way in dict.fromkeys(r["way"] for r in own)}
        if not best.get("plain"):
            continue
        subject, power = SUBJECTS[model], 3 if model == "unet" else 1
        times = {way: (size / best["plain"]) ** power for way, size in best.items()}
        panels.append(_panel(subject, best, times))
        memory = format_bytes(own[0]["memory_bytes"])
        for way in best:
            size = str(best[way] or "nothing")
            line = [subject.title, way, memory, size, f"{times[way]:.2f}"]
            why = [ending(r) for r in own if r["way"] == way and not trained(r)]
            full.append([*line, "".join(why[-1:])[:90]])
        others = {w: t for w, t in times.items() if w not in ("callback", "plain")}
        peer = max(others, key=others.__getitem__, default="")
        told = f"{named(peer)} {others[peer]:.2f}" if peer else "nothing"
        ours = times.get("callback", 0.0)
        ways = "plain", "callback", *RULES
        sizes = [str(best.get(way, "not run") or "nothing") for way in ways]
        body.append([subject.title, memory, *sizes, f"{ours:.2f}", told])
        if "callback" in best and model == "unet":
            text = f"{subject.title}: {ours:.2f} times plain's voxels train, wanted"
            verdicts.append((ours >= _GOAL, f"{text} {_GOAL}"))
        if "callback" in best and peer:
            holds = None if ours == others[peer] else ours > others[peer]
            text = f"{subject.title}: the callback trains {ours:.2f} times plain's "
            text += "voxels" if power > 1 else "batch"
            verdicts.append((holds, f"{text}, {told}"))
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


def _panel(subject: Subject, best: dict[str, int], times: dict[str, float]) -> Panel:
    bars = [
        Bar(
            label=", ".join([named(way), *way.split(":")[1:]]),
            length=times[way],
            colour=COLOURS[short(way)],
            text=f"{times[way]:.2f}: {best[way]}" if best[way] else "does not train",
        )
        for way in sorted(best, key=lambda way: times[way])
    ]
    x = ("voxels" if subject.knob == "size" else "batch") + ", over plain Keras's"
    return Panel(title=subject.title, x=x, bars=bars, level=1.0)
