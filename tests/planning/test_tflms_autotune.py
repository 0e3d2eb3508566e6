"""The search for thresholds: worked out on the skip graph, and against the grid."""

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from lms.errors import BudgetError
from lms.ir.graph import GraphView
from lms.ir.liveness import peak
from lms.planning.candidates import movable, smallest_worth_moving
from lms.planning.tflms_rule import SyncMode, ThresholdRule, levels
from lms.simulation.memory import simulate_memory
from tests.graphs import SKIP, make_op
from tests.planning.ruled import (
    ThresholdChoice,
    best_thresholds,
    grid,
    plan_by_threshold,
)
from tests.planning.stored import read_step
from tests.strategies import examples, graphs

A = frozenset(["a:0"])


def knobs(choice: ThresholdChoice) -> tuple[int, int, int, SyncMode]:
    """Threshold, ahead, groupby and sync mode."""
    rule = choice.rule
    return (
        rule.swapout_threshold,
        rule.swapin_ahead,
        rule.swapin_groupby,
        rule.sync_mode,
    )


def test_thresholds_that_swap_nothing_are_chosen_when_everything_fits() -> None:
    # Five levels: no reader is farther than 5. The other knobs say nothing then.
    choice = best_thresholds(SKIP.graph, 190, movable=A, min_bytes=1)
    assert knobs(choice) == (5, 1, 0, SyncMode.OFF)
    assert (choice.peak, choice.swapped_bytes) == (190, 0)


def test_the_largest_threshold_that_fits_is_taken_then_the_largest_ahead() -> None:
    # Only e is far, from threshold 3 down. With ahead 1 its copy starts after c; with
    # ahead 2 after b, which makes 190 at c; from 3 on it waits for d. Bisection looks
    # at 3, 4 and 5.
    choice = best_thresholds(skip_with_room_beside_d(), 189, movable=A, min_bytes=1)
    assert knobs(choice) == (3, 5, 5, SyncMode.OFF)
    assert choice.swapped_bytes == 200


def skip_with_room_beside_d() -> GraphView:
    """The skip graph with scratch at c in place of a large tensor: 120 at d."""
    a, b, _, d, e = SKIP.graph.ops
    return GraphView(ops=(a, b, make_op("c", 10, "b", scratch=70), d, e))


def test_the_sync_mode_is_raised_until_a_threshold_of_one_fits() -> None:
    # Off and swap-out start the copy for e after c, and beside d that makes 190. With
    # swap-in it waits for d: 120. So threshold 3 is found, and the rest is not sought.
    choice = best_thresholds(SKIP.graph, 189, movable=A, min_bytes=1)
    assert knobs(choice) == (3, 1, 0, SyncMode.SWAP_IN)
    assert choice.peak == 120


def test_a_given_threshold_that_does_not_fit_so_either_is_refused() -> None:
    with pytest.raises(BudgetError, match=r"190 B.* swapout_threshold=4"):
        best_thresholds(SKIP.graph, 189, movable=A, min_bytes=1, swapout_threshold=4)


def test_the_least_peak_and_its_setting_are_named_when_nothing_fits() -> None:
    with pytest.raises(BudgetError, match="groupby=0, sync_mode='swap-in'") as caught:
        best_thresholds(SKIP.graph, 100, movable=A, min_bytes=1)
    assert caught.value.least_bytes == 120


@pytest.mark.parametrize("part", [0.9, 0.4, 0.24, 0.2])
def test_the_unet_gets_what_ibms_search_finds(part: float) -> None:
    step = read_step("unet3d")
    min_bytes = smallest_worth_moving(peak(step.graph))
    able = movable(step.graph, min_bytes=min_bytes)
    budget = int(part * peak(step.graph))

    def fits(threshold: int, ahead: int, groupby: int, mode: int) -> bool:
        rule = ThresholdRule(
            swapout_threshold=threshold,
            swapin_ahead=ahead,
            swapin_groupby=groupby,
            sync_mode=SyncMode(mode),
        )
        plan = plan_by_threshold(step.graph, rule, movable=able, min_bytes=min_bytes)
        return simulate_memory(step.graph, plan).device_peak <= budget

    wanted = as_ibm_searches(1 + max(levels(step.graph).values()), fits)
    if wanted is None:
        with pytest.raises(BudgetError):
            best_thresholds(step.graph, budget, movable=able, min_bytes=min_bytes)
        return
    choice = best_thresholds(step.graph, budget, movable=able, min_bytes=min_bytes)
    *numbers, mode = knobs(choice)
    assert (*numbers, mode.value) == wanted


def as_ibm_searches(
    size: int, fits: Callable[[int, int, int, int], bool]
) -> tuple[int, int, int, int] | None:
    """The search of TFLMS v2 in steps as it takes them, all knobs left to it."""
    if fits(size, 1, 0, 0):
        return size, 1, 0, 0
    mode = 0
    while not fits(1, 1, 0, mode):
        mode += 1
        if mode > 3:
            return None
    threshold = last_that_fits(1, 1, size, lambda m: fits(m, 1, 0, mode))
    if mode >= 2:
        return threshold, 1, 0, mode
    ahead = last_that_fits(1, 1, size, lambda m: fits(threshold, m, 0, mode))
    if fits(threshold, ahead, size, mode):
        return threshold, ahead, size, mode
    left, right = 0, size
    while left <= right:
        middle = (left + right) // 2
        if fits(threshold, ahead, middle, mode):
            return threshold, ahead, middle, mode
        right = middle - 1
    return threshold, ahead, 0, mode


def last_that_fits(
    known: int, left: int, right: int, fits: Callable[[int], bool]
) -> int:
    """Bisect; what is known to fit where nothing else does."""
    while left <= right:
        middle = (left + right) // 2
        if fits(middle):
            known, left = middle, middle + 1
        else:
            right = middle - 1
    return known


def test_a_graph_without_ops_fits() -> None:
    empty = GraphView(ops=())
    assert best_thresholds(empty, 0, movable=A, min_bytes=1).peak == 0


@given(graphs(max_ops=15), st.integers(0, 300), st.sampled_from(SyncMode))
@examples(40)
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
    assert choice.rule.sync_mode.value >= mode.value
    plan = plan_by_threshold(graph, choice.rule, movable=able, min_bytes=1)
    assert simulate_memory(graph, plan).device_peak == choice.peak
    assert plan.swapped_out_bytes + plan.swapped_in_bytes == choice.swapped_bytes


@given(graphs(max_ops=15))
@examples(20)
def test_a_room_of_the_least_peak_found_fits(graph: GraphView) -> None:
    able = movable(graph, min_bytes=1)
    with pytest.raises(BudgetError) as caught:
        best_thresholds(graph, -1, movable=able, min_bytes=1)
    least = caught.value.least_bytes
    assert least is not None
    choice = best_thresholds(graph, least, movable=able, min_bytes=1)
    assert choice.peak <= least


@given(graphs(max_ops=12))
@examples(20)
def test_a_grid_agrees_with_the_search_where_both_look(graph: GraphView) -> None:
    able = movable(graph, min_bytes=1)
    tried = (1, 2, 5)
    choices = grid(graph, tried, tried, (0, 2), movable=able)
    for (threshold, ahead, groupby), choice in zip(
        product(tried, tried, (0, 2)), choices, strict=True
    ):
        wanted = best_thresholds(
            graph,
            choice.peak,
            movable=able,
            min_bytes=1,
            swapout_threshold=threshold,
            swapin_ahead=ahead,
            swapin_groupby=groupby,
        )
        assert choice == wanted
