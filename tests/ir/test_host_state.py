"""What the host holds is written when all have read it."""

from dataclasses import replace

import pytest

from lms.errors import PlanError
from lms.ir.graph import Arithmetic, GraphView, HostRows, HostUpdate, Op
from lms.ir.host_state import sent_bytes, written_bytes
from lms.ir.plan import Swap, SwapIn, SwapPlan, validate_plan
from lms.machine.costs import roofline
from lms.machine.presets import preset
from lms.simulation.memory import simulate_memory
from tests.graphs import make_op

ROWS = HostRows(variable="w:0", first=0, end=4)

# read (80) ──> a (10) ──> b (10) ──> new (80) ──> write
#   └───────────────────────┘
READ = make_op("read", 80, host_read=ROWS)
MIDDLE = (
    make_op("a", 10, "read"),
    make_op("b", 10, "a", "read"),
    make_op("new", 80, "b"),
)
WRITE = Op(name="write", type="W", inputs=("new:0",), controls=("b",), host_write=ROWS)
GRAPH = GraphView(ops=(READ, *MIDDLE, WRITE))
ORDER = ("read", "a", "b", "new", "write")
SWAP = Swap(
    tensor="read:0",
    size=80,
    release="b",
    swap_ins=(SwapIn(trigger="a", readers=("b",)),),
    held=True,
)
PLAN = SwapPlan(planner="", order=ORDER, swaps=(SWAP,))


def test_what_the_host_holds_leaves_without_a_copy() -> None:
    validate_plan(GRAPH, PLAN)
    assert (PLAN.swapped_out_bytes, PLAN.swapped_in_bytes) == (0, 80)
    assert simulate_memory(GRAPH, PLAN).host_peak == 0
    assert written_bytes(GRAPH) == 80
    assert SwapPlan.from_json(PLAN.to_json()) == PLAN


def test_an_update_on_the_host_sends_its_gradient_and_writes_what_it_makes() -> None:
    rate, gradient = make_op("rate", 4), make_op("g", 80)
    step = Arithmetic(type="Sub", inputs=("w", "g"), output="new")
    kept = HostRows(variable="m:0", first=0, end=4)
    arithmetic = HostUpdate(
        given=("g", "rate"),
        read=(("w", ROWS),),
        steps=(step,),
        written=(("new", ROWS), ("g", kept)),
        size=80,
    )
    update = Op(
        name="update", type="U", inputs=("g:0", "rate:0"), host_update=arithmetic
    )
    graph = GraphView(ops=(rate, gradient, update))
    assert (sent_bytes(graph), written_bytes(graph)) == (80, 160)
    slow = replace(preset("v100-pcie"), host_bandwidth=80.0, d2h=80.0, latency=0.0)
    # One copy; three passes of an op, four of each value that is written.
    assert roofline(graph, slow).of("update") == 1 + 3 + 2 * 4


def test_a_plan_must_say_what_the_host_holds() -> None:
    plan = replace(PLAN, swaps=(replace(SWAP, held=False),))
    with pytest.raises(PlanError, match="`held` of 'read:0' must be True"):
        validate_plan(GRAPH, plan)


def test_a_write_that_does_not_wait_for_a_reader_is_refused() -> None:
    late = make_op("late", 10, "read")
    graph = GraphView(ops=(READ, *MIDDLE, late, WRITE))
    plan = SwapPlan(planner="", order=(*ORDER[:-1], "late", "write"))
    with pytest.raises(PlanError, match="'late', which reads 'read', not made to"):
        validate_plan(graph, plan)
    waits = replace(WRITE, controls=("b", "late"))
    validate_plan(GraphView(ops=(READ, *MIDDLE, late, waits)), plan)


def test_other_rows_may_be_written_before() -> None:
    other = replace(ROWS, first=4, end=8)
    late = make_op("late", 10, host_read=other)
    graph = GraphView(ops=(READ, *MIDDLE, WRITE, late))
    validate_plan(graph, SwapPlan(planner="", order=(*ORDER, "late")))
