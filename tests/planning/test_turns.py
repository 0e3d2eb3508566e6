"""Turns, worked out by hand: who takes which chunks, and in which order."""

from lms.ir.graph import GraphView
from lms.planning.addresses import Span, Turn, bytes_apart, find_turns, spans
from tests.graphs import graph_of, make_op, one_swap, unplanned

# a (1024) is read by b and, after c (2048), by d, which takes scratch.
GRAPH = graph_of(
    make_op("a", 1000),
    make_op("b", 512, "a"),
    make_op("c", 2048, "b"),
    make_op("d", 512, "c", "a", scratch=1500),
)
ORDER = "abcd"


def asking(*asks: int) -> GraphView:
    """The graph with another last op, of two outputs."""
    op = make_op("d", 512, "c", "a", scratch=1500, asks=asks)
    return graph_of(*GRAPH.ops[:-1], op)


def test_a_swap_in_has_a_turn_of_its_own_before_the_op_that_it_starts_beside() -> None:
    plan = one_swap(GRAPH, ("c", "d"), release="b", chain=ORDER)
    turns = find_turns(GRAPH, plan, 512)
    assert [turn.op for turn in turns] == [*"abcdd"]
    assert [turn.copy for turn in turns] == [None] * 3 + [(0, 0), None]
    copy, op = turns[-2:]
    ((key, size),) = copy.takes
    assert (size, list(copy.gives)) == (1024, [])
    assert key in op.gives
    assert [size for _, size in op.takes] == [512, 1536]


def test_no_two_holes_of_a_turn_are_equally_large() -> None:
    turn = Turn(op="a", takes=[(-1, 256), (0, 512), (1, 512)])
    assert turn.holes == {-1: 256, 0: 512, 1: 768}


def test_scratch_is_taken_and_given_by_its_op_as_it_is_asked_for() -> None:
    plan = unplanned(GRAPH, chain=tuple(ORDER))
    for asks, sizes in (
        ((), [512, 1536]),  # not known: outputs first, scratch in one piece
        ((1500, 0), [1536, 512]),
        ((700, -1, 0, 800), [768, 512, 1024]),
        ((1400, 100, 0), [1536, 512]),  # what is small has no turn
    ):
        turn = find_turns(asking(*asks), plan, 512)[-1]
        assert [size for _, size in turn.takes] == sizes
        scratch = [key for key, _ in turn.takes if key < 0]
        assert len(scratch) == len(sizes) - 1
        assert {*scratch} <= {*turn.gives}


def test_tensors_of_ops_without_order_lie_apart() -> None:
    graph, plan = GRAPH, unplanned(GRAPH, chain=tuple(ORDER[1:]))
    turns = find_turns(graph, plan, 512)
    taken = [chunk for turn in turns for chunk in turn.takes]
    assert sorted(size for _, size in taken) == [512, 512, 1536, 2048]
    assert {key for turn in turns for key in turn.gives} <= dict(taken).keys()
    assert bytes_apart(graph, plan, 512) == 1024 + 256  # and a fence


def test_tensors_that_are_copied_to_the_host_stay() -> None:
    ops = make_op("a", 512, to_host=True), make_op("b", 512, "a"), make_op("c", 512)
    graph = graph_of(*ops)
    turns = find_turns(graph, unplanned(graph, chain=tuple("abc")), 512)
    assert [(span.start, span.end) for span in spans(turns).values()] == [
        (0, 5),
        (2, 3),
        (4, 5),
    ]


def test_what_is_written_over_keeps_its_chunk() -> None:
    graph = graph_of(
        make_op("a", 512), make_op("b", 512, "a", inplace=True), make_op("c", 768, "b")
    )
    turns = find_turns(graph, unplanned(graph, chain=tuple("abc")), 512)
    assert [turn.op for turn in turns] == [*"abc"]
    assert [len(turn.takes) for turn in turns] == [1, 0, 1]
    ((held, _),) = turns[0].takes
    assert spans(turns)[held] == Span(512, 0, 5)
