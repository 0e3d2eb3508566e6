from types import SimpleNamespace as Made
from typing import Any

import pytest

from lms.simulation.timeline import Cause, Interval, Lane, Timeline
from profiling.measured import find_stalls, measured_steps
from profiling.spans import Span, card_spans, read_spans
from profiling.timelines import (
    condensed,
    hidden_bytes,
    timeline_from_json,
    timeline_to_json,
)


def op(name: str, start: float, end: float) -> Interval:
    return Interval(lane=Lane.COMPUTE, name=name, start=start, end=end)


def copy(lane: Lane, name: str, start: float, end: float) -> Interval:
    return Interval(lane=lane, name=name, start=start, end=end, size=8)


def host(name: str, start: float, end: float, **facts: Any) -> Span:
    plane = {"plane": "/host:CPU", "line": "1", "facts": facts}
    return Span(name=name, start=start, end=end, **plane)


OPS = [op("a", 0.0, 1.0), op("b", 3.0, 4.0)]


def test_a_gap_that_ends_with_a_copy_in_waits_for_it() -> None:
    copies = [copy(Lane.H2D, "x:0", 1.0, 2.999)]
    (stall,) = find_stalls(OPS, copies, {})
    assert (stall.op, stall.start, stall.end) == ("b", 1.0, 3.0)
    assert (stall.cause, stall.tensor) == (Cause.SWAP_IN, "x:0")


def test_a_copy_of_the_plan_comes_before_one_that_ended_by_chance() -> None:
    copies = [copy(Lane.D2H, "x:0", 0.0, 2.5), copy(Lane.H2D, "y:0", 2.0, 2.999)]
    (stall,) = find_stalls(OPS, copies, {"b": {(Lane.D2H, "x:0")}})
    assert (stall.cause, stall.tensor) == (Cause.SWAP_OUT, "x:0")


@pytest.mark.parametrize("end", [0.9, 2.5, 3.5], ids=["before", "early", "after"])
def test_a_gap_without_a_copy_at_its_end_is_the_host_s(end: float) -> None:
    (stall,) = find_stalls(OPS, [copy(Lane.H2D, "x:0", 0.0, end)], {})
    assert (stall.cause, stall.tensor) == (Cause.LAUNCH, "")


def test_ops_that_overlap_leave_no_gap() -> None:
    assert find_stalls([op("a", 0.0, 4.0), op("b", 1.0, 2.0)], [], {}) == ()


def test_an_emulated_card_s_clock_is_tied_to_the_profiler_s() -> None:
    noted = "0 7.5 8.0 7.4 0 a\n2 7.5 8.5 7.4 8 D2H\n0 9.5 9.6 9.5 0 late"
    spans = [host("step", 10.0, 12.0), *card_spans(noted, lambda moment: moment + 3)]
    (step,) = measured_steps(spans, 1, mark="step", waits={})
    assert [(i.lane, i.name, i.start, i.end, i.size) for i in step.intervals] == [
        (Lane.COMPUTE, "a", 0.5, 1.0, 0),
        (Lane.D2H, "MemcpyD2H", 0.5, 1.5, 8),
    ]
    assert hidden_bytes(step, Lane.D2H) == 4


def test_steps_that_the_profiler_lost_are_not_made_up() -> None:
    with pytest.raises(ValueError, match="must have 1 steps named 'step', got 0"):
        measured_steps([], 1, mark="step", waits={})


def test_memory_of_the_host_or_from_before_is_not_the_step_s() -> None:
    def memory(kind: str, at: float, address: int, name: str = "GPU_0_bfc") -> Span:
        facts = {"allocator_name": name, "addr": address, "allocation_bytes": 64}
        return host(f"Memory{kind}", at, at, **facts)

    spans = [
        host("step", 0.0, 9.0),
        memory("Deallocation", 1.0, 7),
        memory("Allocation", 2.0, 7),
        memory("Deallocation", 3.0, 7),
        memory("Allocation", 4.0, 8, "gpu_host_bfc"),
    ]
    (step,) = measured_steps(spans, 1, mark="step", waits={})
    assert [(r.at, r.size) for r in step.requests] == [(2.0, 64), (3.0, -64)]


# Metadata in which each number is a name.
NAMES: Any = type("Names", (), {"__getitem__": lambda _, name: Made(name=name)})()


def event(name: str, at: int, ns: int, facts: dict[str, str]) -> Any:
    """An event of a plane, from its begin and length in ns."""
    stats = [
        Made(metadata_id=key, ref_value=value, WhichOneof=lambda _: "ref_value")
        for key, value in facts.items()
    ]
    of = {"metadata_id": name, "stats": stats}
    return Made(offset_ps=at * 1000, duration_ps=ns * 1000, **of)


def space(planes: dict[str, list[Any]]) -> Any:
    """An XSpace of one line for each plane."""
    line = {"name": "Stream #20(MemcpyH2D)", "display_name": "", "timestamp_ns": 1000}
    known = {"event_metadata": NAMES, "stat_metadata": NAMES}
    made = [
        Made(name=name, lines=[Made(**line, events=events)], **known)
        for name, events in planes.items()
    ]
    return Made(planes=made)


def test_a_gpu_s_kernels_and_copies_are_read_from_its_plane() -> None:
    details = "kind_src:pinned kind_dst:device size:4096 dest:0 async:1"
    on_host = [event("step", 0, 9000, {}), event("noise", 1, 1, {})]
    on_gpu = [
        event("sgemm", 2000, 3000, {"tf_op": "a:MatMul"}),
        event("MemcpyH2D", 1000, 500, {"memcpy_details": details}),
    ]
    recorded = space({"/host:CPU": on_host, "/device:GPU:0": on_gpu})
    spans = read_spans(recorded, mark="step")
    assert [span.name for span in spans] == ["step", "MemcpyH2D", "sgemm"]
    (step,) = measured_steps(spans, 1, mark="step", waits={})
    (kernel,), (carried,) = step.lane(Lane.COMPUTE), step.lane(Lane.H2D)
    assert kernel.name == "a"
    assert kernel.start == pytest.approx(2e-6)
    assert carried.size == 4096
    assert step.throughput(Lane.H2D) == pytest.approx(4096 / 500e-9)


def test_lines_that_repeat_a_stream_s_events_are_not_read() -> None:
    recorded = space({"/device:GPU:0": [event("kernel", 0, 10, {})]})
    assert len(read_spans(recorded, mark="step")) == 1
    recorded.planes[0].lines[0].name = "TensorFlow Ops"
    assert read_spans(recorded, mark="step") == []


def test_condensing_keeps_the_busy_time_and_survives_json() -> None:
    small = [op(f"op{i}", i * 4e-6, i * 4e-6 + 3e-6) for i in range(5)]
    step = Timeline(intervals=(*small, op("large", 1.0, 2.0)))
    less = condensed(step)
    assert [i.name for i in less.intervals] == ["5 small ops", "large"]
    assert less.busy_seconds(Lane.COMPUTE) == pytest.approx(1.0, abs=1e-4)
    assert timeline_from_json(timeline_to_json(less)).seconds == step.seconds
