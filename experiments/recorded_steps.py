"""What the device did in some steps of a training, as TensorFlow's profiler saw it."""

from collections.abc import Callable, Sequence
from typing import Any

from profiling.measured import measured_steps
from profiling.sessions import MARK, Session, recording
from profiling.timelines import figures_of

__all__ = ["recorded_figures"]


def recorded_figures(
    step: Callable[..., Any],
    batch: Sequence[Any],
    count: int,
    wait: Callable[[], None],
) -> list[dict[str, float]]:
    """Run some steps, and say what `profiling.timelines.figures_of` reads off each.

    Args:
        step: Returns its `loss` among others; it must have run before.
        batch: Its arguments.
        count: How many steps.
        wait: Is called before each.
    """
    session = Session()

    def run() -> None:
        float(step(*batch)["loss"])  # its results are awaited

    with recording(session):
        for _ in range(count):
            wait()
            session.run(run)
    steps = measured_steps(session.spans, count, mark=MARK, waits={})
    return [figures_of(each) for each in steps]
