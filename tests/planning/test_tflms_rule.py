"""IBM's rule: plans equal those worked out by hand on graphs of at most six ops."""

import pytest
from hypothesis import given

from lms.ir.graph import GraphView
from lms.ir.plan import Swap, SwapIn, SwapPlan
from lms.planning.tflms_rule import SyncMode, levels
from tests.graphs import (
    CONTROLLED,
    LOOP,
    RESHAPE,
    SKIP,
    Drawn,
    all_drawn,
    graph_of,
    make_op,
)
from tests.planning.ruled import plan, readers
from tests.strategies import examples, graphs

# a ─> b ─> c ─> d ─> e ─> f, and c, d and f read a: distances 2, 3 and 5.
FANNED = graph_of(
    make_op("a", 8),
    make_op("b", 1, "a"),
    make_op("c", 1, "b", "a"),
    make_op("d", 1, "c", "a"),
    make_op("e", 1, "d"),
    make_op("f", 1, "e", "a"),
)


def trigger(made: SwapPlan) -> str | None:
    """Return the trigger of the only swap-in."""
    ((swap_in,),) = (swap.swap_ins for swap in made.swaps)
    return swap_in.trigger


# ------------------------------------------------------------------------------ levels


@pytest.mark.parametrize("drawn", all_drawn().values(), ids=all_drawn())
def test_a_level_is_the_longest_path_from_a_source(drawn: Drawn) -> None:
    assert tuple(levels(drawn.graph).values()) == drawn.levels


@given(graphs())
@examples(40)
def test_an_op_is_one_level_above_the_highest_it_waits_for(graph: GraphView) -> None:
    level = levels(graph)
    maker = {t.name: op.name for op in graph.ops for t in op.outputs}
    for op in graph.ops:
        before = {maker[name] for name in op.inputs} | set(op.controls)
        assert level[op.name] == max([level[name] + 1 for name in before], default=0)


def test_the_order_is_by_level_then_as_given() -> None:
    graph = graph_of(
        make_op("a", 1), make_op("b", 1, "a"), make_op("z", 1), make_op("c", 1)
    )
    assert plan(graph).order == ("a", "z", "c", "b")


# --------------------------------------------------------------- which readers are far


def test_a_reader_at_the_threshold_is_near_and_one_above_it_is_far() -> None:
    assert plan(SKIP.graph, 4).swaps == ()
    copy = SwapIn(trigger="c", readers=("e",))
    assert plan(SKIP.graph, 3).swaps == (
        Swap(tensor="a:0", size=100, release=None, swap_ins=(copy,)),
    )


def test_a_plan_without_serialization_leaves_the_order_to_the_runtime() -> None:
    made = plan(SKIP.graph, 3)
    assert (made.planner, made.chain) == ("threshold", ())
    assert made.chosen.startswith("thresholds ")


def test_near_readers_keep_the_original() -> None:
    assert readers(plan(FANNED, 2)) == ["d", "f"]


def test_only_what_may_move_moves() -> None:
    assert plan(SKIP.graph, 3, movable=frozenset(["b:0"])).swaps == ()


def test_what_must_stay_stays_even_if_it_is_said_to_be_movable() -> None:
    graph = GraphView(ops=SKIP.graph.ops, results=("a:0",))
    assert plan(graph, 3, movable=frozenset(["a:0"])).swaps == ()


def test_the_reader_of_an_alias_counts_with_its_own_level() -> None:
    # a is at 0, its reshape at 1, the reader of the reshape at 3.
    assert plan(RESHAPE.graph, 3).swaps == ()
    assert readers(plan(RESHAPE.graph, 2)) == ["d"]


# ------------------------------------------------------------------------- swap-ins


@pytest.mark.parametrize(
    ("groupby", "expected"), [(0, ["c", "d", "f"]), (1, ["cd", "f"]), (2, ["cdf"])]
)
def test_a_reader_shares_the_copy_of_the_reader_before_it(
    groupby: int, expected: list[str]
) -> None:
    # c, d and f are at levels 2, 3 and 5: from the first to the last are three levels,
    # and no gap is larger than two.
    assert readers(plan(FANNED, 1, swapin_groupby=groupby)) == expected


@pytest.mark.parametrize(
    ("ahead", "expected"), [(1, "c"), (2, "b"), (3, "d"), (9, "d")]
)
def test_the_trigger_is_more_than_so_many_levels_ahead(
    ahead: int, expected: str
) -> None:
    # e is at level 4: level 2, 1; then there is no level left above a's, and e's other
    # input is waited for.
    assert trigger(plan(SKIP.graph, 3, swapin_ahead=ahead)) == expected


def fan(*reads: str) -> GraphView:
    """Return a graph with p and q at level 1; e reads a and r; r reads `reads`."""
    return graph_of(
        make_op("a", 100),
        make_op("p", 1, "a"),
        make_op("q", 1, "a"),
        make_op("r", 1, *reads),
        make_op("e", 1, "r", "a"),
    )


ALIASED = graph_of(
    make_op("a", 100),
    make_op("r", 100, "a", alias="a:0"),
    make_op("s", 100, "r", alias="r:0"),
    make_op("b", 1, "a"),
    make_op("c", 1, "b"),
    make_op("e", 1, "s"),
)


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (fan("q", "p"), "p"),  # of several the first in execution order
        (fan("q"), "q"),  # an op that the reader needs
        # p reaches e by control edges only: e's other predecessor is waited for.
        (CONTROLLED.graph, "q"),
        # Nothing but two reshapes reaches e, and it has no other input: the last op
        # below its level is waited for.
        (ALIASED, "c"),
    ],
)
def test_a_trigger_is_what_the_reader_needs(graph: GraphView, expected: str) -> None:
    assert trigger(plan(graph, 2)) == expected


def test_a_loop_is_no_trigger() -> None:
    # d at level 4 reads w at 3; one level ahead is c at 2; w itself never is.
    assert trigger(plan(LOOP.graph, 3)) == "c"
    assert trigger(plan(LOOP.graph, 3, sync_mode=SyncMode.SWAP_IN)) == "c"


# ----------------------------------------------------------------------------- waiting


@pytest.mark.parametrize(
    ("mode", "release", "start"),
    [
        (SyncMode.OFF, None, "c"),
        (SyncMode.SWAP_OUT, "b", "c"),
        (SyncMode.SWAP_IN, None, "d"),
        (SyncMode.BOTH, "b", "d"),
    ],
)
def test_a_sync_mode_chooses_what_waits(
    mode: SyncMode, release: str | None, start: str
) -> None:
    made = plan(SKIP.graph, 3, sync_mode=mode)
    assert (made.swaps[0].release, trigger(made)) == (release, start)


def test_without_near_readers_the_next_level_waits_for_the_copy_out() -> None:
    made = plan(CONTROLLED.graph, 2, sync_mode=SyncMode.SWAP_OUT)
    assert made.swaps[0].release == "p"


def test_an_alias_does_not_wait_for_the_copy_out() -> None:
    made = plan(RESHAPE.graph, 2, sync_mode=SyncMode.SWAP_OUT)
    assert made.swaps[0].release == "b"


def test_no_copy_in_waits_for_a_copy_out_of_what_it_leads_to() -> None:
    # Serialised are b and f alone. The copy that e reads starts beside f, and would
    # wait for the swap-outs that f releases: x's, which e makes.
    graph = graph_of(
        make_op("a", 8),
        make_op("b", 8, "a"),
        make_op("e", 8, "b", "a"),
        make_op("f", 8, "e"),
        make_op("g", 8, "f", "e"),
    )
    both = frozenset(["a:0", "e:0"])
    made = plan(graph, movable=both, sync_mode=SyncMode.BOTH, serialization=["1", "3"])
    assert made.chain == ("b", "f")
    waits = {swap.tensor: swap.release for swap in made.swaps}
    starts = {swap.tensor: swap.swap_ins[0].trigger for swap in made.swaps}
    assert starts == {"a:0": "b", "e:0": "f"}
    assert waits == {"a:0": "b", "e:0": None}


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        (0, SyncMode.OFF),
        (1, SyncMode.SWAP_OUT),
        (2, SyncMode.SWAP_IN),
        (3, SyncMode.BOTH),
        ("off", SyncMode.OFF),
        ("swap-out", SyncMode.SWAP_OUT),
        ("swap-in", SyncMode.SWAP_IN),
        ("both", SyncMode.BOTH),
        (SyncMode.BOTH, SyncMode.BOTH),
    ],
)
def test_a_sync_mode_is_read_from_number_and_name(
    given: int | str | SyncMode, mode: SyncMode
) -> None:
    assert SyncMode.parse(given) is mode


# -------------------------------------------------------------------------- bad values


def test_a_graph_without_ops_has_an_empty_plan() -> None:
    assert plan(GraphView(ops=()), serialization=[":"]).order == ()
