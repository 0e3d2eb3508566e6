"""Small neighbours of a chain that may run side by side."""

from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lms.graph import GraphView, op_of
from lms.plan import Swap, SwapIn, SwapPlan, validate_plan
from lms.planning.beside import side_by_side
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
    "changes", [{"scratch": 1}, {"writes": ("w:0",)}, {"controls": ("left",)}]
)
def test_scratch_counts_and_a_write_or_a_control_edge_parts(
    changes: dict[str, Any],
) -> None:
    assert side_by_side(changed("right", **changes), plan_of(), 100) == ONE_BY_ONE


def test_a_write_that_comes_first_parts_too() -> None:
    graph = changed("left", writes=("w:0",))
    assert side_by_side(graph, plan_of(), 100) == ONE_BY_ONE


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
    units = set(plan.chain)
    for group in found:
        if group in units:
            continue
        assert len(group) <= 4
        ops = [graph.by_name[name] for name in group]
        made = sum(t.size for op in ops for t in op.outputs)
        assert made + sum(op.scratch for op in ops) <= 1_000 // 50
        for before, after in pairwise(u for u in plan.chain if u[0] in group):
            assert not any(name in _needed(graph, after) for name in before)


def _needed(graph: GraphView, group: tuple[str, ...]) -> set[str]:
    """All ops that a group waits for, however far away."""
    needed: set[str] = set()
    pending = [*group]
    while pending:
        op = graph.by_name[pending.pop()]
        new = {*map(op_of, op.inputs), *op.controls} - needed
        needed |= new
        pending += new
    return needed
