"""Measure how much profilers slow a step: python -m profiling.overhead.

Blocks of steps run in turn without a profiler, with the sampler of
`profiling.utilisation`, with the profiler of `profiling.step_timeline`, and with both,
for several rounds, so that a machine that gets slower or faster favours none.

Known weakness: beside a card in slow motion the host's work seems to cost less.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING

from rich.progress import Progress

from lms.commands.model_file import read_subject
from lms.errors import LMSError
from lms.machine.inventory import NoDriverError
from lms.units import Seconds
from profiling.counters import open_gpus
from profiling.record import slow_motion, write_result
from profiling.sampler import read_samples, sampling
from profiling.step_timeline import add_subject, warm_up

if TYPE_CHECKING:
    from profiling.sessions import Session

__all__ = ["main", "ratios"]

_WAYS = {
    "nothing": (False, False),
    "sampler": (True, False),
    "timeline": (False, True),
    "both": (True, True),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write; return 3 if there is no GPU to sample."""
    parser = argparse.ArgumentParser(
        prog="python -m profiling.overhead",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_subject(parser)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=8, help="steps of each block (8)")
    text = "seconds between samples (0.1)"
    parser.add_argument("--interval", type=float, default=0.1, help=text)
    options = parser.parse_args(arguments)
    try:
        open_gpus()
        seconds = _measure(options)
    except (LMSError, ValueError) as error:
        print(f"overhead: {error}", file=sys.stderr)
        return 3 if isinstance(error, NoDriverError) else 2
    settings = {key: str(value) for key, value in vars(options).items()}
    results = {"step_seconds": seconds, "ratios": ratios(seconds)}
    write_result(options.output, "overhead", settings, results)
    for way, found in results["ratios"].items():
        print(f"{way:9} {found['seconds']:.4g} s a step, x {found['ratio']:.3f}")
    print(f"written: {options.output}")
    return 0


def ratios(seconds: dict[str, list[list[Seconds]]]) -> dict[str, dict[str, float]]:
    """Divide step times by the plain step times of their round.

    Args:
        seconds: Step times of each round, by way.

    Example:
        >>> found = ratios({"nothing": [[1.0], [2.0]], "sampler": [[1.1], [2.2]]})
        >>> round(found["sampler"]["ratio"], 6)
        1.1
    """
    plain = [median(block) for block in seconds["nothing"]]
    found: dict[str, dict[str, float]] = {}
    for way, blocks in seconds.items():
        each = [median(b) / p for b, p in zip(blocks, plain, strict=True)]
        low, _, high = quantiles(each, n=4, method="inclusive")
        found[way] = {
            "seconds": median(s for block in blocks for s in block),
            "ratio": median(each),
            "lower_quartile": low,
            "upper_quartile": high,
        }
    return found


def _measure(options: argparse.Namespace) -> dict[str, list[list[Seconds]]]:
    seconds: dict[str, list[list[Seconds]]] = {way: [] for way in _WAYS}
    with Progress(transient=True) as bars:
        bar = bars.add_task("planning", total=None)
        from profiling.steps import fit_step

        subject = read_subject(options.subject)
        step = fit_step(subject, options.budget, options.recompute)
        total = options.rounds * options.steps * len(_WAYS)
        bars.update(bar, description="steps", total=total)
        warm_up(step, 5, lambda: None)
        for turn in range(options.rounds):
            ways = list(_WAYS)
            for way in ways[turn % 4 :] + ways[: turn % 4]:
                with _watched(way, options.interval) as session:
                    step.run()  # not counted: the first step after a change
                    for _ in range(options.steps):
                        session.run(step.run)
                        bars.advance(bar)
                seconds[way].append([s / slow_motion() for s in session.seconds])
    return seconds


@contextmanager
def _watched(way: str, interval: Seconds) -> Iterator["Session"]:
    from profiling.sessions import Session, recording

    sampled, recorded = _WAYS[way]
    session = Session()
    with ExitStack() as stack:
        if sampled:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            samples = Path(folder, "samples")
            stack.callback(read_samples, samples)  # raises if there are no samples
            stack.enter_context(sampling(interval, samples))
        if recorded:
            stack.enter_context(recording(session))
        yield session


if __name__ == "__main__":
    sys.exit(main())
