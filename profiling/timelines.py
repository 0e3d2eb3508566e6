"""Timelines as JSON, and the case study's figures of a timeline.

Most ops of a step take a few microseconds. Small ops in close succession are merged,
small allocations left out, and times rounded to a tenth of a microsecond. Figures are
computed from the condensed timeline.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from lms.simulation.timeline import Cause, Interval, Lane, Request, Stall, Timeline
from lms.storage.files import as_data
from lms.units import KIB, Bytes, Seconds

__all__ = ["condensed", "figures_of", "hidden_bytes", "median_figures"]
__all__ += ["timeline_from_json", "timeline_to_json"]

_DIGITS = 7
_SMALL_OP: Seconds = 2e-5
_SMALL_PIECE = 16 * KIB

_Request = tuple[Seconds, int, Bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """A timeline as JSON has it: the fields of each part, in their order."""

    intervals: tuple[tuple[Lane, str, Seconds, Seconds, Bytes], ...]
    stalls: tuple[tuple[str, Seconds, Seconds, Cause, str], ...]
    requests: tuple[_Request, ...]
    host_requests: tuple[_Request, ...]


def condensed(timeline: Timeline) -> Timeline:
    """Merge small ops of a timeline, and leave out small allocations.

    Example:
        >>> def op(name, start, end):
        ...     return Interval(lane=Lane.COMPUTE, name=name, start=start, end=end)
        >>> small = op("a", 0.0, 1e-6), op("b", 2e-6, 3e-6), op("c", 4e-6, 1.0)
        >>> [i.name for i in condensed(Timeline(intervals=small)).intervals]
        ['2 small ops', 'c']
    """
    ops: list[Interval] = []
    counts: list[int] = []  # small ops in each op; 0 for a large op
    for op in timeline.lane(Lane.COMPUTE):
        small = op.seconds < _SMALL_OP
        if small and counts and counts[-1] and op.start - ops[-1].end < _SMALL_OP:
            ops[-1] = replace(ops[-1], end=max(ops[-1].end, op.end))
            counts[-1] += 1
        else:
            ops.append(op)
            counts.append(int(small))
    named = [
        replace(op, name=f"{count} small ops") if count > 1 else op
        for op, count in zip(ops, counts, strict=True)
    ]
    copies = (i for i in timeline.intervals if i.lane is not Lane.COMPUTE)
    return replace(
        timeline,
        intervals=(*named, *copies),
        requests=tuple(r for r in timeline.requests if abs(r.size) >= _SMALL_PIECE),
    )


def timeline_to_json(timeline: Timeline) -> dict[str, Any]:
    """Convert a timeline to rows.

    Example:
        >>> op = Interval(lane=Lane.COMPUTE, name="conv", start=0.0, end=0.5)
        >>> step = Timeline(intervals=(op,))
        >>> timeline_from_json(timeline_to_json(step)) == step
        True
    """
    return {
        "intervals": [
            [str(i.lane), i.name, _round(i.start), _round(i.end), i.size]
            for i in timeline.intervals
        ],
        "stalls": [
            [s.op, _round(s.start), _round(s.end), str(s.cause), s.tensor]
            for s in timeline.stalls
        ],
        "requests": [[_round(r.at), r.key, r.size] for r in timeline.requests],
        "host_requests": [
            [_round(r.at), r.key, r.size] for r in timeline.host_requests
        ],
    }


def timeline_from_json(value: Mapping[str, Any]) -> Timeline:
    """Read rows of `timeline_to_json`, rounded to a tenth of a microsecond.

    Raises:
        ValueError: If a value is invalid; names the value.
    """
    try:
        rows = as_data(value, _Rows)
    except ValueError as error:
        raise ValueError(
            f"a timeline must be rows that `profiling.step_timeline` wrote, got: "
            f"{error}. Write it again."
        ) from error
    return Timeline(
        intervals=tuple(
            Interval(lane=lane, name=name, start=start, end=end, size=size)
            for lane, name, start, end, size in rows.intervals
        ),
        stalls=tuple(
            Stall(op=op, start=start, end=end, cause=cause, tensor=tensor)
            for op, start, end, cause, tensor in rows.stalls
        ),
        requests=_requests(rows.requests),
        host_requests=_requests(rows.host_requests),
    )


def figures_of(timeline: Timeline) -> dict[str, float]:
    """Compute the case study's figures ("hidden" in bytes), and gaps by cause.

    Example:
        >>> op = Interval(lane=Lane.COMPUTE, name="conv", start=0.5, end=1.0)
        >>> figures_of(Timeline(intervals=(op,)))["utilisation"]
        0.5
    """
    figures = {
        "seconds": timeline.seconds,
        "utilisation": timeline.utilisation,
        "device_peak": float(timeline.device_peak),
    }
    for key, lane in (("h2d", Lane.H2D), ("d2h", Lane.D2H)):
        figures[f"{key}_bytes"] = float(timeline.copied_bytes(lane))
        figures[f"{key}_throughput"] = timeline.throughput(lane)
        figures[f"{key}_busy"] = timeline.busy_seconds(lane)
        figures[f"{key}_hidden"] = hidden_bytes(timeline, lane)
    for cause in Cause:
        waits = (s.seconds for s in timeline.stalls if s.cause is cause)
        figures[f"idle: {cause}"] = sum(waits)
    return figures


def hidden_bytes(timeline: Timeline, lane: Lane) -> float:
    """Count bytes of a lane that were copied while a kernel ran.

    Example:
        >>> kernel = Interval(lane=Lane.COMPUTE, name="a", start=0.0, end=1.0)
        >>> copy = Interval(lane=Lane.H2D, name="b", start=0.5, end=2.5, size=8)
        >>> hidden_bytes(Timeline(intervals=(kernel, copy)), Lane.H2D)
        2.0
    """
    kernels = sorted((op.start, op.end) for op in timeline.lane(Lane.COMPUTE))
    return sum(_beside(copy, kernels) for copy in timeline.lane(lane))


def _beside(copy: Interval, kernels: Sequence[tuple[Seconds, Seconds]]) -> float:
    reached, busy = copy.start, 0.0
    for start, end in kernels:
        busy += max(0.0, min(end, copy.end) - max(start, reached))
        reached = max(reached, end)
    return copy.size * busy / copy.seconds if copy.seconds else 0.0


def median_figures(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each figure over several steps.

    Example:
        >>> median_figures([{"seconds": 1.0}, {"seconds": 2.0}, {"seconds": 9.0}])
        {'seconds': 2.0}
    """
    return {key: median(step[key] for step in steps) for key in steps[0]}


def _requests(rows: Sequence[_Request]) -> tuple[Request, ...]:
    return tuple(Request(at=at, key=key, size=size) for at, key, size in rows)


def _round(seconds: float) -> float:
    return round(seconds, _DIGITS)
