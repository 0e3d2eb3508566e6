"""Resolved plans: hand-drawn graphs with every position written down."""

import gc
import weakref
from typing import Any

import pytest

from lms.ir.graph import GraphView
from lms.ir.liveness import Buffer
from lms.ir.plan import Residency, ResolvedSwap, SwapPlan, resolve
from tests.graphs import (
    FORK,
    RESHAPE,
    SKIP,
    TWICE,
    TWO_WAITING,
    make_op,
    one_swap,
    unplanned,
)

Chain = tuple[str, ...]

# c and d of SKIP are ordered as one, b is not ordered.
CHAIN = ("a", "c", "e")


def the_swap(
    graph: GraphView, *copies: tuple[str | None, str], **others: Any
) -> ResolvedSwap:
    (swap,) = resolve(graph, one_swap(graph, *copies, **others)).swaps
    return swap


def spans(graph: GraphView, plan: SwapPlan) -> list[tuple[str, int, int, int | None]]:
    lives = resolve(graph, plan).residencies
    return [(life.root, life.start, life.end, life.dies_at) for life in lives]


def test_positions_are_those_of_the_plans_order() -> None:
    # c and y change places.
    order = ("x", "c", "y", "d", "e")
    plan = SwapPlan(planner="", order=order, chain=("c", "d"))
    resolved = resolve(TWO_WAITING.graph, plan)
    assert [op.name for op in resolved.ops] == list(order)
    assert list(resolved.buffers) == ["x:0", "c:0", "y:0", "d:0", "e:0"]
    assert [buffer.producer for buffer in resolved.buffers.values()] == [0, 1, 2, 3, 4]
    assert resolved.chain == (1, 3)


def test_the_ops_of_the_chain_have_numbers() -> None:
    resolved = resolve(SKIP.graph, one_swap(SKIP.graph, ("b", "e"), chain=CHAIN))
    assert resolved.chain == (0, 2, 4)
    assert resolved.link_of == {"a": 0, "c": 1, "e": 2}


def test_near_readers_are_those_that_read_no_copy() -> None:
    swap = the_swap(TWICE.graph, ("e", "f"))
    assert (swap.near, swap.last_near) == ((1, 3), 3)  # b and d
    assert swap.buffer == Buffer(root="a:0", size=100, producer=0, uses=(1, 3, 5))


def test_without_near_readers_the_original_is_needed_by_its_producer() -> None:
    swap = the_swap(TWICE.graph, ("a", "bdf"))
    assert (swap.near, swap.last_near, swap.leaves) == ((), 0, 1)


def test_the_near_reader_of_an_alias_reads_the_original() -> None:
    swap = the_swap(RESHAPE.graph, ("c", "b"))
    assert swap.near == (4,)  # d, by way of r


@pytest.mark.parametrize(
    ("release", "position", "leaves"),
    [
        ("d", 3, 3),  # where the release says
        (None, None, 2),  # after the last near reader, b
        ("b", 1, 2),  # a release before it frees nothing early
    ],
)
def test_the_originals_room_is_free_for_its_release(
    release: str | None, position: int | None, leaves: int
) -> None:
    swap = the_swap(SKIP.graph, ("d", "e"), release=release)
    assert (swap.last_near, swap.release, swap.release_link) == (1, position, None)
    assert swap.leaves == leaves


def test_releases_and_triggers_have_a_number_if_they_are_in_the_chain() -> None:
    inside = the_swap(SKIP.graph, ("c", "e"), release="c", chain=CHAIN)
    assert inside.release_link == inside.swap_ins[0].trigger_link == 1
    outside = the_swap(SKIP.graph, ("b", "e"), release="b", chain=CHAIN)
    assert outside.release_link is outside.swap_ins[0].trigger_link is None


def test_a_swap_in_has_a_first_and_a_last_reader() -> None:
    first, second = the_swap(TWICE.graph, ("a", "db"), ("e", "f")).swap_ins
    assert (first.readers, first.first_read, first.last_read) == ((3, 1), 1, 3)
    assert (second.readers, second.first_read, second.last_read) == ((5,), 5, 5)
    assert (first.trigger, second.trigger) == (0, 4)


@pytest.mark.parametrize(
    ("trigger", "readers", "chain", "starts"),
    [
        ("b", "e", ("a", "b", "d", "e"), 3),  # beside the next of the chain: d, not c
        ("b", "e", (), 2),  # none is ordered
        ("b", "e", ("a", "b"), 2),  # none after it
        ("b", "df", ("a", "b", "f"), 3),  # its first reader runs
        (None, "e", (), 1),  # after the producer
        (None, "e", CHAIN, 2),
    ],
)
def test_a_swap_in_takes_its_room_beside_the_op_after_its_trigger(
    trigger: str | None, readers: str, chain: Chain, starts: int
) -> None:
    graph = SKIP.graph if readers == "e" else TWICE.graph
    (copy,) = the_swap(graph, (trigger, readers), chain=chain).swap_ins
    assert copy.starts == starts
    assert (copy.trigger is None) is (trigger is None)


def test_what_stays_is_there_from_its_producer_to_its_last_reader() -> None:
    assert spans(FORK.graph, unplanned(FORK.graph)) == [
        ("a:0", 0, 3, 2),
        ("b:0", 1, 4, 3),
        ("c:0", 2, 4, 3),
        ("d:0", 3, 4, None),  # outlives the step
    ]


def test_what_nobody_reads_is_there_while_it_is_made() -> None:
    graph = GraphView(ops=(make_op("a", 8), make_op("b", 8)))
    assert spans(graph, unplanned(graph)) == [("a:0", 0, 1, None), ("b:0", 1, 2, None)]


def test_what_moves_is_there_as_the_original_and_as_each_copy() -> None:
    plan = one_swap(TWICE.graph, ("c", "d"), ("d", "f"), release="c")
    lives = resolve(TWICE.graph, plan).residencies
    original, first, second, b, *_ = lives
    assert original == Residency(root="a:0", start=0, end=2, size=100, dies_at=None)
    assert first == Residency(root="a:0", start=3, end=4, size=100, dies_at=3)
    assert second == Residency(root="a:0", start=4, end=6, size=100, dies_at=5)
    assert b == Residency(root="b:0", start=1, end=3, size=10, dies_at=2)
    assert len(lives) == 8


def test_a_plan_is_resolved_once() -> None:
    plan, other = one_swap(SKIP.graph, ("d", "e")), one_swap(SKIP.graph, ("c", "e"))
    resolved = resolve(SKIP.graph, plan)
    assert resolve(SKIP.graph, plan) is resolved
    assert resolve(SKIP.graph, other).swaps[0].swap_ins[0].trigger == 2
    assert resolve(SKIP.graph, plan) == resolved


def test_a_resolved_graph_goes_without_a_search_for_cycles() -> None:
    graph = GraphView(ops=SKIP.graph.ops)
    resolve(graph, one_swap(graph, ("d", "e")))
    gone = weakref.ref(graph)
    gc.disable()
    try:
        del graph
        assert gone() is None
    finally:
        gc.enable()
