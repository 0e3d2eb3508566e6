"""Which writes come last and which variables are kept: examples by hand, and a law."""

from dataclasses import replace

from hypothesis import given

from lms.ir.graph import GraphView
from lms.ir.liveness import memory_curve, peak
from lms.ir.write_guard import WriteGuard, can_come_last, guard_writes
from tests.graphs import graph_of, make_op, scheduled
from tests.strategies import examples, graphs

# seed ┄> noise (100) ─> gradient (8) ─> update          ┄> is a control edge
#                   └──> mean (1) ─> metric ┄> result (1)
STEP = graph_of(
    make_op("seed", 0, writes=("state:0",)),
    make_op("noise", 100, controls=("seed",)),
    make_op("mean", 1, "noise"),
    make_op("metric", 0, "mean", writes=("total:0",)),
    make_op("result", 1, controls=("metric",)),
    make_op("gradient", 8, "noise"),
    make_op("update", 0, "gradient", writes=("weight:0", "slot:0")),
    results=("result:0",),
)


def names(graph: GraphView) -> list[str]:
    return [op.name for op in graph.ops]


def test_a_write_that_a_large_op_waits_for_cannot_come_last() -> None:
    assert can_come_last(STEP) == {"metric", "update"}


def test_writes_come_last_with_what_follows_them() -> None:
    late = names(scheduled(STEP))[-3:]
    assert sorted(late) == ["metric", "result", "update"]
    assert names(scheduled(STEP))[0] == "seed"


def test_on_demand_writes_come_when_they_are_ready() -> None:
    # a (100) ─┬─> b (100) ─> gradient_b (8) ─> update_b
    #          └─> gradient_a (8) ─> update_a
    graph = graph_of(
        make_op("a", 100),
        make_op("gradient_a", 8, "a"),
        make_op("update_a", 0, "gradient_a", writes=("v:0",)),
        make_op("b", 100, "a"),
        make_op("gradient_b", 8, "b"),
        make_op("update_b", 0, "gradient_b", writes=("w:0",)),
    )
    early = scheduled(graph, writes_last=False)
    assert names(early).index("update_a") < names(early).index("update_b") - 1
    assert peak(early) == 200
    last = scheduled(graph)
    assert peak(last) == 208
    assert sorted(names(last)[-2:]) == ["update_a", "update_b"]


def test_late_writes_wait_for_the_last_ops_before_them() -> None:
    ordered = scheduled(STEP)
    guard = guard_writes(ordered, memory_curve(ordered), 100)
    assert sorted(guard.barrier) == ["gradient", "mean"]
    assert sorted(guard.late) == ["metric", "update"]
    assert guard.kept == ("state:0",)


def test_a_write_before_a_heavy_op_is_kept() -> None:
    curve = memory_curve(STEP)
    assert curve == [0, 100, 101, 101, 101, 109, 9]
    guard = guard_writes(STEP, curve, 110)
    assert guard.late == ("update",)
    assert guard.kept == ("state:0", "total:0")


def test_in_little_room_all_is_kept_and_nothing_waits() -> None:
    guard = guard_writes(STEP, memory_curve(STEP), 10)
    assert guard == WriteGuard(kept=("state:0", "total:0", "weight:0", "slot:0"))


def test_what_a_branch_writes_is_kept() -> None:
    inside = GraphView(ops=(make_op("w", 0, writes=("v:0",), fixed=True),))
    assert guard_writes(inside, [0], 10).kept == ("v:0",)
    assert can_come_last(inside) == frozenset()


def test_no_write_is_deferred_where_a_branch_may_fail_later() -> None:
    # noise (100) ┬─> mean (1) ─> metric     the barrier waits for the ops above
    #             └─> inside (40 or 400) ─> update     in a branch
    for size, late in ((40, ("metric",)), (400, ())):
        graph = graph_of(
            make_op("noise", 100),
            make_op("inside", size, "noise", fixed=True),
            make_op("update", 0, "inside", writes=("w:0",), fixed=True),
            make_op("mean", 1, "noise"),
            make_op("metric", 0, "mean", writes=("total:0",)),
        )
        guard = guard_writes(graph, [100, 40, 40, 101, 1], 110)
        assert guard.late == late
        assert guard.kept == (("w:0",) if late else ("w:0", "total:0"))


@given(graphs())
@examples(60)
def test_no_op_comes_between_the_last_writes_that_need_not_follow_one(
    graph: GraphView,
) -> None:
    ops = (
        replace(op, writes=("v:0",) if i % 3 == 0 else ())
        for i, op in enumerate(graph.ops)
    )
    graph = GraphView(ops=tuple(ops), results=graph.results)
    last = can_come_last(graph)
    maker = {t.name: op.name for op in graph.ops for t in op.outputs}
    tail: set[str] = set()
    for op in scheduled(graph).ops:
        sources = {*(maker[name] for name in op.inputs), *op.controls}
        if op.name in last or sources & tail:
            tail.add(op.name)
        assert not tail or op.name in tail
