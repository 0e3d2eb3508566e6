"""TFLMS's serialization: which levels run one by one, and what that makes far."""

import pytest

from lms.ir.graph import GraphView
from lms.planning.tflms_rule import level_graph
from tests.graphs import FORK, LOOP, SKIP, TWICE, graph_of, make_op
from tests.planning.ruled import plan, readers


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (0, "a"),
        (2, "c"),
        ("2", "c"),
        ("3:5", "de"),
        (":2", "ab"),
        ("4:", "ef"),
        (":", "abcdef"),
        (" 1 : 3 ", "bc"),
        ("5:99", "f"),
        (6, ""),
        ("3:3", ""),
    ],
)
def test_levels_are_written_as_numbers_and_slices(
    item: int | str, expected: str
) -> None:
    made = plan(TWICE.graph, serialization=[item])
    assert made.chain == tuple(name for name in expected)


def test_several_items_add_up_in_level_order() -> None:
    made = plan(TWICE.graph, serialization=["4:", 0, "0:2"])
    assert made.chain == ("a", "b", "e", "f")


@pytest.mark.parametrize(
    "item", ["", "x", "1-3", "1:2:3", "-1:", -1, "1.5", "1,2", True]
)
def test_a_level_that_is_written_wrongly_is_named(item: int | str) -> None:
    with pytest.raises(ValueError, match=r"`serialization` must .* '3:5'") as caught:
        plan(SKIP.graph, serialization=[item])
    assert f"got {item!r}" in str(caught.value)


def test_ops_of_one_level_run_one_by_one_and_levels_are_measured_again() -> None:
    levelled = level_graph(FORK.graph, min_bytes=1, serialization=[1])
    assert levelled.chain == ("b", "c")
    assert levelled.level == (0, 1, 2, 3)


def test_a_reader_can_become_far_by_serialization() -> None:
    # d is two levels behind a's reader b; with c after b, it is three behind a.
    graph = GraphView(ops=(*FORK.graph.ops[:3], make_op("d", 10, "b", "c", "a")))
    assert plan(graph, 2).swaps == ()
    assert readers(plan(graph, 2, serialization=[1])) == ["d"]


@pytest.mark.parametrize(
    ("by_size", "expected"), [(0, ""), (69, "bcd"), (70, "bc"), (200, "")]
)
def test_levels_above_a_size_are_serialised(by_size: int, expected: str) -> None:
    # Level 1 reads 10 + 10 and makes 20 + 30; level 2 reads 20 + 30 and makes 20.
    graph = graph_of(
        make_op("a", 10),
        make_op("b", 20, "a"),
        make_op("c", 31, "a"),
        make_op("d", 19, "b", "c"),
    )
    made = plan(graph, serialization_by_size=by_size)
    assert made.chain == tuple(name for name in expected)


def test_only_ops_that_touch_large_tensors_are_serialised() -> None:
    made = plan(SKIP.graph, serialization=[":"], min_bytes=100)
    assert made.chain == ("a", "b", "e")


def test_loops_are_not_serialised() -> None:
    made = plan(LOOP.graph, serialization=[":"])
    assert made.chain == tuple(name for name in "abcd")
