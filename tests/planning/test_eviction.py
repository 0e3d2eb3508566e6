"""The budget planner's choices, worked out by hand on graphs of at most six ops."""

import pytest

from lms.ir.graph import GraphView
from lms.ir.plan import Swap, SwapIn, SwapPlan, validate_plan
from lms.planning.candidates import movable
from lms.planning.eviction import least_room
from lms.simulation.memory import simulate_memory
from tests.graphs import (
    LOOP,
    RESHAPE,
    SKIP,
    TWICE,
    TWO_WAITING,
    Drawn,
    all_drawn,
    graph_of,
    make_op,
)
from tests.planning.counting import plan_in_bytes


def plan(graph: GraphView, budget: int) -> SwapPlan:
    """A valid plan for a graph in which everything is large enough to move."""
    able = movable(graph, min_bytes=1)
    made = plan_in_bytes(graph, budget, movable=able, min_bytes=1)
    validate_plan(graph, made)
    return made


def least(graph: GraphView) -> tuple[int, str]:
    return least_room(graph, movable=movable(graph, min_bytes=1), min_bytes=1)


def peak(graph: GraphView, made: SwapPlan) -> int:
    return simulate_memory(graph, made).device_peak


@pytest.mark.parametrize("drawn", all_drawn().values(), ids=all_drawn())
def test_a_step_that_fits_is_left_alone(drawn: Drawn) -> None:
    assert plan(drawn.graph, max(drawn.curve)).swaps == ()


def test_an_idle_tensor_leaves_for_an_op_and_is_back_for_its_reader() -> None:
    # At c: 100 of a are idle, b and c need 90. a is back after d, before e.
    made = plan(SKIP.graph, 120)
    copy = SwapIn(trigger="d", readers=("e",))
    assert made.swaps == (Swap(tensor="a:0", size=100, release="c", swap_ins=(copy,)),)
    assert simulate_memory(SKIP.graph, made).device == (100, 110, 90, 90, 120)


def test_of_two_idle_tensors_the_one_read_last_leaves() -> None:
    # At c: 80 are idle, 70 needed. y is read at d, x at e: x goes.
    made = plan(TWO_WAITING.graph, 110)
    assert [swap.tensor for swap in made.swaps] == ["x:0"]
    assert made.swaps[0].release == "c"
    assert made.swaps[0].swap_ins == (SwapIn(trigger="d", readers=("e",)),)
    assert simulate_memory(TWO_WAITING.graph, made).device == (40, 80, 110, 60, 60)


def test_a_copy_back_waits_where_there_is_no_room() -> None:
    # With 90 both leave for c; y is back for d, and x beside d would need 100.
    made = plan(TWO_WAITING.graph, 90)
    copies = {swap.tensor: swap.swap_ins[0].trigger for swap in made.swaps}
    assert copies == {"x:0": "d", "y:0": "c"}


def test_a_tensor_is_copied_out_once_and_back_each_time() -> None:
    made = plan(TWICE.graph, 120)
    copies = (SwapIn(trigger="c", readers=("d",)), SwapIn(trigger="e", readers=("f",)))
    assert made.swaps == (Swap(tensor="a:0", size=100, release="c", swap_ins=copies),)
    device = simulate_memory(TWICE.graph, made).device
    assert device == (100, 110, 110, 120, 110, 120)


def test_a_buffer_and_its_alias_count_once() -> None:
    # At c: 100 of a are idle, b and c need 100. The alias's reader reads the copy.
    made = plan(RESHAPE.graph, 160)
    assert [(swap.tensor, swap.release) for swap in made.swaps] == [("a:0", "c")]
    assert [copy.readers for copy in made.swaps[0].swap_ins] == [("d",)]
    assert least(RESHAPE.graph) == (160, "d")


def test_a_loop_is_not_waited_for_but_charged() -> None:
    # a must leave before w runs: c waits, the last ordered op before it.
    made = plan(LOOP.graph, 120)
    copy = SwapIn(trigger="c", readers=("d",))
    assert made.swaps == (Swap(tensor="a:0", size=100, release="c", swap_ins=(copy,)),)
    assert simulate_memory(LOOP.graph, made).device == (100, 110, 20, 80, 120)


def test_only_what_may_move_moves() -> None:
    # x is read later than y, but stays.
    made = plan_in_bytes(
        TWO_WAITING.graph, 110, movable=frozenset(["y:0"]), min_bytes=1
    )
    assert [swap.tensor for swap in made.swaps] == ["y:0"]


@pytest.mark.parametrize(
    ("drawn", "bytes_", "op"),
    [(SKIP, 120, "e"), (LOOP, 120, "d"), (TWICE, 120, "d"), (TWO_WAITING, 70, "c")],
    ids=["skip", "loop", "twice", "two waiting"],
)
def test_the_least_room_works_and_one_byte_less_does_not(
    drawn: Drawn, bytes_: int, op: str
) -> None:
    assert least(drawn.graph) == (bytes_, op)
    assert peak(drawn.graph, plan(drawn.graph, bytes_)) == bytes_
    with pytest.raises(MemoryError):
        plan(drawn.graph, bytes_ - 1)


def test_what_may_not_move_counts_towards_the_least_room() -> None:
    nothing = frozenset[str]()
    assert least_room(SKIP.graph, movable=nothing, min_bytes=1) == (190, "c")


def test_small_ops_are_charged_to_the_ordered_op_before_them() -> None:
    # x touches nothing of 50 bytes, so it runs beside a: 60 + 3 + 49.
    graph = graph_of(
        make_op("a", 60), make_op("x", 3, scratch=49), make_op("b", 45, "a", "x")
    )
    able = movable(graph, min_bytes=50)
    assert least_room(graph, movable=able, min_bytes=50) == (112, "a")
    made = plan_in_bytes(graph, 112, movable=able, min_bytes=50)
    assert made.chain == ("a", "b")


def test_a_graph_without_ops_needs_no_room() -> None:
    assert plan(GraphView(ops=()), 0).swaps == ()
    assert least(GraphView(ops=()))[0] == 0
