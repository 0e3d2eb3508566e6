"""Which plan a step gets, and what is said when it gets none."""

from dataclasses import replace
from typing import Any

import pytest

from lms.errors import BudgetError
from lms.ir.plan import planned_graph, validate_plan
from lms.machine.costs import roofline
from lms.machine.hardware import preset
from lms.planning import strategies as budget_search
from lms.planning.prefetch import Speeds
from lms.planning.problem import MemoryBudget, budget_in
from lms.planning.risk import FittedPlan, Risk
from lms.planning.select import choose_plan, plain_plan
from lms.planning.settings import read_settings
from lms.planning.strategies import best_plan
from lms.units import MIB
from tests.planning.stored import read_step


@pytest.mark.parametrize(
    ("thresholds", "said"),
    [
        (None, r"for op '.*persistent bytes.*Use a smaller batch or volume\.$"),
        ({}, r"for IBM's rule: .*Leave `thresholds` out, or use"),
    ],
)
def test_a_budget_below_what_a_planner_can_do_says_what_would_do(
    thresholds: dict[str, int] | None, said: str
) -> None:
    graph, hardware = read_step("drawn_300").graph, preset("v100-pcie")
    speeds = Speeds(costs=roofline(graph, hardware), hardware=hardware)
    budget = MemoryBudget(total=11 * MIB, margin=0, persistent=10 * MIB)
    asked = read_settings(thresholds=thresholds, budget=budget.total)
    with pytest.raises(BudgetError, match=said) as no:
        choose_plan(graph, plain_plan(graph), asked, budget, lambda: speeds)
    least = no.value.least_bytes
    assert least is not None
    assert least > 11 * MIB
    assert (no.value.op_name is None) is (thresholds is not None)


def test_a_plan_that_only_fits_without_the_holes_is_doubted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, hardware = read_step("drawn_300").graph, preset("v100-pcie")
    speeds = Speeds(costs=roofline(graph, hardware), hardware=hardware)
    chosen: list[FittedPlan | None] = []

    def noted(*args: Any) -> FittedPlan | None:
        chosen.append(best_plan(*args))
        return chosen[-1]

    monkeypatch.setattr(budget_search, "best_plan", noted)
    budget = budget_in(960 * MIB, asked=None, persistent=0)
    budget = replace(budget, holes=(budget.step // 2,))
    plan = choose_plan(
        graph, plain_plan(graph), read_settings(), budget, lambda: speeds
    )
    assert None in chosen
    assert plan.risk is Risk.PLACE
    assert plan.seconds is not None
    validate_plan(planned_graph(graph, plan.plan), plan.plan)


@pytest.mark.parametrize("automatic", [True, False])
def test_only_a_budget_that_was_given_is_a_bound(*, automatic: bool) -> None:
    """The chunk at the end of the device is not split: a tensor may take all of it."""
    limit = 100 * MIB
    margin = 4 * MIB if automatic else 0
    budget = MemoryBudget(
        total=96 * MIB, margin=margin, persistent=16 * MIB, limit=limit
    )
    again = budget.tighter(budget, 94)
    assert again.step < budget.step
    for each in (budget, again):
        bound = budget_search._bound(each)
        assert (each.step + bound > limit) is automatic
        assert automatic or each.step + bound == budget.step


def test_at_the_edge_of_a_device_only_what_has_the_least_sure_room_is_planned() -> None:
    """In a device with more memory the same room is not at its edge."""
    graph, hardware = read_step("two_by_two").graph, preset("v100-pcie")
    speeds = Speeds(costs=roofline(graph, hardware), hardware=hardware)
    moving = read_settings(recompute=False)

    def planned(budget: MemoryBudget) -> FittedPlan:
        return choose_plan(graph, plain_plan(graph), moving, budget, lambda: speeds)

    device = budget_in(55 * MIB, asked=None, persistent=0)
    with pytest.raises(BudgetError) as no:
        planned(device)
    least = no.value.least_bytes
    assert least is not None
    whole = budget_in(least, asked=None, persistent=0)
    assert planned(whole).risk is Risk.NONE
    # Others have taken what is missing: training goes on as well as it can.
    now = replace(whole, persistent=least - 55 * MIB)
    assert planned(whole.tighter(now, 100)).plan.swaps
    beside = budget_in(1024 * MIB, asked=device.total, persistent=0)
    assert planned(beside).peak <= device.step


def test_the_least_budget_counts_ops_that_run_twice_and_is_the_same_for_all() -> None:
    graph, hardware = read_step("own_train_step").graph, preset("v100-pcie")
    speeds = Speeds(costs=roofline(graph, hardware), hardware=hardware)

    def planned(budget: MemoryBudget, **knobs: Any) -> FittedPlan:
        settings = read_settings(**knobs)
        return choose_plan(graph, plain_plan(graph), settings, budget, lambda: speeds)

    def least(size: int, **knobs: Any) -> int:
        with pytest.raises(BudgetError) as no:
            planned(budget_in(size, asked=None, persistent=0), **knobs)
        assert no.value.least_bytes is not None
        return no.value.least_bytes

    found = {least(size * MIB) for size in (20, 30)}
    assert len(found) == 1
    assert max(found) < least(30 * MIB, recompute=False)
    fitted = planned(budget_in(max(found), asked=None, persistent=0))
    assert fitted.risk is Risk.NONE
    validate_plan(planned_graph(graph, fitted.plan), fitted.plan)
