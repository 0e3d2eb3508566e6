"""What a training step is predicted to take, of memory and time; nothing is trained."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from experiments.passes import passes
from lms.commands.forecast import (
    DeviceWorkload,
    Forecast,
    forecast,
    workload_of,
)
from lms.errors import BudgetError
from lms.machine.hardware import preset
from lms.planning.settings import Settings, read_settings

__all__ = ["predicted", "thinned"]

_MOST_POINTS = 1500  # of a curve
_ENOUGH = 1 << 40  # bytes for any step without support


def predicted(
    step: Callable[..., Any], batch: Sequence[Any], options: Namespace, *, planned: bool
) -> dict[str, Any]:
    """Whether a step fits into so much memory, and how long it takes.

    Args:
        step: It must not have run before.
        batch: Its arguments.
        options: `memory` and `budget` in bytes, `way`, `hardware` as the name of a
            preset or None for the present device, and `curves`.
        planned: Whether `way` is a planner; other steps have enough memory.
    """
    specs = tf.nest.map_structure(
        lambda array: tf.TensorSpec(array.shape, array.dtype), list(batch)
    )
    hardware = options.hardware and preset(options.hardware)
    subject = workload_of(step, specs, hardware=hardware)
    memory = options.memory if planned else _ENOUGH
    subject = subject.on(replace(subject.speeds.hardware, memory=memory))
    try:
        found = forecast(subject, _settings(options) if planned else Settings())
    except BudgetError as error:
        return {"error": str(error), "least_bytes": error.least_bytes}
    result = _told(subject, found)
    if options.curves:
        result["curves"] = {"unplanned": thinned(subject.workload.plain_memory.device)}
    peak = found.report.predicted_peak_bytes
    if peak > options.memory:
        return result | {"error": f"needs {peak} bytes"}
    return result


def _settings(options: Namespace) -> Settings:
    return read_settings(
        budget=options.budget, thresholds={} if options.way == "threshold" else None
    )


def _told(subject: DeviceWorkload, found: Forecast) -> dict[str, Any]:
    report = found.report
    both = passes(subject.workload.graph, subject.speeds.costs)
    return {
        "forward_seconds": both.forward_seconds,
        "backward_seconds": both.backward_seconds,
        "crossing_bytes": both.crossing_bytes,
        "error": None,
        "persistent_bytes": report.persistent_bytes,
        "predicted_peak_bytes": report.predicted_peak_bytes,
        "unplanned_peak_bytes": report.unplanned_peak_bytes,
        "swapped_out_bytes": report.swapped_out_bytes,
        "predicted_seconds": report.predicted_seconds,
    }


def thinned(curve: Sequence[int]) -> list[int]:
    """The largest value of each stretch: few points, and no peak lost.

    Example:
        >>> thinned([3, 1, 2])
        [3, 1, 2]
    """
    stretch = -(-len(curve) // _MOST_POINTS) or 1
    starts = range(0, len(curve), stretch)
    return [max(curve[start : start + stretch]) for start in starts]
