"""Graphs: what they refuse, who reads what, and which tensors share a buffer."""

import pytest
from hypothesis import given

from lms.ir.graph import GraphView, Op, Tensor, op_of
from tests.graphs import RESHAPE, SKIP, make_op
from tests.strategies import examples, graphs


@pytest.mark.parametrize(
    ("ops", "rule"),
    [
        ((make_op("a", 1), make_op("a", 1)), "unique names, got 'a' twice"),
        ((make_op("b", 1, "a"), make_op("a", 1)), "got 'b' before 'a:0'"),
        ((make_op("b", 1, controls=("a",)), make_op("a", 1)), "got 'b' before 'a'"),
    ],
)
def test_ops_that_make_no_graph_are_refused(ops: tuple[Op, ...], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        GraphView(ops=ops)


def test_a_result_that_no_op_makes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`results` .* \['b:0'\]"):
        GraphView(ops=(make_op("a", 1),), results=("b:0",))


def test_the_maker_of_a_tensor_is_read_off_its_name() -> None:
    assert op_of("scope:1/conv:12") == "scope:1/conv"


def test_a_reader_counts_once_however_often_it_reads() -> None:
    square = make_op("square", 1, "a", "a")
    graph = GraphView(ops=(make_op("a", 1), square))
    assert graph.consumers == {"a:0": (square,), "square:0": ()}


def test_readers_come_in_execution_order() -> None:
    assert [op.name for op in SKIP.graph.consumers["a:0"]] == ["b", "e"]


def test_an_alias_of_an_alias_has_the_first_tensor_as_its_root() -> None:
    again = make_op("again", 100, "r", alias="r:0")
    graph = GraphView(ops=(*RESHAPE.graph.ops, again))
    assert graph.roots["again:0"] == graph.roots["r:0"] == graph.roots["a:0"] == "a:0"
    assert graph.roots["b:0"] == "b:0"


def test_an_op_without_outputs_makes_no_tensors() -> None:
    graph = GraphView(ops=(make_op("a", 1), Op(name="end", type="NoOp")))
    assert graph.tensors == {"a:0": Tensor(name="a:0", size=1)}


def test_reordering_keeps_ops_and_results() -> None:
    ops = make_op("a", 1), make_op("b", 2), make_op("c", 3, "a", "b")
    graph = GraphView(ops=ops, results=("c:0",))
    swapped = graph.reordered(["b", "a", "c"])
    assert swapped.ops == (ops[1], ops[0], ops[2])
    assert swapped.results == ("c:0",)


# One is missing, one is there twice, it cannot be executed, one is unknown.
@pytest.mark.parametrize("order", ["abcd", "abcdd", "bacde", "abcdx"])
def test_an_order_that_cannot_be_executed_is_refused(order: str) -> None:
    with pytest.raises(ValueError, match="must"):
        SKIP.graph.reordered(order)


@given(graphs())
@examples(30)
def test_the_order_that_a_graph_has_is_one_it_can_be_given(graph: GraphView) -> None:
    assert graph.reordered(op.name for op in graph.ops) == graph


@given(graphs())
@examples(30)
def test_a_root_is_its_own_root_and_as_large_as_its_aliases(graph: GraphView) -> None:
    for name, root in graph.roots.items():
        assert graph.roots[root] == root
        assert graph.tensors[root].size == graph.tensors[name].size
