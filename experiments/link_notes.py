"""What `link_comparison` says of its predictions: how near, and what they leave out."""

from collections.abc import Iterator, Sequence

from experiments.link_runs import Run, Source, same_steps
from experiments.servers import EPOCH_STEPS, SERVERS, published_cost
from lms.units import format_bytes

__all__ = ["GROUNDS", "WAYS", "notes"]

WAYS = {"plain": "plain Keras", "tflms": "IBM's TFLMS"}
WAYS |= {"threshold": "IBM's rule", "budget": "the callback"}
WAYS |= {"serialised": "IBM's rule, serialised"}
WAYS |= {"timed-threshold": "IBM's rule, tuned by time"}
GROUNDS = {
    "roofline": "by a roofline",
    "sustained": "by what ops reach of it",
    "bytes": "by that, and by bytes as published",
}

_OLDER_SHARES = (0.9, 0.7, 0.5)  # of the device: the tuner takes its 0.9 by itself now


def notes(runs: Sequence[Run]) -> list[str]:
    """A sentence or more on each thing to know."""
    said = [*_beside_published(runs), *_waiting(runs), *_roofline(runs)]
    return [*said, *_fitting(runs), *_older(runs), *_spread(runs)]


def _beside_published(runs: Sequence[Run]) -> Iterator[str]:
    """What IBM's rule is predicted to cost on each ground, beside the published."""
    for ground, words in GROUNDS.items():
        mine = [
            run
            for run in runs
            if (run.way, run.ground) == ("threshold", ground) and not run.failed
        ]
        said = [
            f"{run.step:.2f} s and {run.per_voxel:.2f} over {SERVERS[run.server].link}"
            f" (published {_published_step(run):.2f} s and "
            f"{published_cost(run.server):.2f})"
            for run in mine
        ]
        if said:
            yield (
                f"**Predicted {words}**: a step of {mine[0].size}^3 takes "
                f"{', '.join(said)} by IBM's rule{_others(runs, ground)}. "
                "Nothing is fitted to these published steps."
            )


def _others(runs: Sequence[Run], ground: str) -> str:
    """What the other ways cost on the same ground."""
    said: list[str] = []
    for way in ("timed-threshold", "budget"):
        costs = [
            f"{run.per_voxel:.2f}"
            for run in runs
            if (run.way, run.ground) == (way, ground) and run.is_swapping
        ]
        if costs:
            said.append(f"; with {WAYS[way]} {' and '.join(costs)}")
    return "".join(said)


def _published_step(run: Run) -> float:
    return SERVERS[run.server].epochs[run.size] / EPOCH_STEPS


def _waiting(runs: Sequence[Run]) -> Iterator[str]:
    """What the simulator leaves out of the rule's steps."""
    if any(run.way == "threshold" and run.waits for run in runs):
        yield (
            "**IBM's tuning knows no time.** A tensor that is copied out still needs "
            "its room until the copy has ended. Rows that say so have more on the "
            "device at once than fits: TensorFlow's allocator would wait, which is not "
            "simulated, so such a step would take longer. *Tuned by time* stands for "
            "the rule where none has to wait."
        )


def _roofline(runs: Sequence[Run]) -> Iterator[str]:
    """How far below the published step the predicted one is."""
    pairs = [
        (known, found)
        for known in runs
        for found in runs
        if (known.source, found.source) == (Source.PUBLISHED, Source.PREDICTED)
        and (known.server, known.size) == (found.server, found.size)
        and known.way == found.way == "plain"
        and found.ground == "roofline"
    ]
    said = [
        f"{found.step:.2f} s where {known.step:.2f} s were published"
        for known, found in pairs
    ]
    if said:
        most = max(known.step / found.step for known, found in pairs)
        yield (
            "**A predicted step is the least that the card could need.** Its ops take "
            "what a roofline of the data sheet gives. So plain Keras's step of "
            f"{pairs[0][0].size}^3 is predicted at {', and '.join(said)}, reading and "
            "gaps of the host included. Copies then weigh up to "
            f"{most:.1f} times as much against computing as they did there: predicted "
            "ratios of steps that wait for copies are too high."
        )


def _fitting(runs: Sequence[Run]) -> Iterator[str]:
    """Whether the larger size needs help in the whole card."""
    fits = [r for r in runs if (r.way, r.ground) == ("budget", "roofline")]
    whole = next((r for r in fits if not r.failed and not r.is_swapping), None)
    tight = next((r for r in fits if r.is_swapping), None)
    if whole and tight:
        yield (
            f"**Today {whole.size}^3 is predicted to fit unswapped.** In the card's "
            f"{format_bytes(whole.memory)} today's graph has a peak of "
            f"{format_bytes(whole.peak or 0)} with nothing swapped, where IBM needed "
            f"TFLMS. So it is predicted in {format_bytes(tight.memory)}, of which the "
            "smaller size takes all but a twentieth."
        )


def _older(runs: Sequence[Run]) -> Iterator[str]:
    """Which of the rule's rows are not tuned as IBM did."""
    if any(run.share in _OLDER_SHARES for run in runs):
        yield (
            "**What was trained by IBM's rule is older than its tuning.** Its "
            "thresholds were chosen for a simulated step in which no allocation waits. "
            "By memory alone, as IBM tuned, they may cost less."
        )


def _spread(runs: Sequence[Run]) -> Iterator[str]:
    steps = same_steps(runs)
    if len(steps) > 1:
        low, high = min(steps), max(steps)
        yield (
            f"**Trainings that do the same differ.** Plain Keras's step of the smaller "
            f"size was timed {len(steps)} times here: it took {low:.3f} s to "
            f"{high:.3f} s, up to {high / low - 1:.0%} longer. *Per voxel* is over the "
            "middle one, and its range over the slowest and the fastest."
        )
