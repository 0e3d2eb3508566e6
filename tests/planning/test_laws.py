"""Laws of every planner on random graphs; then laws of the budget planner alone.

A planner here is a function that draws its own knobs, so that one suite serves all.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lms.ir.graph import GraphView, op_of
from lms.ir.liveness import buffers, lower_bound, peak
from lms.ir.plan import Swap, SwapIn, SwapPlan, validate_plan
from lms.planning.candidates import movable
from lms.planning.eviction import least_room
from lms.planning.tflms_rule import SyncMode, ThresholdRule
from lms.simulation.memory import simulate_memory
from tests.graphs import scheduled
from tests.planning.counting import plan_in_bytes
from tests.planning.ruled import plan_by_threshold
from tests.strategies import examples, graphs

# What may move, and what is ordered: everything, or what is not small.
_LEAST_SIZES = st.sampled_from((1, 1, 9, 17))

RULES = st.builds(
    ThresholdRule,
    swapout_threshold=st.integers(1, 5),
    swapin_ahead=st.integers(1, 5),
    swapin_groupby=st.integers(0, 4),
    sync_mode=st.sampled_from(SyncMode),
)

Planner: TypeAlias = Callable[[GraphView], SwapPlan]


@st.composite
def ordered_graphs(draw: st.DrawFn) -> GraphView:
    """A graph in the order it came in, or in the scheduler's."""
    graph = draw(graphs())
    return scheduled(graph) if draw(st.booleans()) else graph


@st.composite
def budget_planners(draw: st.DrawFn, graph: GraphView) -> Planner:
    """The budget planner with a room between the least and the unplanned peak."""
    least_size = draw(_LEAST_SIZES)
    able = movable(graph, min_bytes=least_size)
    least, _ = least_room(graph, movable=able, min_bytes=least_size)
    budget = draw(st.integers(least, max(least, peak(graph))))

    def planner(graph: GraphView) -> SwapPlan:
        return plan_in_bytes(graph, budget, movable=able, min_bytes=least_size)

    return planner


@st.composite
def threshold_planners(draw: st.DrawFn, graph: GraphView) -> Planner:
    """IBM's rule with any knobs."""
    least_size = draw(_LEAST_SIZES)
    able = movable(graph, min_bytes=least_size)
    rule = draw(RULES)
    levels = st.one_of(st.integers(0, 9), st.sampled_from((":", "2:5", "4:", ":3")))
    serialization = draw(st.lists(levels, max_size=2))
    by_size = draw(st.sampled_from((0, 0, 50)))

    def planner(graph: GraphView) -> SwapPlan:
        return plan_by_threshold(
            graph,
            rule,
            movable=able,
            min_bytes=least_size,
            serialization=serialization,
            serialization_by_size=by_size,
        )

    return planner


PLANNERS = {"budget": budget_planners, "threshold": threshold_planners}

every_planner = pytest.mark.parametrize(
    "planners", PLANNERS.values(), ids=PLANNERS.keys()
)
Planners: TypeAlias = Callable[[GraphView], st.SearchStrategy[Planner]]


@every_planner
@given(data=st.data())
@examples(100)
def test_a_plan_can_be_obeyed(planners: Planners, data: st.DataObject) -> None:
    graph = data.draw(ordered_graphs())
    plan = data.draw(planners(graph))(graph)
    validate_plan(graph, plan)


@every_planner
@given(data=st.data())
@examples(40)
def test_a_plan_goes_through_json(planners: Planners, data: st.DataObject) -> None:
    graph = data.draw(ordered_graphs())
    plan = data.draw(planners(graph))(graph)
    assert SwapPlan.from_json(plan.to_json()) == plan


@every_planner
@given(data=st.data())
@examples(40)
def test_the_same_graph_gives_the_same_plan(
    planners: Planners, data: st.DataObject
) -> None:
    graph = data.draw(ordered_graphs())
    planner = data.draw(planners(graph))
    again = GraphView(ops=graph.ops, results=graph.results)
    assert planner(graph) == planner(again)


@every_planner
@given(data=st.data())
@examples(60)
def test_only_movable_tensors_move_and_only_far_readers_read_copies(
    planners: Planners, data: st.DataObject
) -> None:
    graph = data.draw(ordered_graphs())
    plan = data.draw(planners(graph))(graph)
    able = movable(graph, min_bytes=1)
    position = {name: i for i, name in enumerate(plan.order)}
    live = {buffer.root: buffer for buffer in buffers(graph.reordered(plan.order))}
    assert {swap.tensor for swap in plan.swaps} <= able
    for swap in plan.swaps:
        far = [position[name] for copy in swap.swap_ins for name in copy.readers]
        near = [use for use in live[swap.tensor].uses if use not in far]
        assert max(near, default=-1) < min(far)


@every_planner
@given(data=st.data())
@examples(100)
def test_no_op_waits_for_itself(planners: Planners, data: st.DataObject) -> None:
    graph = data.draw(ordered_graphs())
    plan = data.draw(planners(graph))(graph)
    assert everything_can_run(graph, plan)


def everything_can_run(graph: GraphView, plan: SwapPlan) -> bool:
    """Run whatever has all it waits for, until nothing does; is nothing left?"""
    waits = waits_of_ops(graph, plan)
    released: list[set[str]] = [set() for _ in range(len(plan.chain) + 1)]
    link_of = {name: i for i, name in enumerate(plan.chain)}
    for swap in plan.swaps:
        out = f"out {swap.tensor}"
        waits[out] = {op_of(swap.tensor)}
        if swap.release in link_of:
            released[link_of[swap.release]].add(out)
        elif swap.release is not None:
            waits[swap.release].add(out)
    # A link waits for the one before it, and for the swap-outs that it releases.
    for i, name in enumerate(plan.chain):
        waits[name] |= released[i] | set(plan.chain[max(0, i - 1) : i])
    # A swap-in waits for its trigger, and for what the next link releases.
    for name, swap, copy in copies_back(plan):
        waits[name] = {f"out {swap.tensor}"}
        if copy.trigger in link_of:
            waits[name] |= released[link_of[copy.trigger] + 1]
        if copy.trigger is not None:
            waits[name].add(copy.trigger)
    done: set[str] = set()
    while ready := [name for name in waits if name not in done and waits[name] <= done]:
        done.update(ready)
    return len(done) == len(waits)


def waits_of_ops(graph: GraphView, plan: SwapPlan) -> dict[str, set[str]]:
    """Return the names that each op waits for: inputs, or copies read instead."""
    instead = {
        (swap.tensor, reader): name
        for name, swap, copy in copies_back(plan)
        for reader in copy.readers
    }
    waits = {op.name: set(op.controls) for op in graph.ops}
    for op in graph.ops:
        for name in op.inputs:
            source = instead.get((graph.roots[name], op.name), op_of(name))
            waits[op.name].add(source)
    return waits


def copies_back(plan: SwapPlan) -> Iterator[tuple[str, Swap, SwapIn]]:
    for swap in plan.swaps:
        for number, copy in enumerate(swap.swap_ins):
            yield f"in {number} {swap.tensor}", swap, copy


# ------------------------------------------------------------------- the budget planner


@given(data=st.data())
@examples(120)
def test_a_budget_plan_never_exceeds_its_room(data: st.DataObject) -> None:
    graph = data.draw(ordered_graphs())
    least_size = data.draw(_LEAST_SIZES)
    able = movable(graph, min_bytes=least_size)
    least, _ = least_room(graph, movable=able, min_bytes=least_size)
    budget = data.draw(st.integers(least, max(least, peak(graph))))
    plan = plan_in_bytes(graph, budget, movable=able, min_bytes=least_size)
    assert simulate_memory(graph, plan).device_peak <= budget


@given(ordered_graphs(), _LEAST_SIZES)
@examples(60)
def test_a_budget_plan_without_need_has_no_swaps(
    graph: GraphView, least_size: int
) -> None:
    able = movable(graph, min_bytes=least_size)
    plan = plan_in_bytes(graph, peak(graph), movable=able, min_bytes=least_size)
    assert plan.swaps == ()


@given(ordered_graphs(), _LEAST_SIZES)
@examples(60)
def test_the_least_room_lies_between_the_lower_bound_and_the_peak(
    graph: GraphView, least_size: int
) -> None:
    able = movable(graph, min_bytes=least_size)
    least, _ = least_room(graph, movable=able, min_bytes=least_size)
    assert lower_bound(graph) <= least <= peak(graph)
