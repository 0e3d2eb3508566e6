"""Copies in time: worked out by hand, then laws on random graphs."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from lms.ir.graph import GraphView
from lms.ir.liveness import peak
from lms.ir.plan import SwapPlan, validate_plan
from lms.machine.hardware import Costs, Hardware
from lms.planning.candidates import movable
from lms.planning.eviction import least_room
from lms.planning.prefetch import copy_in_time, start_in_time
from lms.planning.problem import Speeds
from lms.simulation.executor import simulate
from lms.simulation.memory import (
    Region,
    allocator_curve,
    peaks_by_region,
    simulate_memory,
)
from tests.graphs import graph_of, make_op, one_swap, scheduled
from tests.planning.counting import plan_in_bytes
from tests.strategies import examples, graphs

AMPLE = Region(capacity=1 << 20)

LINK = Hardware(
    name="link", memory=1000, flops=1.0, memory_bandwidth=1.0, h2d=10.0, d2h=1e9
)

# a (20) is read by b and, much later, by f; c, d and e are small.
LONG = graph_of(
    make_op("a", 20),
    make_op("b", 90, "a"),
    make_op("c", 1, "b"),
    make_op("d", 1, "c"),
    make_op("e", 1, "d"),
    make_op("f", 1, "e", "a"),
)


def speeds_of(graph: GraphView, seconds: float = 1.0) -> Speeds:
    costs = {op.name: seconds for op in graph.ops}
    return Speeds(costs=Costs(seconds=costs, source="measured"), hardware=LINK)


def peaks_of(graph: GraphView, plan: SwapPlan) -> list[int] | None:
    """Return a plan's peak in ample memory; None if there is not enough."""
    (peak,) = peaks_by_region(graph, plan, [AMPLE])
    return None if peak is None else [peak]


def early_plans(
    graph: GraphView, plan: SwapPlan, speeds: Speeds
) -> list[tuple[SwapPlan, Sequence[int]]]:
    """Return plans that fit in ample memory."""
    used = allocator_curve(graph, plan, AMPLE)
    assert used is not None
    return copy_in_time(
        graph,
        plan,
        speeds,
        usage=(used, AMPLE.capacity),
        judge=lambda option: peaks_of(graph, option),
    )


def triggers(plan: SwapPlan) -> list[str | None]:
    return [copy.trigger for swap in plan.swaps for copy in swap.swap_ins]


def evicted_plan() -> SwapPlan:
    """a:0 leaves after b, and comes back just before f."""
    return one_swap(LONG, ("e", "f"), release="c", chain="abcdef")


def test_a_copy_starts_as_late_as_it_can_be_there_in_time() -> None:
    plan = evicted_plan()
    usage = simulate_memory(LONG, plan).device
    # f starts at 5; the copy takes 2: it starts when c has ended, at 3.
    early = start_in_time(LONG, plan, speeds_of(LONG), usage=usage, budget=1000)
    assert triggers(early) == ["c"]
    slow = start_in_time(
        LONG, plan, speeds_of(LONG), usage=usage, budget=1000, slack=1.2
    )
    assert triggers(slow) == ["b"]


def test_a_copy_waits_for_room() -> None:
    plan = evicted_plan()
    usage = simulate_memory(LONG, plan).device
    #                      a   b    c   d  e  f
    assert usage == (20, 110, 91, 2, 2, 22)
    slow = start_in_time(
        LONG, plan, speeds_of(LONG), usage=usage, budget=110, slack=9.0
    )
    assert triggers(slow) == ["c"]  # beside c there is no room for 20 more


def test_a_step_is_as_fast_as_its_ops_when_there_is_time_to_copy() -> None:
    plan = evicted_plan()
    speeds = speeds_of(LONG)
    assert simulate(LONG, plan, speeds.costs, LINK).seconds > 7
    options = early_plans(LONG, plan, speeds)
    seconds = [simulate(LONG, p, speeds.costs, LINK).seconds for p, _ in options]
    assert min(seconds) < 6.001


@given(data=st.data(), graph=graphs(), rate=st.sampled_from((5.0, 50.0, 500.0)))
@examples(60)
def test_copies_in_time_stay_in_the_room(
    data: st.DataObject, graph: GraphView, rate: float
) -> None:
    graph = scheduled(graph)
    able = movable(graph, min_bytes=1)
    least, _ = least_room(graph, movable=able, min_bytes=1)
    budget = data.draw(st.integers(least, max(least, peak(graph))))
    plan = plan_in_bytes(graph, budget, movable=able, min_bytes=1)
    hardware = replace(LINK, h2d=rate, d2h=rate)
    speeds = replace(speeds_of(graph), hardware=hardware)
    options = early_plans(graph, plan, speeds)
    for option, peaks in options:
        assert option != plan
        validate_plan(graph, option)
        assert peaks_of(graph, option) == peaks
    usage = simulate_memory(graph, plan).device
    early = start_in_time(graph, plan, speeds, usage=usage, budget=budget, slack=3.0)
    assert simulate_memory(graph, early).device_peak <= budget
