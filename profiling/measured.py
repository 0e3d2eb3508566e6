"""Measured timelines, one for each step, from a profiler's spans and observed copies.

    spans  ──ops, kernels──> compute ─┐
    spans  ──GPU's copies──> h2d, d2h ├──> gaps ──> stalls, each with its cause
    copies ──observed──────> h2d, d2h ┘

On a GPU all is in its trace. The clock of copies that were observed besides is tied to
the profiler's by marks, which both have seen.

A gap is put down to the last copy that ended in it: one that the next op waits for by
the plan, or else one that ended just before the next op began. Others are the host's.

Known weakness: copies within a GPU count as compute.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lms.simulation.timeline import Cause, Interval, Lane, Request, Stall, Timeline
from lms.units import Bytes, Seconds
from profiling.spans import Span, copied_bytes

__all__ = ["ObservedCopy", "Waits", "find_stalls", "measured_steps"]

# By op: the copies that it waits for.
Waits = Mapping[str, Collection[tuple[Lane, str]]]

# Gaps shorter than this are what it takes to start an op.
_LEAST: Seconds = 2e-5

# An op begins so soon after the copy that it waited for.
_SOON: Seconds = 2e-3

# What no one computes: host functions are copies here, or marks.
_NO_COMPUTE = ("PyFunc", "EagerPyFunc", "_Arg", "_Retval", "NoOp", "_Send", "_Recv")

# Allocators of a GPU, and of a CPU that is made one; `gpu_host_bfc` is on the host.
_DEVICE_MEMORY = ("GPU_", "bfc_cpu_allocator_for_gpu")

_COPIES = {"MemcpyH2D": Lane.H2D, "MemcpyD2H": Lane.D2H}
_CAUSES = {Lane.H2D: Cause.SWAP_IN, Lane.D2H: Cause.SWAP_OUT}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedCopy:
    """A copy that is not in the profiler's trace.

    Args:
        lane: Its direction.
        tensor: What was copied.
        start: On the clock of the marks.
        end: As `start`.
        size: Bytes.
    """

    lane: Lane
    tensor: str
    start: Seconds
    end: Seconds
    size: Bytes


def measured_steps(
    spans: Sequence[Span],
    marks: Sequence[Seconds],
    copies: Sequence[ObservedCopy],
    *,
    mark: str,
    waits: Waits,
) -> list[Timeline]:
    """One timeline for each marked step.

    Args:
        spans: What the profiler recorded, in order.
        marks: When each marked step began, on the clock of `copies`.
        copies: What was observed; empty on a GPU.
        mark: Name of the spans that are steps.
        waits: What ops wait for, by the plan.

    Raises:
        ValueError: If the profiler recorded another number of steps.
    """
    steps = [span for span in spans if span.name == mark]
    if len(steps) != len(marks):
        raise ValueError(
            f"the trace must have {len(marks)} steps named {mark!r}, got {len(steps)}. "
            "Profile fewer steps: the profiler's buffer may have been full."
        )
    return [
        _step(spans, step, began, copies, waits)
        for step, began in zip(steps, marks, strict=True)
    ]


def find_stalls(
    compute: Sequence[Interval], copies: Sequence[Interval], waits: Waits
) -> tuple[Stall, ...]:
    """Gaps of the compute lane and their causes.

    Args:
        compute: Ops, in the order of their starts.
        copies: Copies in either direction.
        waits: What ops wait for, by the plan.
    """
    stalls: list[Stall] = []
    reached = 0.0
    for op in compute:
        if op.start - reached >= _LEAST:
            cause = _cause(reached, op, copies, waits)
            stalls.append(
                Stall(
                    op=op.name,
                    start=reached,
                    end=op.start,
                    cause=Cause.LAUNCH if cause is None else _CAUSES[cause.lane],
                    tensor="" if cause is None else cause.name,
                )
            )
        reached = max(reached, op.end)
    return tuple(stalls)


def _cause(
    reached: Seconds, op: Interval, copies: Sequence[Interval], waits: Waits
) -> Interval | None:
    ended = [copy for copy in copies if reached - _LEAST < copy.end <= op.start]
    by_plan = [c for c in ended if (c.lane, c.name) in waits.get(op.name, ())]
    soon = [copy for copy in ended if op.start - copy.end <= _SOON]
    return max(by_plan or soon, key=lambda copy: copy.end, default=None)


def _step(
    spans: Sequence[Span],
    step: Span,
    began: Seconds,
    copies: Sequence[ObservedCopy],
    waits: Waits,
) -> Timeline:
    within = [span for span in spans if step.start <= span.start < step.end]
    on_gpu = [span for span in within if span.plane.startswith("/device:GPU:")]
    compute = [
        Interval(
            lane=Lane.COMPUTE,
            name=_op_name(span),
            start=span.start - step.start,
            end=span.end - step.start,
        )
        for span in on_gpu or within
        if _computes(span, on_gpu=bool(on_gpu))
    ]
    carried = [
        Interval(
            lane=_COPIES[span.name],
            name=str(span.facts.get("tf_op", span.name)),
            start=span.start - step.start,
            end=span.end - step.start,
            size=copied_bytes(span),
        )
        for span in on_gpu
        if span.name in _COPIES
    ]
    carried += _placed(copies, began, step)
    carried.sort(key=lambda copy: copy.start)
    return Timeline(
        intervals=(*compute, *carried),
        stalls=find_stalls(compute, carried, waits),
        requests=tuple(_requests(within, step.start)),
    )


def _op_name(span: Span) -> str:
    """The op, of which a GPU's kernel tells in "tf_op" (`name:Type`)."""
    return str(span.facts.get("tf_op", span.name)).partition(":")[0]


def _computes(span: Span, *, on_gpu: bool) -> bool:
    if on_gpu:
        return span.name not in _COPIES
    return ":" in span.name and span.name.rpartition(":")[2] not in _NO_COMPUTE


def _placed(
    copies: Sequence[ObservedCopy], began: Seconds, step: Span
) -> list[Interval]:
    """The observed copies of one step, on its own clock."""
    length = step.end - step.start
    placed = [
        Interval(
            lane=copy.lane,
            name=copy.tensor,
            start=copy.start - began,
            end=copy.end - began,
            size=copy.size,
        )
        for copy in copies
    ]
    return [
        replace(copy, end=min(copy.end, length))
        for copy in placed
        if 0 <= copy.start < length
    ]


def _requests(spans: Sequence[Span], start: Seconds) -> Iterator[Request]:
    """Memory that the step took and gave back; what was there before is not in it."""
    taken: dict[tuple[str, int], tuple[int, int]] = {}
    number = 0
    for span in spans:
        allocator = str(span.facts.get("allocator_name", ""))
        if not allocator.startswith(_DEVICE_MEMORY):
            continue
        key = allocator, span.facts["addr"]
        if span.name == "MemoryAllocation":
            number += 1
            taken[key] = number, span.facts["allocation_bytes"]
            yield Request(at=span.start - start, key=number, size=taken[key][1])
        elif key in taken:
            held, size = taken.pop(key)
            yield Request(at=span.start - start, key=held, size=-size)
