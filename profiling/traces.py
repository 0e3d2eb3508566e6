"""Timelines as traces, which Perfetto and chrome://tracing open.

Source of the format: "Trace Event Format", Google, 2016; times in microseconds.
"""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from lms.simulation.timeline import Interval, Lane, Stall, Timeline, curve

__all__ = ["chrome_trace"]


def chrome_trace(timeline: Timeline, name: str = "step") -> str:
    """Return a timeline as JSON text; `name` is the process's name there."""
    return json.dumps({"traceEvents": list(_trace_events(timeline, name))})


def _trace_events(timeline: Timeline, name: str) -> Iterator[dict[str, Any]]:
    threads = {lane: i for i, lane in enumerate(Lane, start=1)}
    yield {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": name}}
    for lane, thread in threads.items():
        about = {"ph": "M", "pid": 1, "tid": thread, "name": "thread_name"}
        yield {**about, "args": {"name": str(lane)}}
    for interval in timeline.intervals:
        args = {"bytes": interval.size} if interval.size else {}
        yield _complete(interval.name, threads[interval.lane], interval, args)
    for stall in timeline.stalls:
        args = {"op": stall.op, "tensor": stall.tensor}
        yield _complete(f"stall: {stall.cause}", len(threads) + 1, stall, args)
    about = {"ph": "M", "pid": 1, "tid": len(threads) + 1, "name": "thread_name"}
    yield {**about, "args": {"name": "stalls"}}
    for label, used in (
        ("device bytes", curve(timeline.requests)),
        ("host bytes", curve(timeline.host_requests)),
    ):
        last = [now for now, later in pairwise(used) if now[0] != later[0]]
        for at, size in [*last, *used[-1:]]:
            event = {"ph": "C", "pid": 1, "name": label, "ts": at * 1e6}
            yield {**event, "args": {"bytes": size}}


def _complete(
    name: str, thread: int, span: Interval | Stall, args: dict[str, Any]
) -> dict[str, Any]:
    event = {"ph": "X", "pid": 1, "tid": thread, "name": name, "args": args}
    return {**event, "ts": span.start * 1e6, "dur": span.seconds * 1e6}
