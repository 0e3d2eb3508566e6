"""The simulator of time: steps worked out by hand, then a second implementation."""

import gc
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lms.errors import PlanError
from lms.ir.graph import GraphView
from lms.ir.liveness import peak
from lms.ir.plan import Swap, SwapIn, SwapPlan
from lms.machine.hardware import Costs, Hardware
from lms.planning.candidates import movable
from lms.simulation.executor import collector_paused, simulate
from lms.simulation.timeline import Cause, Lane, Timeline, curve
from tests.graphs import (
    SKIP,
    graph_of,
    make_op,
    one_of_two_written_over,
    one_swap,
    scheduled,
    unplanned,
)
from tests.planning.ruled import plan_by_threshold
from tests.planning.test_laws import RULES, budget_planners
from tests.simulation.naive_executor import naive_peak, naive_times
from tests.strategies import examples, graphs

# 10 bytes per second to the device, 20 back; launches take no time.
SLOW = Hardware(
    name="slow", memory=1000, flops=1.0, memory_bandwidth=1.0, h2d=10.0, d2h=20.0
)


def costs_of(graph: GraphView, seconds: float = 1.0) -> Costs:
    return Costs(seconds={op.name: seconds for op in graph.ops}, source="measured")


def spans(timeline: Timeline, lane: Lane) -> list[tuple[str, float, float]]:
    return [(i.name, i.start, i.end) for i in timeline.lane(lane)]


# SKIP: a (100) -> b (10) -> c (80) -> d (10) -> e (10), and e reads a.


def test_ops_run_one_after_the_other() -> None:
    graph = SKIP.graph
    timeline = simulate(graph, unplanned(graph), costs_of(graph), SLOW)
    assert timeline.seconds == 5.0
    assert timeline.utilisation == 1.0
    assert timeline.stalls == ()
    assert timeline.device_peak == peak(graph)


def test_an_op_waits_for_the_room_of_a_copy_out_and_for_a_copy_in() -> None:
    graph = SKIP.graph
    plan = one_swap(graph, ("c", "e"), release="c", chain="abcde")
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
    assert max(used for _, used in curve(timeline.host_requests)) == 100


def test_launches_wait_for_a_swap_in_that_has_its_trigger() -> None:
    graph = SKIP.graph
    plan = one_swap(graph, ("b", "e"), chain="abcde")
    fast = replace(SLOW, d2h=1e9)
    # The host launches a and b at once; c waits until the swap-in is launched, at 1,
    # when the swap-out has ended. So the swap-in waits for a and b alone.
    timeline = simulate(graph, plan, costs_of(graph), fast)
    assert [start for _, start, _ in spans(timeline, Lane.H2D)] == [2.0]
    # Where nothing is ordered the host launches c and d too: they go first.
    timeline = simulate(graph, replace(plan, chain=()), costs_of(graph), fast)
    assert [start for _, start, _ in spans(timeline, Lane.H2D)] == [4.0]


def test_a_host_that_is_slower_than_its_device_is_the_cause_of_gaps() -> None:
    graph = SKIP.graph
    slow = replace(SLOW, launch=3.0)
    timeline = simulate(graph, unplanned(graph), costs_of(graph), slow)
    assert timeline.seconds == 4 * 3.0 + 1.0
    assert {stall.cause for stall in timeline.stalls} == {Cause.LAUNCH}


@pytest.mark.parametrize("reads", [("b", "a"), ("a", "b")])
def test_an_op_writes_over_the_first_of_its_inputs_that_can_be(
    reads: tuple[str, str],
) -> None:
    graph = one_of_two_written_over(reads)
    played = simulate(graph, unplanned(graph), costs_of(graph), SLOW)
    freed = next(request.key for request in played.requests if request.size < 0)
    assert ("a", "b")[freed] == reads[1]


def test_a_plan_that_waits_for_itself_is_refused() -> None:
    # a comes back for e only when w has left, which is made of e.
    graph = graph_of(
        make_op("a", 8),
        make_op("b", 8, "a"),
        make_op("c", 8, "b"),
        make_op("e", 8, "c", "a"),
        make_op("w", 8, "e"),
        make_op("x", 8, "w"),
        make_op("y", 8, "x", "w"),
    )
    plan = one_swap(graph, ("c", "e"), chain="abcxy")
    copy = SwapIn(trigger="x", readers=("y",))
    other = Swap(tensor="w:0", size=8, release="x", swap_ins=(copy,))
    plan = replace(plan, swaps=(*plan.swaps, other))
    with pytest.raises(PlanError, match="cycle"):
        simulate(graph, plan, costs_of(graph), SLOW)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A step, how it is planned, and where it runs."""

    graph: GraphView
    plan: SwapPlan
    costs: Costs
    hardware: Hardware


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """A random step with a plan, costs and links without ties."""
    graph = scheduled(draw(graphs()))
    if draw(st.booleans()):
        plan = draw(budget_planners(graph))(graph)
    else:
        plan = plan_by_threshold(
            graph,
            draw(RULES),
            movable=movable(graph, min_bytes=1),
            min_bytes=1,
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
@examples(80)
def test_times_are_those_of_the_naive_implementation(job: Job) -> None:
    timeline = simulated(job)
    times = naive_times(job.graph, job.plan, job.costs, job.hardware)
    assert timeline.seconds == pytest.approx(times.seconds)
    for interval in timeline.lane(Lane.COMPUTE):
        assert interval.start == pytest.approx(times.start[interval.name])
    ends = sorted(i.end for i in timeline.intervals if i.lane is not Lane.COMPUTE)
    assert ends == pytest.approx(sorted(times.copy_end.values()))


@given(jobs())
@examples(80)
def test_memory_is_that_of_the_naive_implementation(job: Job) -> None:
    plain = tuple(replace(op, inplace=False) for op in job.graph.ops)
    graph = GraphView(ops=plain, results=job.graph.results)
    job = replace(job, graph=graph)
    naive = naive_peak(graph, job.plan, job.costs, job.hardware)
    assert simulated(job).device_peak == naive


@given(jobs())
@examples(60)
def test_a_step_takes_as_long_as_its_ops_and_as_each_direction(job: Job) -> None:
    timeline = simulated(job)
    assert timeline.seconds >= job.costs.total * (1 - 1e-9)
    out = job.plan.swapped_out_bytes / job.hardware.d2h
    back = job.plan.swapped_in_bytes / job.hardware.h2d
    assert timeline.seconds >= max(out, back) * (1 - 1e-9)
    assert timeline.copied_bytes(Lane.D2H) == job.plan.swapped_out_bytes
    assert timeline.copied_bytes(Lane.H2D) == job.plan.swapped_in_bytes


@given(jobs())
@examples(60)
def test_all_memory_is_given_back_but_for_results(job: Job) -> None:
    timeline = simulated(job)
    kept = {job.graph.roots[name] for name in job.graph.results}
    persistent = {t.name for o in job.graph.ops if o.persistent for t in o.outputs}
    left = sum(job.graph.tensors[name].size for name in kept - persistent)
    device = curve(timeline.requests)
    assert (device[-1][1] if device else 0) == left
    host = curve(timeline.host_requests)
    assert (host[-1][1] if host else 0) == 0
    assert all(used >= 0 for _, used in device)


@given(graph=graphs())
@examples(60)
def test_without_swaps_memory_is_that_of_liveness(graph: GraphView) -> None:
    timeline = simulate(graph, unplanned(graph), costs_of(graph), SLOW)
    assert timeline.device_peak == peak(graph)
    assert timeline.seconds == pytest.approx(len(graph.ops))


def test_the_garbage_collector_rests_while_plans_are_made() -> None:
    with collector_paused():
        assert not gc.isenabled()
    assert gc.isenabled()
