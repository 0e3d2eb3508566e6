"""Plans: JSON both ways, and a validator that names each rule that is broken."""

import json
from dataclasses import replace

import pytest

from lms.errors import PlanError
from lms.ir.graph import GraphView
from lms.ir.plan import Swap, SwapIn, SwapPlan, resolve, validate_plan
from tests.graphs import (
    LOOP,
    RESHAPE,
    SKIP,
    TWICE,
    graph_of,
    make_op,
    one_swap,
    unplanned,
)

COPY = SwapIn(trigger="c", readers=("e",))
SWAP = Swap(tensor="a:0", size=100, release="c", swap_ins=(COPY,))
PLAN = SwapPlan(
    planner="by hand", order=tuple("abcde"), chain=tuple("abce"), swaps=(SWAP,)
)


def moved(**changes: object) -> SwapPlan:
    """The plan with its swap changed."""
    return replace(PLAN, swaps=(replace(SWAP, **changes),))


def copied(trigger: str | None, readers: str) -> SwapPlan:
    """The plan with another swap-in."""
    return moved(swap_ins=(SwapIn(trigger=trigger, readers=tuple(readers)),))


def stays(graph: GraphView, plan: SwapPlan) -> list[tuple[int, int]]:
    """When 'a:0' lies on the device by a valid plan."""
    validate_plan(graph, plan)
    return [
        (one.start, one.end)
        for one in resolve(graph, plan).residencies
        if one.root == "a:0"
    ]


@pytest.mark.parametrize(
    ("plan", "back"),
    [
        (PLAN, 4),
        (copied(None, "e"), 1),  # once the copy out has ended
        (copied("a", "e"), 1),  # after its producer
        (moved(release=None), 4),  # nothing waits for the copy out
    ],
)
def test_a_plan_that_can_be_obeyed_is_accepted(plan: SwapPlan, back: int) -> None:
    assert stays(SKIP.graph, plan) == [(0, 2), (back, 5)]


def test_the_reader_of_an_alias_may_read_a_copy() -> None:
    plan = one_swap(RESHAPE.graph, ("b", "d"), release="c")
    assert stays(RESHAPE.graph, plan) == [(0, 3), (3, 5)]


def test_bytes_are_counted_once_out_and_for_each_copy_back() -> None:
    plan = one_swap(TWICE.graph, ("b", "d"), ("d", "f"), release="c")
    validate_plan(TWICE.graph, plan)
    assert (plan.swapped_out_bytes, plan.swapped_in_bytes) == (100, 200)


@pytest.mark.parametrize(
    ("plan", "rule"),
    [
        (replace(PLAN, order=tuple("abcd")), "graph's ops, .* one without op 'e'"),
        (replace(PLAN, order=tuple("abcdee")), "one that repeats op 'e'"),
        (replace(PLAN, order=tuple("abcdex")), "one with an unknown op 'x'"),
        (replace(PLAN, order=tuple("bacde")), "cannot be executed: .*'b' before 'a:0'"),
        (replace(PLAN, chain=("x",)), "chain names an unknown op 'x'"),
        (replace(PLAN, chain=("b", "a")), "chain must follow the order, got 'a'"),
        (replace(PLAN, chain=("a", "c", "b")), "follow the order, got 'b'"),
        (replace(PLAN, swaps=PLAN.swaps * 2), "'a:0' must be swapped once"),
        (moved(tensor="x:0"), "'x:0' must be a tensor that owns its buffer"),
        (moved(size=99), "size of 'a:0' must be 100, got 99"),
        (moved(release="a"), "release of 'a:0' must be an op after its producer"),
        (moved(release="x"), "release of 'a:0' must be an op after its producer"),
        (copied("c", ""), "must have readers, got none"),
        (copied("b", "d"), "'d' must read 'a:0'"),
        (moved(swap_ins=(COPY, COPY)), "'e' must read one copy of 'a:0', got two"),
        (copied("e", "e"), "trigger of 'a:0' must lie between .*, got 'e'"),
        (copied("c", "be"), "trigger of 'a:0' must lie between .*, got 'c'"),
        (copied("x", "e"), "must lie between .*, got 'x'"),
    ],
)
def test_a_broken_rule_is_named(plan: SwapPlan, rule: str) -> None:
    with pytest.raises(PlanError, match=rule):
        validate_plan(SKIP.graph, plan)


def test_a_copy_back_cannot_start_before_its_tensor_is_made() -> None:
    graph = GraphView(ops=(make_op("early", 1), *SKIP.graph.ops))
    plan = copied("early", "e")
    with pytest.raises(PlanError, match="must lie between its producer"):
        validate_plan(graph, replace(plan, order=("early", *PLAN.order)))


def test_an_alias_cannot_move_without_its_root() -> None:
    swap = Swap(tensor="r:0", size=100, release=None, swap_ins=())
    plan = unplanned(RESHAPE.graph, swaps=(swap,))
    with pytest.raises(PlanError, match="'r:0' must be a tensor that owns its buffer"):
        validate_plan(RESHAPE.graph, plan)


@pytest.mark.parametrize("tensor", ["c:0", "w:0"], ids=["what it reads", "its own"])
def test_what_a_loop_touches_cannot_move(tensor: str) -> None:
    swap = Swap(tensor=tensor, size=10, release=None, swap_ins=())
    plan = unplanned(LOOP.graph, swaps=(swap,))
    with pytest.raises(PlanError, match=f"{tensor!r} cannot move"):
        validate_plan(LOOP.graph, plan)


@pytest.mark.parametrize(
    ("change", "results", "why"),
    [
        ({"from_host": True}, (), "it is copied from the host"),
        ({"persistent": True}, (), "it lives outside"),
        ({}, ("a:0",), "it lives outside"),
    ],
)
def test_what_must_stay_cannot_move(
    change: dict[str, bool], results: tuple[str, ...], why: str
) -> None:
    ops = (replace(SKIP.graph.ops[0], **change), *SKIP.graph.ops[1:])
    with pytest.raises(PlanError, match=f"'a:0' cannot move: {why}"):
        validate_plan(GraphView(ops=ops, results=results), PLAN)


def test_a_tensor_without_bytes_cannot_move() -> None:
    graph = graph_of(make_op("a", 0), make_op("b", 1, "a"))
    with pytest.raises(PlanError, match="'a:0' cannot move: it lives outside"):
        validate_plan(graph, one_swap(graph))


def test_a_loop_cannot_be_chained() -> None:
    plan = unplanned(LOOP.graph, chain=("c", "w"))
    with pytest.raises(PlanError, match="'w' is in a loop or branch"):
        validate_plan(LOOP.graph, plan)


def test_a_tensor_whose_alias_is_a_result_cannot_move() -> None:
    graph = replace(RESHAPE.graph, results=("r:0",))
    with pytest.raises(PlanError, match="'a:0' cannot move: it lives outside"):
        validate_plan(graph, one_swap(graph))


@pytest.mark.parametrize("indent", [None, 2])
def test_json_gives_the_plan_back(indent: int | None) -> None:
    assert SwapPlan.from_json(PLAN.to_json(indent=indent)) == PLAN


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "{}"),
        json.dumps({"planner": "", "order": [1, 2]}),
        json.dumps({"planner": "", "order": [], "chain": [], "swaps": [{}]}),
        json.dumps({"planner": "", "order": 3, "chain": [], "swaps": []}),
    ],
)
def test_text_that_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match=r"`text` must be a plan .* Make it again"):
        SwapPlan.from_json(text)
