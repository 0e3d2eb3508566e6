"""The largest size that each way trains in the same memory.

The memory is 1.05 times plain Keras's peak at a base size. For the case study's network
this is 144^3, which was IBM's largest on 16 GB (today's graph trains 192^3 there). From
the base on larger sizes train for three steps each: in coarse increments until one
fails, then from the last that trained in fine ones. A size that failed is tried once
more. Cards are dry V100s: TensorFlow's own allocator counts memory, and no number is
computed. Cards of another `--preset` have rows of their own; `--sizes` are tried alone.
Seconds are of the third step, without slow motion: they include this machine's work.

Known weaknesses: a dry card gives convolutions no workspace, so each size is an upper
bound of a real card's. A way whose peak is plain Keras's within half a percent did
nothing, and is left out. Mixed precision saves less than half, for unknown reasons.
"""

from collections.abc import Callable
from typing import Any

from experiments import subjects
from experiments.question import COLOURS, Answer, Bar, Panel, Verdict, sentences
from experiments.runner import Book
from experiments.stats import Rows, commits, ending, step_of, trained
from experiments.subjects import RULES, SUBJECTS, Subject, in_mib, named, short
from lms.machine.hardware import PRESETS
from lms.units import format_bytes

__all__ = ["SETTINGS", "SPARE", "TITLE", "answer", "climb", "measure"]

TITLE = "How large a model trains"
SETTINGS: dict[str, Any] = {
    "models": tuple(SUBJECTS)[:3],
    "ways": (),
    "most": 512,
    "small": False,
    "sizes": (),
    "steps": 3,
    "tries": 2,
    "preset": subjects.PRESET,
}
KNOWN = {"models": tuple(SUBJECTS), "ways": None, "sizes": None, "preset": PRESETS}
SPARE = 1.05
_NEAR = 1.3  # seconds a voxel over plain Keras's that are still worth it
_SAME = 0.005  # of plain Keras's peak: a way this near did nothing


def measure(book: Book, model: str, options: Any) -> None:
    """Search each way's largest size, in the memory of plain Keras's base size."""
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
    """Search the largest size from `start` on that works; None if there is none.

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
    """Report the largest size of each way, over plain Keras's."""
    body: list[list[str]] = []
    full: list[list[str]] = []
    panels: list[Panel] = []
    verdicts: list[Verdict] = []
    done = dict.fromkeys(row["model"] for row in rows)
    for model in done:
        own = [r for r in rows if r["model"] == model and r["kind"] == "training"]
        own = [row for row in own if row["way"] not in _idle(own)]
        best = {way: _largest(own, way) for way in dict.fromkeys(r["way"] for r in own)}
        if not best.get("plain"):
            continue
        subject, power = SUBJECTS[model], 3 if model == "unet" else 1
        times = {way: (size / best["plain"]) ** power for way, size in best.items()}
        memory = format_bytes(own[0]["memory_bytes"])
        paces = {way: _paces(own, way, power) for way in best}
        panels.append(_panel(subject, best, times, paces))
        for way in best:
            each = [f"{pace:.2f} at {size}" for size, pace in paces[way].items()]
            line = [subject.title, way, memory, str(best[way] or "nothing")]
            line += [f"{times[way]:.2f}", ", ".join(each)]
            why = [ending(r) for r in own if r["way"] == way and not trained(r)]
            made = commits([row for row in own if row["way"] == way])
            full.append([*line, made, "".join(why[-1:])[:90]])
        others = {w: t for w, t in times.items() if w not in ("callback", "plain")}
        peer = max(others, key=others.__getitem__, default="")
        told = f"{named(peer)} {others[peer]:.2f}" if peer else "no other way"
        ours, pace = times.get("callback", 0.0), paces.get("callback", {})
        near = max((s for s, one in pace.items() if one < _NEAR), default=0)
        near_times = (near / best["plain"]) ** power
        largest, far = best.get("callback", 0), pace.get(best.get("callback", 0), 0.0)
        cells = [str(best["plain"]), str(largest or "nothing"), f"{ours:.2f}"]
        cells += [f"{far:.2f}", f"{near}, {near_times:.2f} times", told]
        missing = " and ".join(named(way) for way in RULES if way not in best)
        pair = ([r for r in own if r["way"] == way] for way in ("plain", "callback"))
        body.append(
            [subject.title, memory, *cells, missing, "; ".join(map(commits, pair))]
        )
        if "callback" in best:
            unit = "voxel" if power > 1 else "image"
            text = (
                f"{subject.title}, one search: the callback trains {near_times:.2f} "
                f"times plain's {unit}s (size {near}) at less than {_NEAR} times its "
                f"seconds per {unit}, and {ours:.2f} times (size {largest}) at "
                f"{far:.2f} times; {told} times"
            )
            text += f"; not run: {missing}" if missing else ""
            is_lost = peer and ours < others[peer]
            verdicts.append((False if is_lost else None, text))
    asked = [SUBJECTS[m].title for m in SETTINGS["models"] if m not in done]
    missing = ", ".join(asked)
    columns = ["model", "memory", "plain", "callback", "times plain's"]
    columns += ["seconds a voxel or image, over plain's", f"below {_NEAR}"]
    columns += ["best other", "not run", "commits of plain's rows; the callback's"]
    names = ["model", "way", "memory", "largest", "times plain's"]
    names += ["seconds a voxel or image, over plain's", "commit (rows)", "next size"]
    return Answer(
        finding=sentences(verdicts)
        + f" Not run: {missing}." * bool(missing)
        + " Each training is one process. A dry card gives convolutions no workspace: "
        "sizes are upper bounds.",
        table=("Largest sizes", columns, body),
        more=[("Each way", names, full)],
        verdicts=verdicts,
        panels=[panels] if panels else (),
        headline="The largest size that trains in the same memory, over plain Keras's",
    )


def _idle(rows: Rows) -> set[str]:
    """Return ways that took plain Keras's memory where plain Keras trained."""
    peaks = {
        r["size"]: r["peak_bytes"] for r in rows if r["way"] == "plain" and trained(r)
    }
    same = (
        (row["way"], abs(row["peak_bytes"] / peaks[row["size"]] - 1) < _SAME)
        for row in rows
        if row["way"] not in ("plain", "callback") and trained(row)
        if row["size"] in peaks
    )
    return {way for way, is_same in same if is_same}


def _paces(rows: Rows, way: str, power: int) -> dict[int, float]:
    """Return seconds a voxel, or an image of a batch, over plain Keras's, by size."""
    steps = {
        (row["way"], row["size"]): step_of(row) / row["size"] ** power
        for row in rows
        if trained(row) and row["step_seconds"]
    }
    plain = [pace for (one, _), pace in steps.items() if one == "plain"]
    known = sorted((size, pace) for (one, size), pace in steps.items() if one == way)
    return {size: pace / plain[-1] for size, pace in known if plain}


def _largest(rows: Rows, way: str) -> int:
    good = (row["size"] for row in rows if row["way"] == way and trained(row))
    return max(good, default=0)


def _panel(
    subject: Subject,
    best: dict[str, int],
    times: dict[str, float],
    paces: dict[str, dict[int, float]],
) -> Panel:
    of = "^3; seconds a voxel" if subject.knob == "size" else "; seconds an image"
    bars = [
        Bar(
            label=", ".join([named(way), *way.split(":")[1:]]),
            length=times[way],
            colour=COLOURS[short(way)],
            text=f"{times[way]:.2f}: {best[way]}{of} {paces[way][best[way]]:.2f}"
            if best[way] in paces[way]
            else f"{best[way] or 'nothing'}",
        )
        for way in sorted(best, key=lambda way: times[way])
    ]
    x = "voxels" if subject.knob == "size" else "batch"
    x += " and seconds, over plain Keras's"
    return Panel(title=subject.title, x=x, bars=bars, level=1.0)
