"""A graph before and after rewriting as text, and a step that swaps between devices."""

from dataclasses import replace
from typing import Any

import pytest

from lms.errors import PlanError
from lms.ir.graph import GraphView, Op, Tensor
from lms.ir.plan import Swap, SwapIn, SwapPlan, validate_plan
from tests.graphs import make_op
from tests.tf.worker import Worker

pytestmark = pytest.mark.tf

#     a ─> b ─> c ─> d
#     └─> flat ──────┘      (`flat` gives a's buffer another shape)
GRAPH = GraphView(
    ops=(
        Op(
            name="shape",
            type="Const",
            persistent=True,
            outputs=(Tensor(name="shape:0", size=4, shape=(1,), dtype="int32"),),
        ),
        make_op("a", 400, type="A"),
        make_op("flat", 400, "a", "shape", type="Reshape", alias="a:0"),
        make_op("b", 4, "a", type="B"),
        make_op("c", 4, "b", type="C"),
        make_op("d", 4, "c", "flat", type="D"),
    ),
    results=("d:0",),
)
ORDER = ("shape", "a", "flat", "b", "c", "d")
PLAN = SwapPlan(
    planner="test",
    order=ORDER,
    chain=(("a",), ("b",), ("c",), ("d",)),
    swaps=(
        Swap(
            tensor="a:0",
            size=400,
            release="c",
            swap_ins=(SwapIn(trigger="b", readers=("d",)),),
        ),
    ),
)

BEFORE = """
shape = Const() on CPU:0
a = A() on CPU:0
flat = Reshape(a:0, shape:0) on CPU:0
b = B(a:0) on CPU:0
c = C(b:0) on CPU:0
d = D(c:0, flat:0) on CPU:0
"""

# The swap-in begins after its trigger, with the room of the swap-out; `c` waits for the
# swap-out, and until the swap-in has its room.
AFTER = """
shape = Const() on CPU:0
a = A() on CPU:0
flat = Reshape(a:0, shape:0) on CPU:0
b = B(a:0, ^a) on CPU:0
c = C(b:0, ^b, ^lms/0/a/out, ^lms/0/a/keep, ^lms/0/a/in0/settled) on CPU:0
d = D(c:0, lms/0/a/in0/in0/flat:0, ^c) on CPU:0
lms/0/a/out = _CopyFromGpuToHost(a:0) on CPU:0
lms/0/a/keep = Shape(a:0, ^b) on CPU:0
lms/0/a/in0/begin = NoOp(^lms/0/a/out, ^b, ^lms/0/a/keep) on CPU:0
lms/0/a/in0 = _CopyFromHostToGpu(lms/0/a/out, ^lms/0/a/in0/begin) on CPU:0
lms/0/a/in0/settled = NoOp(^lms/0/a/in0/begin) on CPU:0
lms/0/a/in0/in0/flat = Reshape(lms/0/a/in0:0, shape:0) on CPU:0
"""


def traced_step(graph: GraphView) -> Any:
    """The step that a graph would have come from."""
    from lms.tf import compat
    from lms.tf.capture.specialising import TracedStep

    nodes = []
    for op in graph.ops:
        # That a loop's exit waits for its body is known, but not an edge of the graph.
        controls = () if op.type == "Exit" else op.controls
        inputs = [*op.inputs, *(f"^{name}" for name in controls)]
        nodes.append(
            compat.NodeDef(
                name=op.name, op=op.type, input=inputs, device="/device:CPU:0"
            )
        )
    return TracedStep(
        graph=graph,
        nodes=tuple(nodes),
        library=None,
        arguments=(),
        outputs=graph.results,
        device="/device:CPU:0",
    )


def rewritten(graph: GraphView, plan: SwapPlan) -> str:
    from lms.tf.rewrite.rewriting import rewrite
    from lms.tf.rewrite.transports import DeviceCopy

    return text(rewrite(traced_step(graph), plan, DeviceCopy()))


def text(nodes: Any) -> str:
    lines = [
        f"{node.name} = {node.op}({', '.join(node.input)})"
        f" on {node.device.removeprefix('/device:')}"
        for node in nodes
    ]
    return "\n".join(["", *lines, ""])


def test_a_tensor_leaves_the_device_and_comes_back_for_its_late_reader() -> None:
    validate_plan(GRAPH, PLAN)
    assert text(traced_step(GRAPH).nodes) == BEFORE
    assert rewritten(GRAPH, PLAN) == AFTER


# `b` waits until the swap-out has begun, `c` until it has ended; what waits for that
# runs after `b`. `c` waits until the swap-in has begun; what waits for its end runs
# after `c`, just before the reader.
OVER_A_LINK = """
b = B(a:0, ^a, ^lms/0/a/out)
c = C(b:0, ^b, ^lms/0/a/out/ended, ^lms/0/a/keep, ^lms/0/a/in0/get)
d = D(c:0, lms/0/a/in0/in0/flat:0, ^c)
lms/0/a/out = PyFunc(a:0)
lms/0/a/out/ended = PyFunc(a:0, ^lms/0/a/out, ^b)
lms/0/a/in0/room = Empty(lms/0/a/in0/shape, ^lms/0/a/out/ended, ^b, ^lms/0/a/keep)
lms/0/a/in0/get = PyFunc(lms/0/a/in0/room)
lms/0/a/in0/arrived = PyFunc(^lms/0/a/in0/get, ^c)
lms/0/a/in0 = Identity(lms/0/a/in0/room, ^lms/0/a/in0/arrived)
"""


def over_a_link(graph: GraphView, plan: SwapPlan) -> dict[str, list[str]]:
    """The inputs of each node."""
    from lms.machine.emulated_link import EmulatedLink, LinkRates
    from lms.tf.rewrite.host_store import HostStore
    from lms.tf.rewrite.rewriting import rewrite

    validate_plan(graph, plan)
    link = EmulatedLink(LinkRates(h2d=1e9, d2h=1e9))
    nodes = rewrite(traced_step(graph), plan, HostStore(link))
    return {node.name: list(node.input) for node in nodes}


def test_over_an_emulated_link_what_holds_a_thread_runs_late() -> None:
    found = over_a_link(GRAPH, PLAN)
    for line in OVER_A_LINK.strip().split("\n"):
        name, _, rest = line.partition(" = ")
        assert found[name] == rest.partition("(")[2].rstrip(")").split(", ")


LEAVING = GraphView(
    ops=(
        make_op("a", 400),
        make_op("b", 400, "a", group="pair"),
        make_op("c", 4, "a", group="pair"),
        make_op("small", 4, "b"),
        make_op("d", 4, "c", "small"),
        make_op("e", 4, "d", "a"),
        make_op("f", 4, "e", "b"),
    ),
    results=("f:0",),
)
LEAVING_PLAN = SwapPlan(
    planner="test",
    order=tuple(op.name for op in LEAVING.ops),
    chain=(("a",), ("b", "c"), ("d",), ("e",), ("f",)),
    swaps=(
        Swap(
            tensor="a:0",
            size=400,
            release="d",
            swap_ins=(SwapIn(trigger="c", readers=("e",)),),
        ),
        Swap(
            tensor="b:0",
            size=400,
            release="f",
            swap_ins=(SwapIn(trigger="d", readers=("f",)),),
        ),
    ),
)


def test_a_copy_out_begins_before_anything_waits_for_another() -> None:
    found = over_a_link(LEAVING, LEAVING_PLAN)
    # The pair makes b, whose swap-out must not wait until a's has ended.
    ended = found["lms/0/a/out/ended"]
    assert ended == ["a:0", "^lms/0/a/out", "^b", "^c", "^lms/1/b/out"]
    assert "^lms/1/b/out" in found["d"]
    # A swap-in starts when its swap-out has ended: by its trigger, before its release.
    assert found["lms/1/b/in0/room"][1] == "^lms/1/b/out/ended"
    assert found["lms/1/b/out/ended"][2:] == ["^d"]
    assert found["lms/1/b/in0/arrived"] == ["^lms/1/b/in0/get", "^e"]


def test_where_no_order_says_how_late_a_wait_runs_at_once() -> None:
    swaps = tuple(
        replace(swap, release=None, swap_ins=(replace(swap.swap_ins[0], trigger=None),))
        for swap in LEAVING_PLAN.swaps
    )
    found = over_a_link(LEAVING, replace(LEAVING_PLAN, chain=(), swaps=swaps))
    assert found["lms/0/a/out/ended"] == ["a:0", "^lms/0/a/out"]
    assert found["lms/0/a/in0/arrived"] == ["^lms/0/a/in0/get"]
    assert found["lms/0/a/in0/room"][1:] == ["^lms/0/a/out/ended"]


def test_a_reader_in_no_group_waits_for_its_copy_and_nothing_else_does() -> None:
    plan = replace(
        LEAVING_PLAN,
        chain=(("a",), ("d",), ("f",)),
        swaps=(replace(LEAVING_PLAN.swaps[0], release="small"),),
    )
    plan = replace(
        plan,
        swaps=(
            replace(plan.swaps[0], swap_ins=(SwapIn(trigger="d", readers=("e",)),)),
        ),
    )
    found = over_a_link(LEAVING, plan)
    assert "^lms/0/a/out/ended" in found["small"]
    assert found["lms/0/a/out/ended"][2:] == ["^a"]  # before `small`, which is in none
    assert found["lms/0/a/in0/arrived"][1:] == ["^d"]


def test_without_a_link_nothing_waits_for_a_copy_that_has_been_made() -> None:
    from lms.tf.rewrite.host_store import HostStore
    from lms.tf.rewrite.rewriting import rewrite

    lines = text(rewrite(traced_step(GRAPH), PLAN, HostStore(None)))
    assert "ended" not in lines
    assert "arrived" not in lines
    assert "b = B(a:0, ^a) on CPU:0" in lines
    assert "^lms/0/a/in0/room) on CPU:0" in lines  # `c`: the swap-in has its room


def test_the_nodes_given_are_not_changed() -> None:
    from lms.tf.rewrite.rewriting import rewrite
    from lms.tf.rewrite.transports import DeviceCopy

    step = traced_step(GRAPH)
    rewrite(step, PLAN, DeviceCopy())
    assert text(step.nodes) == BEFORE


def test_a_plan_without_chain_and_swaps_changes_nothing() -> None:
    assert rewritten(GRAPH, SwapPlan(planner="none", order=ORDER)) == BEFORE


def test_ops_of_one_group_get_the_same_control_inputs() -> None:
    graph = GraphView(
        ops=(
            make_op("a", 8),
            make_op("b", 8, "a", group="pair"),
            make_op("c", 8, "a", group="pair"),
            make_op("d", 8, "b", "c"),
        ),
        results=("d:0",),
    )
    plan = SwapPlan(
        planner="test", order=("a", "b", "c", "d"), chain=(("a",), ("b", "c"), ("d",))
    )
    assert rewritten(graph, plan).split("\n")[2:5] == [
        "b = Op(a:0, ^a) on CPU:0",
        "c = Op(a:0, ^a) on CPU:0",
        "d = Op(b:0, c:0, ^b, ^c) on CPU:0",
    ]


def test_a_reader_outside_of_the_plan_reads_the_tensor_itself() -> None:
    lines = rewritten(GRAPH, PLAN).split("\n")
    assert "b = B(a:0, ^a) on CPU:0" in lines


def test_each_copy_in_has_its_own_readers() -> None:
    graph = GraphView(
        ops=(
            make_op("a", 400),
            make_op("b", 4, "a"),
            make_op("c", 4, "b", "a"),
            make_op("d", 4, "c", "a"),
        ),
        results=("d:0",),
    )
    copies = (
        SwapIn(trigger="b", readers=("c",)),
        SwapIn(trigger="c", readers=("d",)),
    )
    plan = SwapPlan(
        planner="test",
        order=("a", "b", "c", "d"),
        swaps=(Swap(tensor="a:0", size=400, release=None, swap_ins=copies),),
    )
    validate_plan(graph, plan)
    assert (
        rewritten(graph, plan)
        == """
a = Op() on CPU:0
b = Op(a:0) on CPU:0
c = Op(b:0, lms/0/a/in0:0) on CPU:0
d = Op(c:0, lms/0/a/in1:0) on CPU:0
lms/0/a/out = _CopyFromGpuToHost(a:0) on CPU:0
lms/0/a/in0/begin = NoOp(^lms/0/a/out, ^b) on CPU:0
lms/0/a/in0 = _CopyFromHostToGpu(lms/0/a/out, ^lms/0/a/in0/begin) on CPU:0
lms/0/a/in0/settled = NoOp(^lms/0/a/in0/begin) on CPU:0
lms/0/a/in1/begin = NoOp(^lms/0/a/out, ^c) on CPU:0
lms/0/a/in1 = _CopyFromHostToGpu(lms/0/a/out, ^lms/0/a/in1/begin) on CPU:0
lms/0/a/in1/settled = NoOp(^lms/0/a/in1/begin) on CPU:0
"""
    )


def test_a_plan_whose_ops_wait_in_a_circle_is_refused() -> None:
    backwards = SwapPlan(planner="test", order=ORDER, chain=(("c",), ("b",)))
    with pytest.raises(PlanError, match=r"2 ops wait in a circle.* 'b', 'c'\."):
        rewritten(GRAPH, backwards)


def test_a_plan_that_waits_in_a_circle_through_a_loop_is_refused() -> None:
    # enter ─> merge ─> next ─> (merge); merge ─> exit ─> after. `late` is read in the
    # loop, so the exit cannot come before it, though no edge but next's says so.
    graph = GraphView(
        ops=(
            make_op("first", 4),
            make_op("late", 4),
            make_op("enter", 4, "first", type="Enter", fixed=True),
            make_op("merge", 4, "enter", type="Merge", fixed=True),
            make_op("next", 4, "merge", "late", type="NextIteration", fixed=True),
            make_op("exit", 4, "merge", type="Exit", fixed=True, controls=("next",)),
            make_op("after", 4, "exit"),
        ),
        results=("after:0",),
    )
    plan = SwapPlan(
        planner="test",
        order=("first", "late", "enter", "merge", "next", "exit", "after"),
        chain=(("after",), ("late",)),
    )
    with pytest.raises(PlanError, match="wait in a circle"):
        rewritten(graph, plan)


@pytest.mark.slow
def test_a_step_that_swaps_to_another_device_has_the_same_numbers(
    worker: Worker,
) -> None:
    trial = worker.ask("tests.tf.trials:swap_between_devices", memory=None)
    assert trial["swaps"] > 0
    assert trial["different"] == []
    # As written, and in the graphs that the devices got after placement, partition and
    # the runtime's own passes. The tokens come back, and no control edge crosses.
    ran = trial["ran"]
    assert ran["ends"]["out _Recv CPU:1"] == trial["swaps"]
    assert ran["ends"]["in _Recv CPU:0"] >= trial["swaps"]
    assert ran["transfers"] == {
        "CPU:0 to CPU:1": trial["swaps"],
        "CPU:1 to CPU:0": trial["swaps"] + ran["ends"]["in _Recv CPU:0"],
    }
    assert trial["waiting"] > 0, "a swap-in waits for its trigger"
