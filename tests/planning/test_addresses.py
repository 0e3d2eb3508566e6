"""Planned addresses: best fit obeys the spacers; and which steps get none."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lms.ir.graph import GraphView, Op
from lms.ir.liveness import peak
from lms.planning.addresses import (
    Placed,
    Turn,
    find_turns,
    place,
    why_unsealed,
    why_variables_move,
)
from lms.planning.candidates import movable
from lms.planning.eviction import least_room
from lms.planning.spacers import Spaced, place_spacers
from lms.simulation.allocator import BestFitAllocator, SmallPool, rounded_up
from tests.graphs import graph_of, make_op, unplanned
from tests.planning.counting import plan_in_bytes
from tests.strategies import examples, graphs

# Bytes of the smallest chunk that gets an address: two of the allocator's.
LEAST = 512

# A step, its addresses, and the bytes of its smallest spacer.
Step = tuple[Sequence[Turn], Placed, int]


@st.composite
def placed_steps(draw: st.DrawFn) -> Step:
    """A drawn step that moves what it must, with addresses as high as it takes."""
    graph = draw(graphs())
    ops = [
        replace(
            op,
            outputs=tuple(replace(t, size=t.size * 64) for t in op.outputs),
            scratch=op.scratch * 64,
            asks=draw(st.sampled_from(((), (op.scratch * 64, 0, op.scratch * 64)))),
        )
        for op in graph.ops
    ]
    graph = replace(graph, ops=tuple(ops))
    able = movable(graph, min_bytes=LEAST)
    least, _ = least_room(graph, movable=able, min_bytes=LEAST)
    room = draw(st.integers(least, max(least, peak(graph))))
    plan = plan_in_bytes(graph, room, movable=able, min_bytes=LEAST)
    large = {size for t in find_turns(graph, plan, LEAST) for _, size in t.takes}
    # The prepared step is not sealed if a large chunk has a small one's size.
    small = draw(st.sampled_from(((), (256,), (LEAST,)[: LEAST not in large])))
    pool = SmallPool(sizes=small, below=LEAST)
    placed = place(graph, plan, pool, room=1 << 40, tries=8)
    assert placed is not None
    assert pool.spacer > max(small, default=0)
    turns = find_turns(graph, plan, LEAST, pool.spacer)
    return turns, placed, pool.spacer


def played(
    turns: Sequence[Turn],
    spaced: Spaced,
    orders: Sequence[Sequence[tuple[int, int]]],
    capacity: int,
    least: int,
) -> tuple[dict[int, int], int]:
    """Ask the allocator in the given orders; returns the addresses and the peak."""
    memory, spacers, found = BestFitAllocator(capacity), dict[int, int](), {}
    for number, (turn, takes) in enumerate(zip(turns, orders, strict=True)):
        for spacer in spaced.before.get(number, ()):
            if spacer.size:
                assert spacer.size >= least
                spacers[spacer.number] = memory.allocate(spacer.size)
            else:
                memory.free(spacers.pop(spacer.number))
        for key, size in takes:
            found[key] = memory.allocate(size)
        for key in turn.gives:
            memory.free(found[key])
    return found, memory.peak


def has_equals(turn: Turn) -> bool:
    return len({size for _, size in turn.takes}) < len(turn.takes)


@given(step=placed_steps(), percent=st.integers(100, 300), random=st.randoms())
@examples(150)
def test_spacers_make_best_fit_choose_the_planned_addresses(
    step: Step, percent: int, random: Random
) -> None:
    turns, placed, least = step
    capacity = rounded_up(placed.height * percent // 100)
    spaced = place_spacers(turns, placed.addresses, capacity, placed.height)
    if spaced is None:  # what is left of the hole of an equal chunk fits another
        assert any(map(has_equals, turns))
        return
    orders = [
        turn.takes if has_equals(turn) else random.sample(turn.takes, len(turn.takes))
        for turn in turns
    ]
    for asked in ([turn.takes for turn in turns], orders):
        found = played(turns, spaced, asked, capacity, least)
        assert found == (placed.addresses, spaced.peak)
    if percent >= 200:  # the free rest is never smaller than a hole below the height
        assert spaced.peak <= placed.height + least


LARGE = 1 << 20
A, B = make_op("a", LARGE), make_op("b", LARGE, "a")
VARIABLE = make_op("v", LARGE, persistent=True)
ASSIGN = Op(
    name="set",
    type="Assign",
    inputs=("v:0", "b:0"),
    writes=("v:0",),
    replaces_state=True,
)


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (graph_of(make_op("a", 64 * LARGE)), None),
        (graph_of(A, B), None),
        (graph_of(A, B, results=("a:0",)), "the step returns large tensors"),
        (
            graph_of(A, replace(B, fixed=True)),
            "no order is planned for loop or branch 'b'",
        ),
        (graph_of(A, replace(B, varies=True)), "the size of op 'b' depends on values"),
        (graph_of(A, B, VARIABLE, ASSIGN), "op 'set' gives a variable new memory"),
        (graph_of(A, B, make_op("c", 4, "b", fixed=True), results=("c:0",)), None),
    ],
)
def test_a_step_that_cannot_be_sealed_says_why(
    graph: GraphView, reason: str | None
) -> None:
    assert why_unsealed(graph) == reason


def test_variables_that_are_written_before_their_last_reader_move() -> None:
    def step(*order: str) -> GraphView:
        variables = [make_op(f"v{i}", 4, persistent=True) for i in (1, 2)]
        known = {
            "read1": make_op("read1", 4, "v1", persistent=True, reads_state=True),
            "read2": make_op("read2", 4, "v2", persistent=True, reads_state=True),
            "bias1": make_op("bias1", 4, "read1"),
            "bias2": make_op("bias2", 4, "read2"),
            "decay1": make_op("decay1", 0, "v1", writes=("v1:0",)),
            "decay2": make_op("decay2", 0, "v2", writes=("v2:0",)),
        }
        return graph_of(*variables, *(known[name] for name in order))

    late = step("read1", "bias1", "decay1", "read2", "bias2", "decay2")
    assert why_variables_move(late, 4) is None
    mixed = step("read1", "decay1", "bias1", "read2", "bias2", "decay2")
    assert why_variables_move(mixed, 8) is None
    assert why_variables_move(mixed, 4) == "op 'decay1' gives a variable new memory"
    early = step("read1", "decay1", "bias1", "read2", "decay2", "bias2")
    assert why_variables_move(early, 8) == "op 'decay2' gives a variable new memory"


def test_a_room_too_small_for_what_lives_at_once_has_no_addresses() -> None:
    graph, plan = graph_of(A, B), unplanned(graph_of(A, B), chain=("a", "b"))
    assert place(graph, plan, SmallPool(below=LEAST), 2 * LARGE - 256, tries=8) is None
    placed = place(graph, plan, SmallPool(below=LEAST), 2 * LARGE, tries=8)
    assert placed is not None
    assert placed.height == 2 * LARGE


def test_two_chunks_get_their_addresses_beside_a_hole_of_their_size() -> None:
    sizes = {0: 512, 1: 256, 2: 512, 3: 256, 4: 768, 5: 256}
    addresses = {0: 0, 1: 512, 2: 768, 3: 1280, 4: 1536, 5: 2304, 6: 0, 7: 1536}
    turns = [Turn(op=f"op {key}", takes=[(key, size)]) for key, size in sizes.items()]
    turns.append(Turn(op="frees", gives=[0, 2, 4]))
    turns.append(Turn(op="takes", takes=[(6, 512), (7, 512)], gives=[1, 3, 5, 6, 7]))
    assert place_spacers(turns, addresses, 8192, 2560) is not None
