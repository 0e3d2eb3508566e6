"""Orders: the one worked out by hand, and never worse than the given one."""

from hypothesis import given

from lms.ir.graph import GraphView
from lms.ir.liveness import memory_curve, peak, working_sets
from lms.planning.schedule import hastened, orders
from tests.graphs import graph_of, make_op, scheduled
from tests.strategies import examples, graphs


def names(graph: GraphView) -> str:
    return "".join(op.name for op in graph.ops)


def test_the_op_that_frees_most_goes_first() -> None:
    # Reading each large tensor as soon as it is made holds one of them at a time.
    graph = graph_of(
        make_op("a", 90),
        make_op("b", 80),
        make_op("c", 1, "a"),
        make_op("d", 1, "b"),
        make_op("e", 1, "c", "d"),
    )
    assert peak(graph) == 171
    better = scheduled(graph)
    assert names(better) == "bdace"
    assert memory_curve(better) == [80, 81, 91, 92, 3]


def test_equal_ops_keep_the_given_order() -> None:
    graph = GraphView(ops=tuple(make_op(name, 8) for name in "cab"))
    assert names(scheduled(graph)) == "cab"


def test_the_given_order_is_kept_where_greed_is_worse() -> None:
    # Greed takes the small tensors first and then holds them beside the large one.
    graph = graph_of(
        make_op("a", 10),
        make_op("b", 1, "a", scratch=90),
        make_op("c", 5),
        make_op("d", 1, "c", "b"),
    )
    assert names(scheduled(graph)) == "abcd"


@given(graphs())
@examples(60)
def test_the_peak_is_never_above_that_of_the_given_order(graph: GraphView) -> None:
    better = scheduled(graph)
    assert sorted(names(better)) == sorted(names(graph))
    assert peak(better) <= peak(graph)


@given(graphs())
@examples(60)
def test_the_first_order_holds_no_more_above_half_of_the_peak(graph: GraphView) -> None:
    first = orders(graph)[0]
    half = min(peak(order) for order in (first, scheduled(graph))) // 2

    def above(order: GraphView) -> int:
        pairs = zip(memory_curve(order), working_sets(order), strict=True)
        return sum(max(0, used - half) * touched for used, touched in pairs)

    assert sorted(op.name for op in first.ops) == sorted(op.name for op in graph.ops)
    if peak(first) >= peak(scheduled(graph)):
        assert above(first) <= above(scheduled(graph))


def test_a_metric_takes_what_it_waits_for_along() -> None:
    # The logits are read by the loss, and at the end by a metric, through two ops.
    graph = graph_of(
        make_op("l", 90),
        make_op("g", 90, "l"),
        make_op("h", 10, "g"),
        make_op("i", 90, "l"),
        make_op("j", 20, "i"),
        make_op("m", 1, "j", "l"),
    )
    assert names(hastened(graph)) == "lijmgh"
    assert peak(hastened(graph)) == peak(graph)
