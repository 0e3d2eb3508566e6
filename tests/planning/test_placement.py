"""Plans that can be placed in memory as it will be, not only as it was planned."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lms.ir.graph import GraphView
from lms.ir.liveness import peak
from lms.ir.plan import SwapPlan, validate_plan
from lms.machine.hardware import PRESETS, roofline
from lms.planning import placement
from lms.planning.placement import find_plan, judged, ranked
from lms.planning.problem import (
    Filters,
    FittedPlan,
    Headroom,
    PlanRequest,
    Risk,
    Speeds,
)
from lms.planning.tuning import QUICK
from lms.simulation.allocator import NO_POOL
from lms.simulation.memory import (
    Region,
    allocator_peak,
    peaks_by_region,
)
from tests.graphs import scheduled
from tests.planning.stored import read_step
from tests.strategies import examples

NOTHING = Headroom()
FITTED = FittedPlan(plan=SwapPlan(planner="none", order=()), small_pool=NO_POOL, peak=1)


def request(graph: GraphView, budget: int, headroom: Headroom = NOTHING) -> PlanRequest:
    hardware = PRESETS["v100-pcie"]
    return PlanRequest(
        budget=budget,
        headroom=headroom,
        speeds=Speeds(costs=roofline(graph, hardware), hardware=hardware),
        filters=Filters(),
    )


def planned(
    graph: GraphView, budget: int, headroom: Headroom = NOTHING, **knobs: Any
) -> FittedPlan:
    """A plan, which there is."""
    found = find_plan(graph, request(graph, budget, headroom), **knobs)
    assert found is not None
    return found


@cache
def drawn() -> GraphView:
    return scheduled(read_step("drawn_750").graph)


def regions(budget: int, headroom: Headroom, fitted: FittedPlan) -> list[Region]:
    """Memory of the room's size, of all that there is, and of some between."""
    return [
        Region(
            capacity=budget + headroom.free * percent // 100,
            small_pool=fitted.small_pool,
        )
        for percent in (0, 60, 100)
    ]


@examples(12)
@given(share=st.integers(45, 90))
def test_a_plan_without_doubt_stays_within_bounds_wherever_it_is_placed(
    share: int,
) -> None:
    graph = drawn()
    budget = peak(graph) * share // 100
    headroom = Headroom(free=budget // 10, bound=budget // 20)
    found = planned(graph, budget, headroom)
    validate_plan(graph, found.plan)
    places = regions(budget, headroom, found)
    for reached in peaks_by_region(graph, found.plan, places):
        assert (reached is None) <= (found.risk is Risk.PLACE)
        if found.risk is Risk.NONE:
            assert (reached or 0) <= budget + headroom.bound


def test_a_quick_plan_is_tried_in_fewer_regions_and_stays_within_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []

    def counted(graph: GraphView, plan: SwapPlan, regions: Sequence[Region]) -> Any:
        tried.append(len(regions))
        return peaks_by_region(graph, plan, regions)

    graph = drawn()
    monkeypatch.setattr(placement, "peaks_by_region", counted)
    budget = peak(graph) * 6 // 10
    planned(graph, budget, Headroom(free=budget // 10))
    assert max(tried) > 3
    tried.clear()
    for share in (40, 60, 80):
        budget = peak(graph) * share // 100
        headroom = Headroom(free=budget // 10, bound=budget // 20)
        found = planned(graph, budget, headroom, effort=QUICK)
        validate_plan(graph, found.plan)
        reached = allocator_peak(
            graph, found.plan, capacity=budget, small_pool=found.small_pool
        )
        assert reached is not None
        assert reached <= budget
    assert max(tried) == 3


@pytest.mark.parametrize("percent", [39, 40, 41])
def test_the_walk_lays_tensors_where_the_allocator_does(percent: int) -> None:
    # Little room is left: where the walk took another of two dying inputs to be written
    # over, none of its plans could be placed.
    graph = scheduled(read_step("drawn_300").graph)
    assert planned(graph, peak(graph) * percent // 100).plan.swaps


def test_what_is_kept_of_one_plan_is_not_taken_for_another() -> None:
    graph = drawn()
    plans = [planned(graph, peak(graph) * share // 100).plan for share in (50, 70)]
    ample = 2 * peak(graph)
    expected = [allocator_peak(replace(graph), plan, capacity=ample) for plan in plans]
    assert len(set(expected)) == 2
    for _ in range(2):
        found = [allocator_peak(graph, plan, capacity=ample) for plan in plans]
        assert found == expected


def test_of_plans_about_as_fast_the_one_that_moves_least_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = drawn()
    rooms = [peak(graph) * percent // 100 for percent in (40, 55, 70)]
    found = [planned(graph, budget) for budget in rooms]
    options = [
        replace(option, seconds=seconds)
        for option, seconds in zip(found, (1.000, 1.005, 1.020), strict=True)
    ]
    moved = [option.plan.moved_bytes for option in options]
    assert moved[0] > moved[1] > moved[2]
    monkeypatch.setattr(placement, "_surest", lambda *_: options)
    monkeypatch.setattr(placement, "_in_time", lambda *_: [])
    assert planned(graph, rooms[-1]).plan == options[1].plan


def test_a_budget_below_the_limit_bounds_what_is_in_use() -> None:
    graph = drawn()
    budget = peak(graph) * 6 // 10
    found = planned(graph, budget, Headroom(free=100 * budget))
    assert found.risk is Risk.NONE
    roomy = allocator_peak(
        graph, found.plan, capacity=100 * budget, small_pool=found.small_pool
    )
    assert roomy is not None
    assert roomy <= budget


@pytest.mark.parametrize(
    ("peaks", "promised", "risk"),
    [
        ([32] * 6 + [38], 38, Risk.NONE),
        ([38] + [32] * 6, 38, Risk.NONE),
        ([32] * 5 + [None, 32], FITTED.peak, Risk.PLACE),  # one has no place for it
    ],
)
def test_the_highest_peak_of_all_regions_is_promised(
    peaks: list[int | None],
    promised: int,
    risk: Risk,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = drawn()
    monkeypatch.setattr(placement, "peaks_by_region", lambda *_: iter(peaks))
    most = peak(graph)
    seven = request(graph, most, Headroom(free=most // 25))
    _, found = judged(graph, FITTED, seven)
    assert (found.peak, found.risk) == (promised, risk)


def test_a_room_too_tight_to_be_sure_gets_a_plan_that_says_so() -> None:
    graph = scheduled(read_step("drawn_450").graph)
    budget = peak(graph)
    while find_plan(graph, request(graph, budget * 97 // 100)) is not None:
        budget = budget * 97 // 100
    headroom = Headroom(free=budget // 50)
    found = planned(graph, budget, headroom)
    assert found.risk is not Risk.NONE
    assert (
        allocator_peak(graph, found.plan, capacity=budget, small_pool=found.small_pool)
        is not None
    )


def test_free_fragments_of_more_than_half_the_budget_hold_a_plans_tensors() -> None:
    graph = drawn()
    budget = peak(graph)
    holes = (budget * 3 // 10, budget // 4)
    found = planned(graph, budget, Headroom(holes=holes))
    assert found.risk is Risk.NONE
    end = budget - sum(holes)
    assert found.peak > end  # the fragments hold a part


def test_large_tensors_move_first_and_small_ones_where_they_must() -> None:
    graph = drawn()
    most = peak(graph)
    sizes: list[int] = []
    for share in (70, 30):
        found = planned(graph, most * share // 100)
        sizes.append(min(swap.size for swap in found.plan.swaps))
    assert sizes[0] >= most // 200 > sizes[1]


def test_of_slow_plans_the_faster_comes_first_and_of_fast_ones_what_moves_less() -> (
    None
):
    graph = drawn()
    found = planned(graph, peak(graph) // 2)
    swaps = found.plan.swaps
    assert len(swaps) > 4
    # The slower, the less it moves.
    options = [
        replace(found, seconds=seconds, plan=replace(found.plan, swaps=swaps[:kept]))
        for seconds, kept in ((1.5, 1), (1.4, 2), (1.001, 3), (1.0, 4))
    ]
    times = [option.seconds for option in ranked(options)]
    assert times == [1.001, 1.0, 1.4, 1.5]
