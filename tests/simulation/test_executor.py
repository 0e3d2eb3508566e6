"""The simulator of time: steps worked out by hand, then a second implementation."""

import gc
import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lms.errors import PlanError
from lms.ir.graph import GraphView
from lms.ir.liveness import peak
from lms.ir.plan import Swap, SwapIn, SwapPlan
from lms.machine.costs import Costs
from lms.machine.hardware import Hardware
from lms.planning.candidates import movable
from lms.planning.schedule import schedule
from lms.planning.tflms_rule import SyncMode
from lms.simulation import executor
from lms.simulation.executor import Bus, Job, simulate, simulate_together
from lms.simulation.timeline import Cause, Lane, Timeline
from tests.graphs import SKIP, make_op, one_of_two_written_over
from tests.planning.ruled import plan_by_threshold
from tests.planning.test_laws import budget_planners
from tests.simulation.naive_executor import naive_peak, naive_times
from tests.strategies import graphs

# 10 bytes per second to the device, 20 back; the host waits for each op.
SLOW = Hardware(
    name="slow",
    memory=1000,
    flops=1.0,
    memory_bandwidth=1.0,
    h2d=10.0,
    d2h=20.0,
    asynchronous=False,
)
AHEAD = replace(SLOW, asynchronous=True)


def costs_of(graph: GraphView, seconds: float = 1.0) -> Costs:
    return Costs(seconds={op.name: seconds for op in graph.ops}, source="measured")


def plan_of(graph: GraphView, *swaps: Swap) -> SwapPlan:
    order = tuple(op.name for op in graph.ops)
    return SwapPlan(
        planner="none",
        order=order,
        chain=tuple((name,) for name in order) if swaps else (),
        swaps=swaps,
    )


def swap_of(graph: GraphView, release: str | None, trigger: str | None) -> Swap:
    copy = SwapIn(trigger=trigger, readers=("e",))
    size = graph.tensors["a:0"].size
    return Swap(tensor="a:0", size=size, release=release, swap_ins=(copy,))


def spans(timeline: Timeline, lane: Lane) -> list[tuple[str, float, float]]:
    return [(i.name, i.start, i.end) for i in timeline.lane(lane)]


# SKIP: a (100) -> b (10) -> c (80) -> d (10) -> e (10), and e reads a.


def test_ops_run_one_after_the_other() -> None:
    graph = SKIP.graph
    timeline = simulate(graph, plan_of(graph), costs_of(graph), SLOW)
    assert timeline.seconds == 5.0
    assert timeline.utilisation == 1.0
    assert timeline.stalls == ()
    assert timeline.device_peak == peak(graph)


def test_an_op_waits_for_the_room_of_a_copy_out_and_for_a_copy_in() -> None:
    graph = SKIP.graph
    plan = plan_of(graph, swap_of(graph, "c", "c"))
    timeline = simulate(graph, plan, costs_of(graph), SLOW)
    # a 0-1; out 1-6; b 1-2; c waits for the room: 6-7; in 7-17; d 7-8; e 17-18.
    assert spans(timeline, Lane.D2H) == [("a:0", 1.0, 6.0)]
    assert spans(timeline, Lane.H2D) == [("a:0", 7.0, 17.0)]
    assert spans(timeline, Lane.COMPUTE)[2:] == [
        ("c", 6.0, 7.0),
        ("d", 7.0, 8.0),
        ("e", 17.0, 18.0),
    ]
    causes = [(s.op, s.cause, s.tensor, s.seconds) for s in timeline.stalls]
    assert causes == [
        ("c", Cause.SWAP_OUT, "a:0", 4.0),
        ("e", Cause.SWAP_IN, "a:0", 9.0),
    ]
    assert timeline.utilisation == 5 / 18
    assert timeline.throughput(Lane.D2H) == 20.0
    assert timeline.host_peak == 100


def test_what_an_op_without_an_order_made_is_held_until_it_has_left() -> None:
    # b comes after a, the op before the release, but is not ordered: its swap-out runs
    # 2-2.5, and the room that c waits for is there with it.
    ops = (
        make_op("a", 10),
        make_op("b", 10, "a"),
        make_op("c", 10, "a"),
        make_op("d", 10, "c"),
        make_op("e", 10, "d", "b"),
    )
    graph = GraphView(ops=ops)
    copy = SwapIn(trigger="d", readers=("e",))
    swap = Swap(tensor="b:0", size=10, release="c", swap_ins=(copy,))
    plan = replace(plan_of(graph, swap), chain=(("a",), ("c",), ("d",), ("e",)))
    timeline = simulate(graph, plan, costs_of(graph), SLOW)
    assert spans(timeline, Lane.D2H) == [("b:0", 2.0, 2.5)]
    assert spans(timeline, Lane.COMPUTE)[2] == ("c", 2.5, 3.5)


def test_cores_that_copy_do_not_compute_meanwhile() -> None:
    graph = SKIP.graph
    loaded = replace(SLOW, copy_load=0.01)
    plan = plan_of(graph, swap_of(graph, "c", "c"))
    timeline = simulate(graph, plan, costs_of(graph), loaded)
    # Each copy costs a second: b takes 1-3 beside the one out, d 7-9 beside the other.
    lengths = [end - start for _, start, end in spans(timeline, Lane.COMPUTE)]
    assert lengths == [1.0, 2.0, 1.0, 2.0, 1.0]
    # While b waits for the room, until 6, the cores have time to copy.
    plan = plan_of(graph, swap_of(graph, "b", "c"))
    timeline = simulate(graph, plan, costs_of(graph), loaded)
    lengths = [end - start for _, start, end in spans(timeline, Lane.COMPUTE)]
    assert lengths == [1.0, 1.0, 1.0, 2.0, 1.0]


def test_only_time_after_a_copy_began_pays_for_it() -> None:
    # c waits until 11 for the swap-out of a; that of b begins then, and costs c 3 s.
    ops = (make_op("a", 100), make_op("b", 100, "a"), make_op("c", 0), make_op("d", 0))
    graph = GraphView(ops=ops)
    outs = (
        Swap(tensor="a:0", size=100, release="c", swap_ins=()),
        Swap(tensor="b:0", size=100, release=None, swap_ins=()),
    )
    hardware = replace(SLOW, d2h=10.0, copy_load=0.03)
    timeline = simulate(graph, plan_of(graph, *outs), costs_of(graph), hardware)
    # The copy of a costs 3 s too: b took 1-5, and the rest of it is paid for by then.
    assert spans(timeline, Lane.D2H) == [("a:0", 1.0, 11.0), ("b:0", 11.0, 21.0)]
    assert spans(timeline, Lane.COMPUTE)[1:] == [
        ("b", 1.0, 5.0),
        ("c", 11.0, 15.0),
        ("d", 15.0, 16.0),
    ]


def test_room_is_free_when_the_copy_out_and_the_near_readers_have_ended() -> None:
    graph = SKIP.graph
    plan = plan_of(graph, swap_of(graph, None, "d"))
    timeline = simulate(graph, plan, costs_of(graph), SLOW)
    # Nothing waits for the swap-out (1-6): a:0 is there beside c, until 6; the swap-in
    # waits for it. d ends at 4, in 6-16 with its room from 6 on.
    assert spans(timeline, Lane.H2D) == [("a:0", 6.0, 16.0)]
    assert timeline.device_peak == 100 + 10 + 80


def test_a_device_that_runs_behind_its_host_starts_copies_late() -> None:
    graph = SKIP.graph
    plan = plan_of(graph, swap_of(graph, None, "b"))
    fast = replace(AHEAD, d2h=1e9)
    timeline = simulate(graph, plan, costs_of(graph), fast)
    # The host starts a, b, c and d at once. The swap-out waits for a alone, which was
    # all that had been started. It ends at 1; the swap-in, started by the host then,
    # waits for b, c and d too.
    assert [start for _, start, _ in spans(timeline, Lane.H2D)] == [4.0]
    synchronous = simulate(graph, plan, costs_of(graph), replace(SLOW, d2h=1e9))
    assert [start for _, start, _ in spans(synchronous, Lane.H2D)] == [2.0]


def test_a_host_that_is_slower_than_its_device_is_the_cause_of_gaps() -> None:
    graph = SKIP.graph
    slow = replace(AHEAD, launch=3.0)
    timeline = simulate(graph, plan_of(graph), costs_of(graph), slow)
    assert timeline.seconds == 4 * 3.0 + 1.0
    assert {stall.cause for stall in timeline.stalls} == {Cause.LAUNCH}


def test_two_devices_on_one_bus_share_its_bandwidth() -> None:
    graph = SKIP.graph
    plan = plan_of(graph, swap_of(graph, "c", "c"))
    job = Job(graph=graph, plan=plan, costs=costs_of(graph), hardware=SLOW)
    bus = Bus(h2d=10.0, d2h=20.0)
    both = simulate_together([job, job], bus=bus)
    # Out 1-11, in 12-32: all copies take twice as long.
    assert [timeline.seconds for timeline in both] == [33.0, 33.0]
    late = simulate_together([job, replace(job, start=100.0)], bus=bus)
    assert [timeline.seconds for timeline in late] == [18.0, 118.0]
    wide = simulate_together([job, job], bus=Bus(h2d=20.0, d2h=40.0))
    assert wide[0].seconds == 18.0


def test_a_copy_that_joins_another_slows_it_from_then_on() -> None:
    graph = SKIP.graph
    plan = plan_of(graph, swap_of(graph, "c", "c"))
    job = Job(graph=graph, plan=plan, costs=costs_of(graph), hardware=SLOW)
    first, second = simulate_together(
        [job, replace(job, start=3.0)], bus=Bus(h2d=10.0, d2h=20.0)
    )
    # First out from 1: alone to 4 (60 bytes), then 40 bytes at half rate: 8. Second out
    # from 4: 40 bytes by 8, the rest alone: 11.
    assert spans(first, Lane.D2H) == [("a:0", 1.0, 8.0)]
    assert spans(second, Lane.D2H) == [("a:0", 4.0, 11.0)]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_steps_follow_each_other_on_a_device(*, asynchronous: bool) -> None:
    graph = SKIP.graph
    plan = plan_of(graph, swap_of(graph, "c", "c"))
    hardware = replace(SLOW, asynchronous=asynchronous)
    job = Job(graph=graph, plan=plan, costs=costs_of(graph), hardware=hardware)
    (alone,) = simulate_together([job])
    again = replace(job, after=0), replace(job, after=1)
    ends = [timeline.seconds for timeline in simulate_together([job, *again])]
    assert ends == [pytest.approx(n * alone.seconds) for n in (1, 2, 3)]


def test_steps_of_two_devices_share_a_bus_whenever_they_begin() -> None:
    graph = SKIP.graph
    plan = plan_of(graph, swap_of(graph, "c", "c"))
    job = Job(graph=graph, plan=plan, costs=costs_of(graph), hardware=SLOW)
    jobs = [job, replace(job, after=0), job, replace(job, after=2)]
    in_phase = simulate_together(jobs, bus=Bus(h2d=10.0, d2h=20.0))
    assert [timeline.seconds for timeline in in_phase] == [33.0, 66.0, 33.0, 66.0]
    jobs[2] = replace(job, start=9.0)
    apart = simulate_together(jobs, bus=Bus(h2d=10.0, d2h=20.0))
    assert apart[1].seconds < 66.0


def test_latency_comes_with_each_copy() -> None:
    graph = SKIP.graph
    plan = plan_of(graph, swap_of(graph, "c", "c"))
    slower = simulate(graph, plan, costs_of(graph), replace(SLOW, latency=0.5))
    assert slower.seconds == pytest.approx(19.0)


@pytest.mark.parametrize("reads", [("b", "a"), ("a", "b")])
def test_an_op_writes_over_the_first_of_its_inputs_that_can_be(
    reads: tuple[str, str],
) -> None:
    graph = one_of_two_written_over(reads)
    played = simulate(graph, plan_of(graph), costs_of(graph), SLOW)
    assert (played.allocator_peak(capacity=3072) is not None) is (reads[0] == "a")


def test_a_plan_that_waits_for_itself_is_refused() -> None:
    graph = SKIP.graph
    plan = replace(
        plan_of(graph, swap_of(graph, "b", "c")), chain=(("a", "b"), ("c", "d", "e"))
    )
    with pytest.raises(PlanError, match="circle"):
        simulate(graph, plan, costs_of(graph), SLOW)


def test_the_collector_rests_only_while_a_plan_is_played(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, rested = SKIP.graph, list[bool]()

    def circle(*_: Any, **__: Any) -> Any:
        rested.append(not gc.isenabled())
        raise PlanError("a circle")

    monkeypatch.setattr(executor, "find_dependencies", circle)
    with pytest.raises(PlanError, match="circle"):
        simulate(graph, plan_of(graph), costs_of(graph), SLOW)
    assert rested == [True]
    assert gc.isenabled()


def test_a_chrome_trace_holds_lanes_stalls_and_memory() -> None:
    graph = SKIP.graph
    plan = plan_of(graph, swap_of(graph, "c", "c"))
    timeline = simulate(graph, plan, costs_of(graph), SLOW)
    events = json.loads(timeline.to_chrome_trace())["traceEvents"]
    complete = {e["name"]: (e["ts"], e["dur"]) for e in events if e["ph"] == "X"}
    assert complete["c"] == (6e6, 1e6)
    counted = [e["args"]["bytes"] for e in events if e["name"] == "device bytes"]
    assert max(counted) == timeline.device_peak
    assert all(e["args"]["bytes"] >= 0 for e in events if e["ph"] == "C")


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """A random step with a plan, costs and links without ties."""
    graph = schedule(draw(graphs()))
    if draw(st.booleans()):
        plan = draw(budget_planners(graph))(graph)
    else:
        plan = plan_by_threshold(
            graph,
            swapout_threshold=draw(st.integers(1, 4)),
            swapin_ahead=draw(st.integers(1, 4)),
            swapin_groupby=draw(st.integers(0, 3)),
            movable=movable(graph, min_bytes=1),
            min_bytes=1,
            sync_mode=draw(st.sampled_from(SyncMode)),
            serialization=draw(st.sampled_from(((), (":",)))),
        )
    random = Random(draw(st.integers(0, 2**32)))
    seconds = {name: random.uniform(0.5, 2.0) for name in plan.order}
    hardware = Hardware(
        name="random",
        memory=1,
        flops=1.0,
        memory_bandwidth=1.0,
        h2d=random.uniform(2, 200),
        d2h=random.uniform(2, 200),
        latency=random.choice((0.0, random.uniform(0, 1))),
        launch=random.uniform(0.1, 1.5),
        asynchronous=draw(st.booleans()),
    )
    costs = Costs(seconds=seconds, source="measured")
    ordered = graph.reordered(plan.order)
    return Job(graph=ordered, plan=plan, costs=costs, hardware=hardware)


def simulated(job: Job) -> Timeline:
    try:
        return simulate(job.graph, job.plan, job.costs, job.hardware)
    except PlanError:
        assume(False)  # noqa: FBT003 - the rewriter refuses such plans too
        raise


@given(jobs())
@settings(deadline=None, max_examples=80)
def test_times_are_those_of_the_naive_implementation(job: Job) -> None:
    timeline = simulated(job)
    times = naive_times(job.graph, job.plan, job.costs, job.hardware)
    assert timeline.seconds == pytest.approx(times.seconds)
    for interval in timeline.lane(Lane.COMPUTE):
        assert interval.start == pytest.approx(times.start[interval.name])
    ends = sorted(i.end for i in timeline.intervals if i.lane is not Lane.COMPUTE)
    assert ends == pytest.approx(sorted(times.copy_end.values()))


@given(jobs())
@settings(deadline=None, max_examples=80)
def test_memory_is_that_of_the_naive_implementation(job: Job) -> None:
    plain = tuple(replace(op, inplace=False) for op in job.graph.ops)
    graph = GraphView(ops=plain, results=job.graph.results)
    job = replace(job, graph=graph)
    naive = naive_peak(graph, job.plan, job.costs, job.hardware)
    assert simulated(job).device_peak == naive


@given(jobs())
@settings(deadline=None, max_examples=60)
def test_a_step_takes_as_long_as_its_ops_and_as_each_direction(job: Job) -> None:
    timeline = simulated(job)
    assert timeline.seconds >= job.costs.total * (1 - 1e-9)
    out = job.plan.swapped_out_bytes / job.hardware.d2h
    back = job.plan.swapped_in_bytes / job.hardware.h2d
    assert timeline.seconds >= max(out, back) * (1 - 1e-9)
    assert timeline.copied_bytes(Lane.D2H) == job.plan.swapped_out_bytes
    assert timeline.copied_bytes(Lane.H2D) == job.plan.swapped_in_bytes


@given(jobs())
@settings(deadline=None, max_examples=60)
def test_all_memory_is_given_back_but_for_results(job: Job) -> None:
    timeline = simulated(job)
    kept = {job.graph.roots[name] for name in job.graph.results}
    persistent = {t.name for o in job.graph.ops if o.persistent for t in o.outputs}
    left = sum(job.graph.tensors[name].size for name in kept - persistent)
    curve = timeline.device_curve()
    assert (curve[-1][1] if curve else 0) == left
    host = timeline.host_curve()
    assert (host[-1][1] if host else 0) == 0
    assert all(used >= 0 for _, used in curve)


@given(graph=graphs(), asynchronous=st.booleans())
@settings(deadline=None, max_examples=60)
def test_without_swaps_memory_is_that_of_liveness(
    graph: GraphView, *, asynchronous: bool
) -> None:
    hardware = replace(SLOW, asynchronous=asynchronous)
    timeline = simulate(graph, plan_of(graph), costs_of(graph), hardware)
    assert timeline.device_peak == peak(graph)
    assert timeline.seconds == pytest.approx(len(graph.ops))
