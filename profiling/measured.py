"""Measured timelines, one for each step, from a profiler's spans of the card.

    spans ──kernels──> compute ─┐
          ──copies───> h2d, d2h ┴──> gaps ──> stalls, each with its cause

The cause of a gap is the last copy that ended in the gap: a copy that the next op waits
for by the plan, else a copy that ended just before the next op. Without a copy, the
cause is the host.

Known weakness: copies within a GPU count as compute.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from lms.simulation.timeline import Cause, Interval, Lane, Request, Stall, Timeline
from lms.units import Seconds
from profiling.spans import Span, copied_bytes

__all__ = ["Waits", "find_stalls", "measured_steps"]

# Copies that an op waits for, by op.
Waits = Mapping[str, Collection[tuple[Lane, str]]]

# Shorter gaps are the time to launch an op, not stalls.
_LEAST: Seconds = 2e-5

# Most time from the end of a copy to the op that waited for the copy.
_SOON: Seconds = 2e-3

# Allocators of a GPU; `gpu_host_bfc` is on the host.
_DEVICE_MEMORY = "GPU_"

_COPIES = {"MemcpyH2D": Lane.H2D, "MemcpyD2H": Lane.D2H}
_CAUSES = {Lane.H2D: Cause.SWAP_IN, Lane.D2H: Cause.SWAP_OUT}


def measured_steps(
    spans: Sequence[Span], count: int, *, mark: str, waits: Waits
) -> list[Timeline]:
    """Make a timeline of each marked step.

    Args:
        spans: The profiler's spans, in order.
        count: Number of marked steps.
        mark: Name of the spans that are steps.
        waits: Copies that ops wait for, by the plan.

    Raises:
        ValueError: If the profiler recorded another number of steps.
    """
    steps = [span for span in spans if span.name == mark]
    if len(steps) != count:
        raise ValueError(
            f"the trace must have {count} steps named {mark!r}, got {len(steps)}. "
            "Profile fewer steps: the profiler's buffer may have been full."
        )
    return [_step(spans, step, waits) for step in steps]


def find_stalls(
    compute: Sequence[Interval], copies: Sequence[Interval], waits: Waits
) -> tuple[Stall, ...]:
    """Find gaps of the compute lane and their causes.

    Args:
        compute: Ops, in the order of their starts.
        copies: Copies in either direction.
        waits: Copies that ops wait for, by the plan.
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


def _step(spans: Sequence[Span], step: Span, waits: Waits) -> Timeline:
    within = [span for span in spans if step.start <= span.start < step.end]
    on_gpu = [span for span in within if span.plane.startswith("/device:GPU:")]
    lanes = [
        Interval(
            lane=_COPIES.get(span.name, Lane.COMPUTE),
            name=_op_name(span),
            start=span.start - step.start,
            end=span.end - step.start,
            size=copied_bytes(span),
        )
        for span in on_gpu
    ]
    compute = [each for each in lanes if each.lane is Lane.COMPUTE]
    copies = [each for each in lanes if each.lane is not Lane.COMPUTE]
    return Timeline(
        intervals=(*compute, *copies),
        stalls=find_stalls(compute, copies, waits),
        requests=tuple(_requests(within, step.start)),
    )


def _op_name(span: Span) -> str:
    """Return the op of a kernel or copy, from the fact "tf_op" (`name:Type`)."""
    return str(span.facts.get("tf_op", span.name)).partition(":")[0]


def _requests(spans: Sequence[Span], start: Seconds) -> Iterator[Request]:
    """Yield allocations and frees of the step, without memory from before."""
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
