"""A session of TensorFlow's profiler around some steps, and the copies beside it."""

import gzip
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import tensorflow as tf

from lms.tf import compat
from lms.units import Seconds
from profiling.measured import ObservedCopy
from profiling.spans import Span, read_spans

__all__ = ["MARK", "Session", "record_steps", "recording"]

# Name of the spans that are steps.
MARK = "lms_step"


@dataclass(slots=True)
class Session:
    """What was recorded.

    Args:
        spans: TensorFlow's, once the session has ended.
        marks: When each step began, on `time.monotonic`.
        seconds: What each step took.
        copies: Copies that are not among the spans, if somebody has observed them.
    """

    spans: list[Span] = field(default_factory=list)
    marks: list[Seconds] = field(default_factory=list)
    seconds: list[Seconds] = field(default_factory=list)
    copies: list[ObservedCopy] = field(default_factory=list)

    def run(self, step: Callable[[], None]) -> None:
        """Run one step and mark it."""
        number = len(self.marks)
        self.marks.append(time.monotonic())
        with tf.profiler.experimental.Trace(MARK, step_num=number, _r=1):
            step()
        self.seconds.append(time.monotonic() - self.marks[-1])


@contextmanager
def recording(session: Session, *, keep: Path | None = None) -> Iterator[None]:
    """Record what happens within it; the trace is read when it has ended.

    Args:
        session: Where it goes.
        keep: A file for TensorFlow's own trace, compressed; None keeps none.
    """
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=2, python_tracer_level=0, device_tracer_level=1
    )
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder, options=options)
        try:
            yield
        finally:
            tf.profiler.experimental.stop()
        (file,) = Path(folder).rglob("*.xplane.pb")
        recorded = file.read_bytes()
    if keep is not None:
        keep.parent.mkdir(parents=True, exist_ok=True)
        keep.write_bytes(gzip.compress(recorded))
    space = compat.XSpace.FromString(recorded)
    session.spans = read_spans(space, mark=MARK)


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
        count: How many.
        advance: Called after each.
        keep: As for `recording`.
    """
    session = Session()
    with recording(session, keep=keep):
        for _ in range(count):
            session.run(step)
            advance()
    return session
