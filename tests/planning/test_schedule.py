"""Orders: the one worked out by hand, and never worse than the given one."""

import pytest
from hypothesis import given, settings

from lms.ir.graph import GraphView
from lms.ir.liveness import memory_curve, peak
from lms.planning.schedule import greedy_order, schedule
from tests.graphs import make_op
from tests.strategies import graphs


def names(graph: GraphView) -> str:
    return "".join(op.name for op in graph.ops)


def test_the_op_that_frees_most_goes_first() -> None:
    # Reading each large tensor as soon as it is made holds one of them at a time.
    graph = GraphView(
        ops=(
            make_op("a", 90),
            make_op("b", 80),
            make_op("c", 1, "a"),
            make_op("d", 1, "b"),
            make_op("e", 1, "c", "d"),
        )
    )
    assert peak(graph) == 171
    better = schedule(graph)
    assert names(better) == "bdace"
    assert memory_curve(better) == [80, 81, 91, 92, 3]


def test_equal_ops_keep_the_given_order() -> None:
    graph = GraphView(ops=tuple(make_op(name, 8) for name in "cab"))
    assert names(schedule(graph)) == "cab"


def test_the_given_order_is_kept_where_greed_is_worse() -> None:
    # Greed takes the small tensors first and then holds them beside the large one.
    graph = GraphView(
        ops=(
            make_op("a", 10),
            make_op("b", 1, "a", scratch=90),
            make_op("c", 5),
            make_op("d", 1, "c", "b"),
        )
    )
    assert "".join(greedy_order(graph)) == "cabd"
    assert names(schedule(graph)) == "abcd"


def test_ops_of_a_group_become_neighbours() -> None:
    graph = GraphView(
        ops=(
            make_op("a", 4),
            make_op("b", 4, "a", group="g"),
            make_op("x", 4),
            make_op("c", 4, "a", group="g"),
            make_op("y", 4, "x", "b", "c"),
        )
    )
    assert "bc" in names(schedule(graph))


def test_a_group_that_waits_for_itself_is_refused() -> None:
    graph = GraphView(
        ops=(
            make_op("a", 4, group="g"),
            make_op("b", 4, "a"),
            make_op("c", 4, "b", group="g"),
        )
    )
    with pytest.raises(ValueError, match="`group` must not close a cycle"):
        schedule(graph)


@given(graphs())
@settings(deadline=None, max_examples=60)
def test_the_peak_is_never_above_that_of_the_given_order(graph: GraphView) -> None:
    # Groups are neighbours here, so that the given order competes as it is.
    better = schedule(graph)
    assert sorted(names(better)) == sorted(names(graph))
    assert peak(better) <= peak(graph)


@given(graphs())
@settings(deadline=None, max_examples=30)
def test_the_ops_of_each_group_are_neighbours(graph: GraphView) -> None:
    groups = [op.group for op in schedule(graph).ops if op.group is not None]
    starts = [g for i, g in enumerate(groups) if i == 0 or g != groups[i - 1]]
    assert len(starts) == len(set(starts))
