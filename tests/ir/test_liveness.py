"""Liveness: by hand, and against a recomputation that looks at one op at a time."""

import pytest
from hypothesis import given

from lms.ir.graph import GraphView, Op, Tensor
from lms.ir.liveness import (
    Buffer,
    buffers,
    lower_bound,
    memory_curve,
    old_values,
    peak,
    with_late_writes,
    working_sets,
    written_over,
)
from tests.graphs import LOOP, RESHAPE, Drawn, all_drawn, graph_of, make_op
from tests.strategies import examples, graphs

drawn = pytest.mark.parametrize("drawn", all_drawn().values(), ids=all_drawn())


@drawn
def test_the_memory_curve_is_the_one_worked_out(drawn: Drawn) -> None:
    assert tuple(memory_curve(drawn.graph)) == drawn.curve
    assert peak(drawn.graph) == max(drawn.curve)


@drawn
def test_working_sets_are_those_worked_out(drawn: Drawn) -> None:
    assert tuple(working_sets(drawn.graph)) == drawn.sets
    assert lower_bound(drawn.graph) == max(drawn.sets)


def test_a_buffer_lives_through_the_readers_of_its_aliases() -> None:
    first = buffers(RESHAPE.graph)[0]
    assert first == Buffer(root="a:0", size=100, producer=0, uses=(2, 4))
    assert first.last == 4


def test_what_a_loop_touches_is_pinned_but_not_kept() -> None:
    pinned = {b.root: (b.pinned, b.kept) for b in buffers(LOOP.graph)}
    assert pinned["c:0"] == pinned["w:0"] == (True, False)
    assert pinned["a:0"] == (False, False)


def test_what_comes_from_the_host_is_pinned_but_not_what_may_be_smaller() -> None:
    ops = (make_op("a", 7, from_host=True), make_op("b", 1, "a", varies=True))
    pinned = {buffer.root: buffer.pinned for buffer in buffers(GraphView(ops=ops))}
    assert pinned == {"a:0": True, "b:0": False}


def test_what_comes_from_another_card_is_not_pinned() -> None:
    ops = (make_op("a", 7, from_host=True, from_card=True),)
    assert [b.pinned for b in buffers(GraphView(ops=ops))] == [False]


def test_an_alias_that_outlives_the_step_keeps_its_buffer() -> None:
    graph = GraphView(ops=RESHAPE.graph.ops, results=("r:0",))
    assert [(b.root, b.pinned) for b in buffers(graph) if b.kept] == [("a:0", True)]


def test_persistent_and_empty_tensors_are_no_buffers() -> None:
    graph = graph_of(
        make_op("weights", 1000, persistent=True),
        make_op("same", 1000, "weights", alias="weights:0"),
        make_op("nothing", 0),
        make_op("a", 5, "same", "nothing"),
    )
    assert [buffer.root for buffer in buffers(graph)] == ["a:0"]
    assert peak(graph) == 5


def test_an_op_writes_over_no_input_of_another_size() -> None:
    op = make_op("b", 8, "a", "c", inplace=True)
    roots = {"a:0": "a:0", "c:0": "c:0"}
    found = [written_over(op, roots, sizes) for sizes in ({}, {"a:0": 16}, {"c:0": 8})]
    assert found == [None, None, ("b:0", "c:0")]


def test_a_graph_without_ops_needs_nothing() -> None:
    assert (peak(GraphView(ops=())), lower_bound(GraphView(ops=()))) == (0, 0)


def naive_root(graph: GraphView, name: str) -> str:
    """Follow aliases back, one at a time."""
    maker = next(op for op in graph.ops if name in [t.name for t in op.outputs])
    return name if maker.alias is None else naive_root(graph, maker.alias)


def naive_curve(graph: GraphView) -> list[int]:
    """At each op, add up every buffer that somebody still needs."""
    reads: list[set[str]] = [
        {naive_root(graph, name) for name in op.inputs}
        if op.alias is None or op.fixed
        else set()
        for op in graph.ops
    ]
    kept = {naive_root(graph, name) for name in graph.results}
    own: list[tuple[int, Tensor]] = [
        (i, tensor)
        for i, op in enumerate(graph.ops)
        if not op.persistent and op.alias is None
        for tensor in op.outputs
    ]
    curve: list[int] = []
    for now, op in enumerate(graph.ops):
        alive = [
            tensor
            for made, tensor in own
            if made == now or (made < now and tensor.name in kept.union(*reads[now:]))
        ]
        later = kept.union(*reads[now + 1 :])
        dying = [t for t in alive if t.name in reads[now] and t.name not in later]
        curve.append(sum(t.size for t in alive) + op.scratch - saved(op, dying))
    return curve


def saved(op: Op, dying: list[Tensor]) -> int:
    if not op.inplace or not op.outputs:
        return 0
    largest = max(t.size for t in op.outputs)
    return max((t.size for t in dying if t.size == largest), default=0)


@given(graphs())
@examples(100)
def test_the_curve_is_what_a_naive_recomputation_gives(graph: GraphView) -> None:
    assert memory_curve(graph) == naive_curve(graph)


@given(graphs())
@examples(50)
def test_no_op_needs_more_by_itself_than_with_the_others(graph: GraphView) -> None:
    pairs = zip(working_sets(graph), memory_curve(graph), strict=True)
    assert all(alone <= together for alone, together in pairs)


def test_a_variable_that_is_written_while_it_is_read_is_there_twice() -> None:
    graph = graph_of(
        make_op("w", 8, persistent=True),
        make_op("first", 8, "w", persistent=True, reads_state=True),
        make_op("again", 8, "w", persistent=True, reads_state=True),
        make_op("late", 1, "again"),
        make_op("add", 0, "w", writes=("w:0",)),
        make_op("later", 1, "first"),
        make_op("more", 0, "w", writes=("w:0",)),  # nobody reads what it was by then
        make_op("last", 8, "w", persistent=True, reads_state=True),
        make_op("reduce", 1, "later", writes=("reduce",)),  # a collective: no variable
        make_op("new", 0, "w", writes=("w:0",), replaces_state=True),
        make_op("end", 1, "reduce"),
        results=("last:0",),
    )
    assert old_values(graph) == [0, 0, 0, 0, 8, 8, 0, 0, 0, 0, 8]


READS = (
    make_op("v", 8, persistent=True),
    make_op("w", 8, persistent=True),
    make_op("old_v", 8, "v", persistent=True, reads_state=True),
    make_op("old_w", 8, "w", persistent=True, reads_state=True),
)


def test_writes_in_place_wait_for_readers_of_the_old_value_that_need_no_write() -> None:
    graph = graph_of(
        *READS,
        make_op("add", 0, "v", writes=("v:0",)),
        make_op("set", 0, "w", "v", writes=("w:0",), replaces_state=True),
        make_op("changed", 1, "old_v", controls=("add",)),
        make_op("late", 1, "old_v"),
        make_op("end", 1, "old_w", "late"),
        results=("old_v:0", "end:0"),
    )
    later = with_late_writes(graph)
    assert sorted(later.order) == sorted(graph.order)
    assert {op.name: op.controls for op in later.ops if op.controls} == {
        "add": ("late",),
        "changed": ("add",),
    }
    assert with_late_writes(later) is later


def test_two_writes_that_wait_for_the_reader_of_the_other_are_no_cycle() -> None:
    graph = graph_of(
        *READS,
        make_op("add_v", 0, "v", writes=("v:0",)),
        make_op("add_w", 0, "w", writes=("w:0",)),
        make_op("use_v", 1, "old_v", controls=("add_w",)),
        make_op("use_w", 1, "old_w", controls=("add_v",)),
    )
    ops = with_late_writes(graph).by_name
    assert ops["add_v"].controls == ("use_v",)
    assert ops["add_w"].controls == ()
