"""The simulator: a swap worked out by hand, and a naive second implementation."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lms.ir.graph import GraphView, Op, Tensor
from lms.ir.liveness import Buffer, buffers, memory_curve
from lms.ir.plan import Swap, SwapIn, SwapPlan, validate_plan
from lms.planning.candidates import large_ops, movable
from lms.simulation.memory import (
    Region,
    allocator_peak,
    peaks_by_region,
    simulate_memory,
)
from tests.graphs import (
    SKIP,
    Drawn,
    all_drawn,
    graph_of,
    make_op,
    one_of_two_written_over,
    one_swap,
    unplanned,
)
from tests.strategies import examples, graphs

AMPLE = 2**40


@pytest.mark.parametrize("drawn", all_drawn().values(), ids=all_drawn())
def test_a_plan_without_swaps_changes_nothing(drawn: Drawn) -> None:
    timeline = simulate_memory(drawn.graph, unplanned(drawn.graph))
    assert timeline.device == drawn.curve
    assert timeline.host_peak == 0


def test_a_tensor_that_moves_takes_no_room_between_release_and_trigger() -> None:
    plan = one_swap(SKIP.graph, ("d", "e"), release="c")
    timeline = simulate_memory(SKIP.graph, plan)
    #                           a    b    c   d   e
    assert timeline.device == (100, 110, 90, 90, 120)
    assert timeline.host == (0, 100, 100, 100, 100)
    assert (timeline.device_peak, timeline.host_peak) == (120, 100)


@pytest.mark.parametrize("reads", [("b", "a"), ("a", "b")])
def test_an_op_writes_over_the_first_of_its_inputs_that_can_be(
    reads: tuple[str, str],
) -> None:
    graph = one_of_two_written_over(reads)
    peak = allocator_peak(graph, unplanned(graph), capacity=3072)
    assert (peak is not None) is (reads[0] == "a")


def test_a_copy_back_takes_its_own_chunk_and_not_a_dying_input() -> None:
    graph = graph_of(
        make_op("a", 1024),
        make_op("b", 1024, "a"),
        make_op("c", 1024, "b", inplace=True),
        make_op("d", 256, "a"),
        make_op("e", 2048, "c"),
    )
    plan = one_swap(graph, ("b", "d"))  # back beside c, which writes over b
    assert allocator_peak(graph, plan, capacity=3328) is None
    assert allocator_peak(graph, plan, capacity=5120) is not None


def test_an_op_writes_over_a_copy_back_that_starts_beside_it() -> None:
    graph = graph_of(
        make_op("a", 1024),
        make_op("b", 1024, "a"),
        make_op("c", 1024, "a", inplace=True),
        make_op("d", 256, "b", "c"),
    )
    plan = one_swap(graph, ("b", "c"))
    assert allocator_peak(graph, plan, capacity=8192) == 2304


def test_the_allocator_reports_whole_chunks() -> None:
    # Each tensor takes 256 bytes at least: a, c and d, or a, b and c, at once.
    assert allocator_peak(SKIP.graph, unplanned(SKIP.graph), capacity=4096) == 768


def test_a_region_that_is_too_small_has_no_peak() -> None:
    assert allocator_peak(SKIP.graph, unplanned(SKIP.graph), capacity=512) is None


# v is a variable; its new value (512 bytes) is made and takes the old one's place.
NEW_VALUE = graph_of(
    Op(name="v", type="Arg", persistent=True, outputs=(Tensor(name="v:0", size=0),)),
    make_op("made", 512),
    Op(
        name="set",
        type="Assign",
        inputs=("v:0", "made:0"),
        writes=("v:0",),
        replaces_state=True,
    ),
    make_op("large", 1024),
)


def test_a_new_value_stays_and_the_old_one_goes() -> None:
    # v lies before the region. Made takes 512 of it, v's old 512 are free, and large
    # finds 1024 behind.
    plan = unplanned(NEW_VALUE)
    assert allocator_peak(NEW_VALUE, plan, capacity=512 + 1024) == 1024
    # 256 less: nothing behind made is large enough, though 512 + 768 are free.
    assert allocator_peak(NEW_VALUE, plan, capacity=256 + 1024) is None


def test_one_step_is_played_since_large_variables_stay_where_they_are() -> None:
    # Large has the 1024 behind v, then made the first half of them. A step that began
    # with v there would have no 1024 in one piece.
    one, made, assigned, large = NEW_VALUE.ops
    graph = GraphView(ops=(one, large, made, assigned))
    assert allocator_peak(graph, unplanned(graph), capacity=1024) == 1024
    assert allocator_peak(graph, unplanned(graph), capacity=1024 - 256) is None


def test_a_region_smaller_than_its_variables_has_no_peak() -> None:
    assert allocator_peak(NEW_VALUE, unplanned(NEW_VALUE), capacity=0) is None


def test_scratch_counts_before_outputs_and_after_them() -> None:
    graph = graph_of(
        make_op("a", 256), make_op("b", 1024, "a", scratch=1024), results=("a:0",)
    )
    plan = unplanned(graph)
    for first in (False, True):
        region = Region(capacity=256 + 2048, scratch_first=first)
        assert list(peaks_by_region(graph, plan, [region])) == [256 + 2048]
        region = Region(capacity=2048, scratch_first=first)
        assert list(peaks_by_region(graph, plan, [region])) == [None]


@st.composite
def planned(draw: st.DrawFn) -> tuple[GraphView, SwapPlan]:
    """A graph and any plan that can be obeyed, sensible or not."""
    graph = draw(graphs())
    order = [op.name for op in graph.ops]
    ordered = large_ops(graph, min_bytes=draw(st.sampled_from((1, 16))))
    chain = ordered if draw(st.booleans()) else ()
    able = movable(graph, min_bytes=1)
    swaps: list[Swap] = []
    for buffer in buffers(graph):
        if buffer.root not in able or draw(st.integers(0, 3)) == 3:
            continue
        # Readers from some point on read copies, cut at random places.
        first = draw(st.integers(0, len(buffer.uses)))
        copies: list[list[int]] = []
        for use in buffer.uses[first:]:
            if not copies or draw(st.booleans()):
                copies.append([])
            copies[-1].append(use)
        later = range(buffer.producer + 1, len(order))
        release = draw(st.sampled_from(later)) if draw(st.booleans()) else None
        swaps.append(
            Swap(
                tensor=buffer.root,
                size=buffer.size,
                release=None if release is None else order[release],
                swap_ins=tuple(
                    SwapIn(
                        trigger=_draw_trigger(draw, order, buffer.producer, uses[0]),
                        readers=tuple(order[use] for use in uses),
                    )
                    for uses in copies
                ),
            )
        )
    plan = SwapPlan(
        planner="random", order=tuple(order), chain=chain, swaps=tuple(swaps)
    )
    return graph, plan


def _draw_trigger(
    draw: st.DrawFn, order: list[str], producer: int, reader: int
) -> str | None:
    between = range(producer, reader)
    return draw(st.sampled_from([None, *(order[i] for i in between)]))


def naive_memory(graph: GraphView, plan: SwapPlan) -> list[int]:
    """At each op, ask every buffer what it has on the device."""
    at = {name: i for i, name in enumerate(plan.order)}
    chained = {at[name] for name in plan.chain}
    swaps = {swap.tensor: swap for swap in plan.swaps}
    curve: list[int] = []
    for now, op in enumerate(graph.ops):
        total, dying = op.scratch, 0
        for buffer in buffers(graph):
            swap = swaps.get(buffer.root)
            if swap is None:
                end = len(graph.ops) if buffer.kept else buffer.last
                total += buffer.size * (buffer.producer <= now <= end)
                ends = [] if buffer.kept else buffer.uses[-1:]
            else:
                total += buffer.size * original_is_there(buffer, swap, at, now)
                ends = [max(at[name] for name in c.readers) for c in swap.swap_ins]
                total += buffer.size * sum(
                    copy_is_there(buffer, copy, at, chained, now)
                    for copy in swap.swap_ins
                )
            largest = max((tensor.size for tensor in op.outputs), default=None)
            if op.inplace and buffer.size == largest:
                dying = max(dying, buffer.size * (now in ends))
        curve.append(total - dying)
    return curve


def original_is_there(
    buffer: Buffer, swap: Swap, at: Mapping[str, int], now: int
) -> bool:
    far = {at[name] for copy in swap.swap_ins for name in copy.readers}
    if now < buffer.producer:
        return False
    if swap.release is not None and now < at[swap.release]:
        return True
    return now == buffer.producer or any(now <= use for use in set(buffer.uses) - far)


def copy_is_there(
    buffer: Buffer, copy: SwapIn, at: Mapping[str, int], chained: set[int], now: int
) -> bool:
    reads = sorted(at[name] for name in copy.readers)
    trigger = buffer.producer if copy.trigger is None else at[copy.trigger]
    if now <= trigger or now > reads[-1]:
        return False
    ordered = [i for i in chained if i > trigger]
    return now >= reads[0] or not ordered or now >= min(ordered)


@given(planned())
@examples(100)
def test_memory_is_what_a_naive_second_implementation_says(
    case: tuple[GraphView, SwapPlan],
) -> None:
    graph, plan = case
    validate_plan(graph, plan)
    assert list(simulate_memory(graph, plan).device) == naive_memory(graph, plan)


@given(planned())
@examples(50)
def test_the_host_holds_no_more_than_what_was_copied_out(
    case: tuple[GraphView, SwapPlan],
) -> None:
    graph, plan = case
    timeline = simulate_memory(graph, plan)
    assert 0 <= min(timeline.host) <= timeline.host_peak <= plan.swapped_out_bytes


@given(planned())
@examples(50)
def test_the_allocator_reports_no_less_than_what_is_there(
    case: tuple[GraphView, SwapPlan],
) -> None:
    graph, plan = case
    reported = allocator_peak(graph, plan, capacity=AMPLE)
    assert reported is not None
    assert reported >= simulate_memory(graph, plan).device_peak


@given(graphs())
@examples(50)
def test_a_random_graph_without_swaps_has_its_memory_curve(graph: GraphView) -> None:
    assert list(simulate_memory(graph, unplanned(graph)).device) == memory_curve(graph)
