"""Small neighbours of a chain that may run side by side."""

from dataclasses import replace
from itertools import chain, permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lms.graph import GraphView, op_of
from lms.plan import Swap, SwapIn, SwapPlan, validate_plan
from lms.planning.beside import side_by_side, turned_around
from tests.graphs import make_op
from tests.planning.test_laws import budget_planners
from tests.strategies import graphs

# first ─┬─> left ──┬─> last ─> end
#        └─> right ─┘
OPS = (
    make_op("first", 1),
    make_op("left", 1, "first"),
    make_op("right", 1, "first"),
    make_op("last", 1, "left", "right"),
    make_op("end", 1, "last", "first"),
)
NAMES = tuple(op.name for op in OPS)
ONE_BY_ONE = tuple((name,) for name in NAMES)
TOGETHER = (("first",), ("left", "right"), ("last",), ("end",))


def plan_of(*swaps: Swap, order: tuple[str, ...] = NAMES) -> SwapPlan:
    names = tuple((name,) for name in order if name in NAMES)
    return SwapPlan(planner="budget", order=order, chain=names, swaps=swaps)


def swap(release: str, trigger: str) -> Swap:
    back = SwapIn(trigger=trigger, readers=("end",))
    return Swap(tensor="first:0", size=1, release=release, swap_ins=(back,))


def changed(name: str, **changes: Any) -> GraphView:
    ops = (replace(op, **changes) if op.name == name else op for op in OPS)
    return GraphView(ops=tuple(ops))


def test_small_neighbours_that_do_not_need_each_other_run_side_by_side() -> None:
    assert side_by_side(GraphView(ops=OPS), plan_of(), 100) == TOGETHER


@pytest.mark.parametrize("room", [99, 50, 1])
def test_all_of_a_group_are_a_small_part_of_the_room(room: int) -> None:
    assert side_by_side(GraphView(ops=OPS), plan_of(), room) == ONE_BY_ONE


@pytest.mark.parametrize(
    "changes",
    [
        {"scratch": 1},
        {"writes": ("w:0",)},
        {"controls": ("left",)},
        {"group": "fused"},
        {"fixed": True},
    ],
)
def test_scratch_counts_and_what_must_stay_in_order_parts(
    changes: dict[str, Any],
) -> None:
    assert side_by_side(changed("right", **changes), plan_of(), 100) == ONE_BY_ONE


def test_a_write_that_comes_first_parts_too() -> None:
    graph = changed("left", writes=("w:0",))
    assert side_by_side(graph, plan_of(), 100) == ONE_BY_ONE


def test_scratch_has_a_place_for_one_op_at_a_time() -> None:
    ops = (replace(op, scratch=int(op.name in ("left", "right"))) for op in OPS)
    assert side_by_side(GraphView(ops=tuple(ops)), plan_of(), 10_000) == ONE_BY_ONE


def test_a_loop_behind_the_last_of_them_would_begin_too_early() -> None:
    loop = make_op("loop", 90, "right", fixed=True)
    graph = GraphView(ops=(*OPS[:3], loop, *OPS[3:]))
    plan = plan_of(order=(*NAMES[:3], "loop", *NAMES[3:]))
    assert side_by_side(graph, plan, 100) == ONE_BY_ONE


def test_what_is_needed_through_an_op_that_is_not_ordered_is_waited_for() -> None:
    between = make_op("between", 1, "left")
    right = replace(OPS[2], inputs=("first:0", "between:0"))
    graph = GraphView(ops=(*OPS[:2], between, right, *OPS[3:]))
    plan = plan_of(order=(*NAMES[:2], "between", *NAMES[2:]))
    assert side_by_side(graph, plan, 100) == ONE_BY_ONE


@pytest.mark.parametrize(
    ("release", "trigger", "expected"),
    [
        ("left", "right", TOGETHER),  # around the group
        ("right", "last", ONE_BY_ONE),  # the copy out ends between the two
        ("left", "left", ONE_BY_ONE),  # the copy back starts between the two
    ],
)
def test_a_copy_between_two_ops_parts_them(
    release: str, trigger: str, expected: object
) -> None:
    plan = plan_of(swap(release, trigger))
    assert side_by_side(GraphView(ops=OPS), plan, 100) == expected


def test_a_copy_that_starts_after_the_last_of_them_parts_what_follows() -> None:
    ops = tuple(make_op(f"op{i}", 0) for i in range(4))
    names = tuple(op.name for op in ops)
    graph = GraphView(ops=(make_op("a", 0), *ops, make_op("z", 0, "a")))
    back = SwapIn(trigger="op1", readers=("z",))
    plan = SwapPlan(
        planner="budget",
        order=("a", *names, "z"),
        chain=tuple((name,) for name in ("a", *names, "z")),
        swaps=(Swap(tensor="a:0", size=0, release="op0", swap_ins=(back,)),),
    )
    found = side_by_side(graph, plan, 1)
    assert found == (("a",), ("op0", "op1"), ("op2", "op3", "z"))
    turned = turned_around(graph, plan, found)
    validate_plan(graph, turned)
    assert turned.order == ("a", "op1", "op0", "z", "op3", "op2")
    assert turned.swaps[0].release == "op1"
    assert turned.swaps[0].swap_ins[0].trigger == "op0"


def test_no_more_than_four_run_at_once() -> None:
    ops = tuple(make_op(f"op{i}", 0) for i in range(6))
    names = tuple(op.name for op in ops)
    one_by_one = tuple((name,) for name in names)
    plan = SwapPlan(planner="budget", order=names, chain=one_by_one)
    assert side_by_side(GraphView(ops=ops), plan, 1) == (names[:4], names[4:])


@settings(deadline=None)
@given(st.data())
def test_a_plan_stays_a_plan_and_nothing_waits_within_a_group(
    data: st.DataObject,
) -> None:
    graph = data.draw(graphs())
    plan = data.draw(budget_planners(graph))(graph)
    found = side_by_side(graph, plan, 1_000)
    validate_plan(graph, replace(plan, chain=found))
    assert list(chain(*found)) == list(chain(*plan.chain))
    turned = turned_around(graph, plan, found)
    validate_plan(graph, turned)
    units = set(plan.chain)
    for group, other in zip(found, turned.chain, strict=True):
        if group in units:
            assert other == group
            continue
        assert other == group[::-1]
        assert len(group) <= 4
        ops = [graph.by_name[name] for name in group]
        made = sum(t.size for op in ops for t in op.outputs)
        assert made + sum(op.scratch for op in ops) <= 1_000 // 50
        for before, after in permutations(group, 2):
            assert before not in _needed(graph, after)


def _needed(graph: GraphView, name: str) -> set[str]:
    """All ops that an op waits for, however far away."""
    needed: set[str] = set()
    pending = [name]
    while pending:
        op = graph.by_name[pending.pop()]
        new = {*map(op_of, op.inputs), *op.controls} - needed
        needed |= new
        pending += new
    return needed
