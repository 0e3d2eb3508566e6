"""Which plan a step gets, and what is said when it gets none."""

from dataclasses import replace
from typing import Any, cast

import pytest

from lms.errors import BudgetError
from lms.ir.liveness import peak
from lms.ir.plan import planned_graph, validate_plan
from lms.machine.hardware import PRESETS, roofline
from lms.planning import strategies as budget_search
from lms.planning.placement import seconds_of
from lms.planning.problem import (
    Filters,
    FittedPlan,
    MemoryBudget,
    PlanRequest,
    Risk,
    Speeds,
    budget_in,
)
from lms.planning.select import choose_plan, workload_of
from lms.planning.settings import read_settings
from lms.units import MIB, format_bytes
from tests.planning.stored import read_step


def planned(
    step: str, room: MemoryBudget, *, is_first: bool = False, **knobs: Any
) -> FittedPlan:
    """A plan for a stored step that can be obeyed."""
    graph, hardware = read_step(step).graph, PRESETS["v100-pcie"]
    speeds = Speeds(costs=roofline(graph, hardware), hardware=hardware)
    asked = read_settings(**knobs)
    workload = workload_of(graph, graph, lambda: speeds)
    found = choose_plan(workload, asked, room, is_first=is_first)
    validate_plan(planned_graph(graph, found.plan), found.plan)
    return found


def device(size: int, unsealed: str = "asked") -> MemoryBudget:
    return replace(budget_in(size, asked=None, persistent=0), unsealed=unsealed)


def least(step: str, size: int, unsealed: str = "asked", **knobs: Any) -> int:
    """Read the least device that a refusal names."""
    with pytest.raises(BudgetError) as no:
        planned(step, device(size, unsealed), **knobs)
    assert no.value.least_bytes is not None
    return no.value.least_bytes


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
    budget = MemoryBudget(total=11 * MIB, margin=0, persistent=10 * MIB)
    with pytest.raises(BudgetError, match=said) as no:
        planned("drawn_300", budget, thresholds=thresholds, budget=budget.total)
    assert no.value.least_bytes is not None
    assert no.value.least_bytes > 11 * MIB
    assert (no.value.op_name is None) is (thresholds is not None)


@pytest.mark.parametrize("automatic", [True, False])
def test_only_a_budget_that_was_given_is_a_bound(
    monkeypatch: pytest.MonkeyPatch, *, automatic: bool
) -> None:
    """All of the device needs none: a plan that is placed there cannot take more."""
    limit = 100 * MIB
    margin = 4 * MIB if automatic else 0
    budget = MemoryBudget(
        total=96 * MIB, margin=margin, persistent=16 * MIB, limit=limit
    )
    again = budget.of(90 * MIB)
    assert again.step < budget.step
    asked = list[PlanRequest]()
    monkeypatch.setattr(budget_search, "_sure", lambda _, terms: asked.append(terms))
    for each in (budget, again):
        terms = PlanRequest(
            budget=each.step, speeds=cast("Any", None), filters=Filters()
        )
        with pytest.raises(BudgetError, match="no plan"):
            budget_search._plan_unsealed([], terms, each, BudgetError("no plan"))
        bound = asked[-1].headroom.bound
        assert (each.step + bound > limit) is automatic
        assert automatic or each.step + bound == budget.step


def test_at_the_edge_of_a_device_only_what_has_the_least_sure_room_is_planned() -> None:
    """In a device with more memory the same room is not at its edge."""
    step, small = "two_by_two", device(55 * MIB)
    sure = least(step, 55 * MIB, recompute=False)
    whole = device(sure)
    assert planned(step, whole, recompute=False).risk is Risk.NONE
    # Others have taken what is missing: training goes on as well as it can.
    now = replace(whole, persistent=sure - 55 * MIB)
    now = replace(now, lost=whole.lost_since(now))
    assert planned(step, now, recompute=False).plan.swaps
    beside = budget_in(1024 * MIB, asked=small.total, persistent=0)
    assert planned(step, beside, recompute=False).peak <= small.step


@pytest.mark.parametrize("unsealed", ["", "asked"])
def test_the_least_budget_is_the_same_for_all_and_at_most_that_of_moves_alone(
    unsealed: str,
) -> None:
    (sure,) = {least("drawn_300", size * MIB, unsealed) for size in (400, 600)}
    moving = least("drawn_300", 600 * MIB, unsealed, recompute=False)
    # One search for ops that run twice found 912 MiB, and one for moves alone 960.
    assert sure <= moving < 912 * MIB
    fitted = planned("drawn_300", device(sure, unsealed))
    assert (fitted.risk, fitted.sealed) == (Risk.NONE, not unsealed)


@pytest.mark.parametrize("unsealed", ["", "asked"])
def test_a_budget_below_the_largest_op_is_refused_without_a_search(
    unsealed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms = list[int]()

    def tried(orders: Any, terms: PlanRequest) -> Any:
        rooms.append(terms.budget)
        return find(orders, terms)

    def measured() -> Speeds:
        raise AssertionError("no op is timed for a step that cannot fit")

    find = budget_search._first_sure
    monkeypatch.setattr(budget_search, "_first_sure", tried)
    graph = read_step("drawn_300").graph
    workload = workload_of(graph, graph, measured)
    with pytest.raises(BudgetError) as no:
        choose_plan(workload, read_settings(), device(4 * MIB, unsealed))
    assert no.value.exceeds(4 * MIB)
    assert len(rooms) == (not unsealed)  # a sealed step has a plan in some room
    least = no.value.least_bytes
    searched = len(rooms)
    assert searched > 3
    assert format_bytes(least or 0, at_least=True) in str(no.value)
    assert (no.value.least_bytes, len(rooms)) == (least, searched)


def test_free_fragments_add_to_the_least_budget_of_a_sealed_step() -> None:
    def asked(total: int, fences: int) -> MemoryBudget:
        limit = 8192 * MIB  # a budget that leaves room is not the whole device
        budget = MemoryBudget(total=total, margin=0, persistent=0, limit=limit)
        return replace(budget, fences=fences)

    named = []
    for fences in (0, 5 * MIB):
        with pytest.raises(BudgetError) as no:
            planned("drawn_300", asked(300 * MIB, fences))
        named.append(no.value.least_bytes)
    least, beside = named
    assert least is not None
    assert beside == least + 5 * MIB
    fitted = planned("drawn_300", asked(beside, 5 * MIB))
    assert fitted.sealed
    assert fitted.peak <= least


@pytest.mark.parametrize(
    ("step", "unsealed"),
    [
        ("resnet", ""),
        ("unet3d", ""),
        ("transformer", ""),
        ("resnet", "asked"),
        ("transformer", "asked"),
    ],
)
def test_a_first_plan_takes_few_tries_and_is_never_faster(
    step: str, unsealed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    def counted(*args: Any, **knobs: Any) -> Any:
        nonlocal tries
        tries += 1
        return find(*args, **knobs)

    find = budget_search._find
    monkeypatch.setattr(budget_search, "_find", counted)
    room = device(peak(read_step(step).graph) * 6 // 10, unsealed)
    first, few = planned(step, room, is_first=True), tries
    whole = planned(step, room)
    assert few * 4 <= tries - few
    assert first.risk is Risk.NONE
    assert first.peak <= room.free
    assert seconds_of(first) >= seconds_of(whole) * 0.999
