"""A graph before and after rewriting as text, and a step that swaps on a card."""

from dataclasses import replace
from typing import Any

import pytest

from lms.emulation.card import LinkRates
from lms.errors import PlanError
from lms.ir.graph import GraphView, Op, Tensor
from lms.ir.plan import SwapPlan, validate_plan
from lms.tf import compat
from lms.tf.lowering import TracedStep
from lms.tf.rewriting import Seal, rewrite
from tests.graphs import graph_of, make_op, one_swap, unplanned
from tests.tf.worker import Worker

pytestmark = pytest.mark.tf

TRIALS = "tests.tf.swap_trials"

#     a ─> b ─> c ─> d
#     └─> flat ──────┘      (`flat` gives a's buffer another shape)
GRAPH = graph_of(
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
    results=("d:0",),
)
PLAN = one_swap(GRAPH, ("b", "d"), release="c", chain="abcd")

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
    nodes = []
    for op in graph.ops:
        # A loop's exit waits for its body, though the graph has no such edge.
        controls = () if op.type == "Exit" else op.controls
        inputs = [*op.inputs, *(f"^{name}" for name in controls)]
        where: Any = {"device": "/device:CPU:0"}
        nodes.append(compat.NodeDef(name=op.name, op=op.type, input=inputs, **where))
    return TracedStep(
        graph=graph,
        nodes=tuple(nodes),
        library=None,
        arguments=(),
        outputs=graph.results,
        device="/device:CPU:0",
    )


def rewritten(graph: GraphView, plan: SwapPlan) -> str:
    return text(rewrite(traced_step(graph), plan))


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


def test_a_write_waits_for_the_planned_readers_of_the_old_value() -> None:
    graph = graph_of(
        make_op("v", 4, persistent=True),
        make_op("read", 4, "v", persistent=True, reads_state=True),
        make_op("flat", 4, "read", alias="read:0"),
        make_op("bias", 4, "flat"),
        make_op("decay", 0, "v", writes=("v:0",)),
        make_op("late", 4, "read"),
        results=("bias:0", "late:0"),
    )

    def waits(chain: tuple[str, ...], elsewhere: str = "") -> list[str]:
        order = tuple(op.name for op in graph.ops)
        step = traced_step(graph)
        for node in step.nodes:
            node.device = "/device:CPU:1" if node.name == elsewhere else node.device
        plan = SwapPlan(planner="", order=order, chain=chain)
        nodes = {node.name: node for node in rewrite(step, plan)}
        return list(nodes["decay"].input)

    chain = ("bias", "late")
    assert waits(chain) == ["v:0", "^flat", "^bias"]
    assert waits(chain, elsewhere="bias") == ["v:0", "^flat"]
    assert waits(chain, elsewhere="decay") == ["v:0"]
    assert waits(()) == ["v:0"], "TensorFlow's own order is not enforced"


def test_the_nodes_given_are_not_changed() -> None:
    step = traced_step(GRAPH)
    rewrite(step, PLAN)
    assert text(step.nodes) == BEFORE


def test_a_plan_without_chain_and_swaps_changes_nothing() -> None:
    assert rewritten(GRAPH, unplanned(GRAPH)) == BEFORE


def test_each_copy_in_has_its_own_readers() -> None:
    graph = graph_of(
        make_op("a", 400),
        make_op("b", 4, "a"),
        make_op("c", 4, "b", "a"),
        make_op("d", 4, "c", "a"),
        results=("d:0",),
    )
    plan = one_swap(graph, ("b", "c"), ("c", "d"))
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


def test_room_stays_taken_until_a_tensor_from_the_host_has_its_memory() -> None:
    ops = [replace(op, from_host=op.name == "b") for op in GRAPH.ops]
    graph = replace(GRAPH, ops=tuple(ops))
    nodes = rewrite(traced_step(graph), PLAN, seal=Seal(below=4))
    (keep,) = (node for node in nodes if node.name == "lms/0/a/keep")
    assert list(keep.input) == ["a:0", "^b", "^lms/arrived/b_0"]


def test_a_plan_whose_ops_wait_in_a_circle_is_refused() -> None:
    backwards = unplanned(GRAPH, chain=("c", "b"))
    with pytest.raises(PlanError, match=r"2 ops wait in a cycle.* 'b', 'c'\."):
        rewritten(GRAPH, backwards)


def test_a_plan_that_waits_in_a_circle_through_a_loop_is_refused() -> None:
    # enter ─> merge ─> next ─> (merge); merge ─> exit ─> after. `late` is read in the
    # loop, so the exit cannot come before it, though no edge but next's says so.
    graph = graph_of(
        make_op("first", 4),
        make_op("late", 4),
        make_op("enter", 4, "first", type="Enter", fixed=True),
        make_op("merge", 4, "enter", type="Merge", fixed=True),
        make_op("next", 4, "merge", "late", type="NextIteration", fixed=True),
        make_op("exit", 4, "merge", type="Exit", fixed=True, controls=("next",)),
        make_op("after", 4, "exit"),
        results=("after:0",),
    )
    with pytest.raises(PlanError, match="wait in a cycle"):
        rewritten(graph, unplanned(graph, chain=("after", "late")))


# What the step copies beside its swaps in two runs: losses, and a few shapes.
_FEW_BYTES = 256


@pytest.mark.slow
def test_a_step_that_swaps_has_the_same_numbers(worker: Worker) -> None:
    trial = worker.ask(f"{TRIALS}:swap_and_compare", memory="64MiB")
    assert trial["swaps"] > 0
    assert trial["different"] == []
    for copied, planned in zip(trial["copied"], trial["planned"], strict=True):
        assert 0 <= copied - planned <= _FEW_BYTES, trial


@pytest.mark.slow
def test_a_swap_in_starts_at_its_trigger_although_launches_run_ahead(
    worker: Worker,
) -> None:
    link = LinkRates(h2d=50e9, d2h=50e9)
    card = {"card": "v100-pcie", "link": link, "slow_motion": 5000}
    trial = worker.ask(f"{TRIALS}:swap_in_among_kernels", memory="64MiB", card=card)
    ends = trial["ends"]
    begin, end = trial["copy"]
    product = (ends[9] - ends[0]) / 9
    # The swap-out takes about as long as a product: it has ended by then.
    assert begin - ends[4] < product / 2, trial
    assert end < ends[8], "it is hidden"
