"""Memory that a step may use of a device."""

from lms.planning.problem import MemoryBudget, budget_in
from lms.units import MIB

LIMIT = 320 * MIB


def _room(budget: int | None) -> MemoryBudget:
    return budget_in(LIMIT, asked=budget, persistent=21 * MIB)


def test_a_budget_beyond_the_device_is_all_that_the_device_has() -> None:
    whole = _room(None)
    assert whole.is_whole_device
    assert whole.step < whole.free < LIMIT
    most = LIMIT - whole.margin
    for budget in (most, most + 1, LIMIT - 1, LIMIT, 2 * LIMIT):
        assert _room(budget) == whole


def test_more_budget_is_never_less_room() -> None:
    budgets = range(LIMIT // 2, 2 * LIMIT, MIB)
    steps = [budget_in(LIMIT, asked=budget, persistent=MIB).step for budget in budgets]
    assert steps == sorted(steps)


def test_a_budget_that_leaves_room_is_not_the_whole_device() -> None:
    budget = _room(LIMIT // 2)
    assert (budget.total, budget.margin) == (LIMIT // 2, 0)
    assert not budget.is_whole_device
    assert not budget.of(LIMIT // 4).is_whole_device
    whole = _room(None)
    assert whole.of(LIMIT // 4).is_whole_device
    assert budget_in(None, asked=None, persistent=0).is_whole_device
    assert not budget_in(None, asked=MIB, persistent=0).is_whole_device
