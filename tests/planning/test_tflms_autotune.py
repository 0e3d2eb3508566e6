"""The search for thresholds: worked out on the skip graph, and against the grid."""

import re
from itertools import product
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from lms.errors import BudgetError
from lms.ir.graph import GraphView
from lms.planning.candidates import movable
from lms.planning.tflms_autotune import ThresholdChoice, best_thresholds, grid
from lms.planning.tflms_rule import SyncMode, plan_by_threshold
from lms.simulation.memory import simulate_memory
from tests.graphs import SKIP, make_op
from tests.strategies import graphs

A = frozenset(["a:0"])


def test_thresholds_that_swap_nothing_are_chosen_when_everything_fits() -> None:
    # Five levels, so 5 is the most that is tried of each.
    choice = best_thresholds(SKIP.graph, 190, movable=A, min_bytes=1)
    assert choice == ThresholdChoice(
        swapout_threshold=5,
        swapin_ahead=5,
        swapin_groupby=5,
        peak=190,
        swapped_bytes=0,
    )


def test_the_largest_threshold_that_fits_is_taken_then_the_largest_ahead() -> None:
    # Only e is far, from threshold 3 down. With ahead 1 its copy starts after c; with
    # ahead 2 after b, which makes 190 at c; from 3 on it waits for d. Bisection looks
    # at 3, 4 and 5.
    choice = best_thresholds(skip_with_room_beside_d(), 189, movable=A, min_bytes=1)
    assert (choice.swapout_threshold, choice.swapin_groupby) == (3, 5)
    assert choice.swapin_ahead == 5
    assert choice.swapped_bytes == 200


def skip_with_room_beside_d() -> GraphView:
    """The skip graph with scratch at c in place of a large tensor: 120 at d."""
    a, b, _, d, e = SKIP.graph.ops
    return GraphView(ops=(a, b, make_op("c", 10, "b", scratch=70), d, e))


def test_what_the_user_gave_is_kept() -> None:
    graph = skip_with_room_beside_d()
    choice = best_thresholds(
        graph,
        189,
        movable=A,
        min_bytes=1,
        swapout_threshold=2,
        swapin_ahead=1,
        swapin_groupby=3,
    )
    kept = choice.swapout_threshold, choice.swapin_ahead, choice.swapin_groupby
    assert kept == (2, 1, 3)


def test_a_given_threshold_that_does_not_fit_is_refused() -> None:
    with pytest.raises(BudgetError, match=r"190 B.* swapout_threshold=4"):
        best_thresholds(SKIP.graph, 189, movable=A, min_bytes=1, swapout_threshold=4)


def test_the_least_peak_and_its_setting_are_named_when_nothing_fits() -> None:
    # The copy for e starts after c, and beside d that makes 190 again.
    with pytest.raises(BudgetError, match="swapin_ahead=1, swapin_groupby=0") as caught:
        best_thresholds(SKIP.graph, 100, movable=A, min_bytes=1)
    assert caught.value.least_bytes == 190


def test_waiting_for_the_last_input_can_make_it_fit() -> None:
    choice = best_thresholds(
        SKIP.graph, 120, movable=A, min_bytes=1, sync_mode=SyncMode.SWAP_IN
    )
    assert (choice.swapout_threshold, choice.peak) == (3, 120)


def test_a_grid_has_every_combination_in_order() -> None:
    choices = grid(
        SKIP.graph,
        thresholds=(3, 4),
        aheads=(1, 3),
        groupbys=(0,),
        movable=A,
        min_bytes=1,
    )
    found = [
        (c.swapout_threshold, c.swapin_ahead, c.peak, c.swapped_bytes) for c in choices
    ]
    assert found == [(3, 1, 190, 200), (3, 3, 120, 200), (4, 1, 190, 0), (4, 3, 190, 0)]


def test_a_graph_without_ops_fits() -> None:
    empty = GraphView(ops=())
    assert best_thresholds(empty, 0, movable=A, min_bytes=1).peak == 0


@given(graphs(max_ops=15), st.integers(0, 300), st.sampled_from(SyncMode))
@settings(deadline=None, max_examples=40)
def test_what_is_chosen_fits_and_has_the_peak_it_says(
    graph: GraphView, budget: int, mode: SyncMode
) -> None:
    able = movable(graph, min_bytes=1)
    try:
        choice = best_thresholds(
            graph, budget, movable=able, min_bytes=1, sync_mode=mode
        )
    except BudgetError:
        reject()
    assert choice.peak <= budget
    plan = plan_by_threshold(
        graph,
        swapout_threshold=choice.swapout_threshold,
        swapin_ahead=choice.swapin_ahead,
        swapin_groupby=choice.swapin_groupby,
        movable=able,
        min_bytes=1,
        sync_mode=mode,
    )
    assert simulate_memory(graph, plan).device_peak == choice.peak
    assert plan.swapped_out_bytes + plan.swapped_in_bytes == choice.swapped_bytes


@given(graphs(max_ops=15))
@settings(deadline=None, max_examples=20)
def test_a_room_of_the_least_peak_found_fits(graph: GraphView) -> None:
    able = movable(graph, min_bytes=1)
    with pytest.raises(BudgetError) as caught:
        best_thresholds(graph, -1, movable=able, min_bytes=1)
    least = caught.value.least_bytes
    assert least is not None
    kept = re.findall(r"(\w+)=(\d+)", str(caught.value))
    setting: dict[str, Any] = {name: int(value) for name, value in kept}
    choice = best_thresholds(graph, least, movable=able, min_bytes=1, **setting)
    assert choice.peak == least


@given(graphs(max_ops=12))
@settings(deadline=None, max_examples=20)
def test_a_grid_agrees_with_the_search_where_both_look(graph: GraphView) -> None:
    able = movable(graph, min_bytes=1)
    tried = (1, 2, 5)
    choices = grid(
        graph,
        thresholds=tried,
        aheads=tried,
        groupbys=(0, 2),
        movable=able,
        min_bytes=1,
    )
    for (threshold, ahead, groupby), choice in zip(
        product(tried, tried, (0, 2)), choices, strict=True
    ):
        assert choice == best_thresholds(
            graph,
            choice.peak,
            movable=able,
            min_bytes=1,
            swapout_threshold=threshold,
            swapin_ahead=ahead,
            swapin_groupby=groupby,
        )
