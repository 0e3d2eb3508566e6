"""A session of TensorFlow's profiler around some steps.

The profiler learns of kernels and copies from CUPTI, which an emulated card lacks. Its
driver records kernels and copies, on a clock of its own; the marks of the steps, timed
by both clocks, tie this clock to the profiler's.
"""

import gzip
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import tensorflow as tf

from lms.emulation import counters
from lms.emulation.card import emulated_memory
from lms.tf import compat
from lms.units import Seconds
from profiling.spans import Span, card_spans, read_spans

__all__ = ["MARK", "Session", "record_steps", "recording"]

# Name of the spans that are steps.
MARK = "lms_step"


@dataclass(slots=True)
class Session:
    """A recording of steps.

    Args:
        spans: The profiler's spans, once the session has ended.
        seconds: Seconds of each step.
        moments: Begin and end of each step on an emulated card's clock.
    """

    spans: list[Span] = field(default_factory=list)
    seconds: list[Seconds] = field(default_factory=list)
    moments: list[Seconds] = field(default_factory=list)

    def run(self, step: Callable[[], None]) -> None:
        """Run one step and mark it."""
        number = len(self.seconds)
        self.moments += _card_now()
        started = time.monotonic()
        with tf.profiler.experimental.Trace(MARK, step_num=number, _r=1):
            step()
        self.seconds.append(time.monotonic() - started)
        self.moments += _card_now()


@contextmanager
def recording(session: Session, *, keep: Path | None = None) -> Iterator[None]:
    """Record the `with` block; its end reads the trace.

    Args:
        session: Receives the spans.
        keep: A file for TensorFlow's own trace, compressed; None keeps none.
    """
    emulated = emulated_memory() is not None
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=2, python_tracer_level=0, device_tracer_level=not emulated
    )
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder, options=options)
        if emulated:
            counters.begin_trace()
        try:
            yield
        finally:
            if emulated:
                counters.end_trace(f"{folder}/card")
            tf.profiler.experimental.stop()
        (file,) = Path(folder).rglob("*.xplane.pb")
        recorded = file.read_bytes()
        noted = Path(folder, "card").read_text() if emulated else ""
    if keep is not None:
        keep.parent.mkdir(parents=True, exist_ok=True)
        keep.write_bytes(gzip.compress(recorded))
    spans = read_spans(compat.XSpace.FromString(recorded), mark=MARK)
    if noted and session.moments:
        spans += card_spans(noted, _clock(spans, session.moments))
    session.spans = sorted(spans, key=lambda span: (span.start, span.end))


def _card_now() -> list[Seconds]:
    return [] if emulated_memory() is None else [counters.now()]


def _clock(
    spans: Sequence[Span], moments: Sequence[Seconds]
) -> Callable[[Seconds], Seconds]:
    """Return a function from the card's time to the profiler's; rates may differ."""
    marks = [span for span in spans if span.name == MARK]
    begin, first = marks[0].start, moments[0]
    rate = (marks[-1].end - begin) / (moments[-1] - first)
    return lambda moment: begin + rate * (moment - first)


def record_steps(
    step: Callable[[], None],
    count: int,
    *,
    advance: Callable[[], None],
    keep: Path | None = None,
) -> Session:
    """Run and record some steps.

    Args:
        step: One step; it must have run before.
        count: Number of steps.
        advance: Called after each step.
        keep: As for `recording`.
    """
    session = Session()
    with recording(session, keep=keep):
        for _ in range(count):
            session.run(step)
            advance()
    return session
