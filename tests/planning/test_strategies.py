"""Moving and making again, compared: a step whose activations half fit."""

import gc
from dataclasses import replace
from typing import Any, cast

import pytest

from lms.ir.graph import GraphView, Op, Tensor
from lms.ir.liveness import peak
from lms.ir.plan import planned_graph, validate_plan
from lms.machine.hardware import PRESETS, Costs, roofline
from lms.planning import strategies
from lms.planning.placement import find_plan, seconds_of
from lms.planning.problem import Filters, FittedPlan, PlanRequest, Speeds
from lms.planning.schedule import orders
from lms.planning.strategies import best_plan
from lms.units import MIB
from tests.graphs import graph_of, scheduled
from tests.planning.stored import read_step

LAYERS = range(8)


def op(name: str, *inputs: str, repeatable: bool = False) -> Op:
    outputs = (Tensor(name=f"{name}:0", size=MIB, shape=(MIB // 4,)),)
    return Op(
        name=name, type="T", inputs=inputs, outputs=outputs, repeatable=repeatable
    )


def step() -> GraphView:
    """Convolutions whose outputs, and cheap activations, gradients read."""
    ops = [op("x0")]
    for i in LAYERS:
        ops.append(op(f"conv{i}", f"x{i}:0"))
        ops.append(op(f"x{i + 1}", f"conv{i}:0", repeatable=True))
    gradient = f"x{len(LAYERS)}:0"
    for i in reversed(LAYERS):
        ops.append(op(f"grad_x{i}", gradient, f"x{i + 1}:0"))
        ops.append(op(f"grad{i}", f"grad_x{i}:0", f"conv{i}:0"))
        gradient = f"grad{i}:0"
    return GraphView(ops=tuple(ops))


GRAPH = step()


def asked_for(budget: int, costs: Costs, **knobs: Any) -> PlanRequest:
    speeds = Speeds(costs=costs, hardware=PRESETS["v100-pcie"])
    return PlanRequest(budget=budget, speeds=speeds, filters=Filters(), **knobs)


def request(*, cheap: float, other: float = 1e-5, **knobs: Any) -> PlanRequest:
    seconds = {o.name: cheap if o.repeatable else other for o in GRAPH.ops}
    costs = Costs(seconds=seconds, source="drawn")
    return asked_for(peak(GRAPH) * 6 // 10, costs, **knobs)


def best(graphs: list[GraphView], asked: PlanRequest) -> FittedPlan:
    """The best plan, which there is."""
    found = best_plan(graphs, asked)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("cheap", "recompute", "again"),
    [
        (1e-6, None, True),  # a microsecond, and a copy takes a hundred
        (1e-6, False, False),
        (8e-5, None, True),  # 1 % slower than to move 14 MiB, and moves nothing
        (1e-1, None, False),
        (1e-1, True, True),
    ],
)
def test_what_is_made_again_is_what_is_about_as_fast_or_asked_for(
    cheap: float, recompute: Any, again: Any
) -> None:
    found = best([GRAPH], request(cheap=cheap, recompute=recompute))
    assert bool(found.plan.recomputed) is again
    validate_plan(planned_graph(GRAPH, found.plan), found.plan)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_it_was_after_planning(*, enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    try:
        asked = request(cheap=1e-6)
        best([GRAPH], asked)
        assert gc.isenabled() is enabled
        with pytest.raises(AttributeError):
            best_plan([GRAPH], replace(asked, speeds=cast("Any", "none")))
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


def test_on_a_slow_link_all_is_recomputed_that_can_be() -> None:
    graph = scheduled(read_step("drawn_750").graph)
    costs = roofline(graph, PRESETS["v100-pcie"])
    asked = asked_for(peak(graph) // 2, costs)
    moving = best([graph], replace(asked, recompute=False))
    found = best([graph], asked)
    validate_plan(planned_graph(graph, found.plan), found.plan)
    assert seconds_of(moving) > 2 * costs.total
    assert seconds_of(found) < 1.5 * costs.total


def test_what_costs_more_to_recompute_than_the_link_moves_instead() -> None:
    # A copy of 2 MiB takes 0.2 ms; the step 40 times as long. Products take 0.1 ms.
    asked = request(cheap=1e-4, other=1e-3)
    found = best([GRAPH], asked)
    always = best([GRAPH], replace(asked, recompute=True))
    assert found.plan.swaps
    assert seconds_of(found) < seconds_of(always)


def test_a_step_that_an_order_makes_fit_is_tried_in_no_other_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned: list[GraphView] = []

    def noted(graph: GraphView, *rest: Any, **knobs: Any) -> Any:
        planned.append(graph)
        return find_plan(graph, *rest, **knobs)

    monkeypatch.setattr(strategies, "find_plan", noted)
    asked = replace(request(cheap=1e-6), budget=2 * peak(GRAPH))
    assert not best([GRAPH], asked).plan.swaps
    assert len(planned) == 1


@pytest.mark.parametrize("name", ["drawn_300", "tagger"])
def test_the_best_of_a_search_is_never_slower_than_its_starts(name: str) -> None:
    ordered = orders(read_step(name).graph)
    costs = roofline(ordered[0], PRESETS["v100-pcie"])
    asked = asked_for(peak(ordered[0]) * 45 // 100, costs)
    found = best(ordered, asked)
    moving = best_plan(ordered, replace(asked, recompute=False))
    again = best_plan(ordered, replace(asked, recompute=True))
    seconds = [seconds_of(option) for option in (moving, again) if option is not None]
    assert seconds_of(found) <= min(seconds) * 1.01  # about as fast, and moves less


def test_a_last_chunk_of_an_odd_size_is_no_hole_for_what_is_rounded_up() -> None:
    # A region of 6,000,180 bytes has no chunk of this size: requests are rounded up.
    size = 6_000_180
    graph = graph_of(op("a"), Op(name="b", type="B", inputs=("a:0",), scratch=size))
    costs = Costs(seconds={}, source="drawn")
    assert best_plan([graph], asked_for(size, costs)) is None


def test_one_try_tells_whether_the_least_budget_is_below_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, tries = request(cheap=1e-6, sealed=True, large=MIB), list[int]()
    first_sure = strategies._first_sure

    def noted(orders: Any, request: PlanRequest) -> FittedPlan | None:
        tries.append(request.budget)
        return first_sure(orders, request)

    monkeypatch.setattr(strategies, "_first_sure", noted)
    *_, (least, _) = strategies._Least([GRAPH], asked).bounds()
    assert len(tries) > 3
    for limit in (least - MIB // 2, least - 1, least, least + 1, 2 * peak(GRAPH)):
        tries.clear()
        found = strategies._Least([GRAPH], asked).obeys(lambda n, most=limit: n <= most)
        assert (found, len(tries) <= 1) == (least <= limit, True)
