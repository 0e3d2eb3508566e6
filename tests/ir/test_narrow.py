"""Tensors that wait in fewer bytes: by hand on graphs of at most six ops."""

import pytest

from lms.errors import PlanError
from lms.ir.graph import GraphView, Op, Tensor
from lms.ir.narrow import Narrowed, with_narrowed
from lms.ir.plan import SwapPlan, planned_graph, validate_plan
from lms.ir.recompute import Recomputed


def op(name: str, *inputs: str, dtype: str = "float32", **others: object) -> Op:
    outputs = (Tensor(name=f"{name}:0", size=64, shape=(16,), dtype=dtype),)
    options = {"repeatable": True, **others}
    return Op(name=name, type="T", inputs=inputs, outputs=outputs, **options)


CHAIN = GraphView(
    ops=(
        op("conv"),
        op("relu", "conv:0"),
        op("next", "relu:0"),
        op("grad", "next:0", "relu:0"),
        op("end", "grad:0", "relu:0"),
    )
)
WAITS = Narrowed(tensor="relu:0", readers=("grad", "end"), dtype="bfloat16")


def names(graph: GraphView) -> list[str]:
    return [op.name.removeprefix("lms/") for op in graph.ops]


def test_nothing_narrowed_is_the_same_graph() -> None:
    assert with_narrowed(CHAIN, ()) is CHAIN


def test_a_tensor_is_narrow_between_its_near_and_its_far_readers() -> None:
    found = with_narrowed(CHAIN, [WAITS])
    assert names(found) == [
        "conv",
        "relu",
        "next",
        "narrow/relu/0",
        "wide/relu/0",
        "grad",
        "end",
    ]
    narrow = found.tensors["lms/narrow/relu/0:0"]
    assert (narrow.size, narrow.dtype, narrow.shape) == (32, "bfloat16", (16,))
    wide = found.tensors["lms/wide/relu/0:0"]
    assert (wide.size, wide.dtype) == (64, "float32")
    assert found.by_name["next"].inputs == ("relu:0",)
    assert found.by_name["grad"].inputs == ("next:0", "lms/wide/relu/0:0")
    assert found.by_name["end"].inputs == ("grad:0", "lms/wide/relu/0:0")


def test_casts_do_not_come_between_ops_of_one_group() -> None:
    ops = (
        op("a"),
        op("b", "a:0", group="g"),
        op("c", "b:0", group="g"),
        op("d", "c:0", group="h"),
        op("e", "d:0", "a:0", group="h"),
    )
    item = Narrowed(tensor="a:0", readers=("e",), dtype="bfloat16")
    assert names(with_narrowed(GraphView(ops=ops), [item])) == [
        "a",
        "b",
        "c",
        "narrow/a/0",
        "wide/a/0",
        "d",
        "e",
    ]


@pytest.mark.parametrize(
    "ops",
    [
        (op("a", dtype="int32"), op("b", "a:0"), op("c", "b:0", "a:0")),
        (op("a"), op("b", "a:0"), op("c", "b:0", "a:0", fixed=True)),
        (op("a"), op("b", "a:0"), op("c", "b:0")),
        (op("a", varies=True), op("b", "a:0"), op("c", "b:0", "a:0")),
        (op("a"), op("x", "a:0", alias="a:0"), op("c", "x:0")),
    ],
)
def test_what_cannot_be_narrowed_is_named(ops: tuple[Op, ...]) -> None:
    item = Narrowed(tensor="a:0", readers=("c",), dtype="bfloat16")
    with pytest.raises(PlanError, match="'a:0' must be a float32 tensor"):
        with_narrowed(GraphView(ops=ops), [item])


def test_an_unknown_type_is_refused() -> None:
    item = Narrowed(tensor="relu:0", readers=("end",), dtype="int8")
    with pytest.raises(PlanError, match="'int8'"):
        with_narrowed(CHAIN, [item])


def test_a_second_run_may_wait_narrow_too() -> None:
    again = (Recomputed(op="relu", readers=("grad", "end")),)
    waits = (Narrowed(tensor="lms/again/relu:0", readers=("end",), dtype="bfloat16"),)
    order = tuple(op.name for op in CHAIN.ops)
    plan = SwapPlan(planner="budget", order=order, recomputed=again, narrowed=waits)
    found = planned_graph(CHAIN, plan)
    assert names(found) == [
        "conv",
        "relu",
        "next",
        "again/relu",
        "grad",
        "narrow/lms/again/relu/0",
        "wide/lms/again/relu/0",
        "end",
    ]
    order = tuple(op.name for op in found.ops)
    plan = SwapPlan(planner="budget", order=order, recomputed=again, narrowed=waits)
    assert SwapPlan.from_json(plan.to_json()) == plan
    validate_plan(found, plan)


def test_what_is_near_is_a_matter_of_the_plan_s_order() -> None:
    traced = GraphView(
        ops=(
            op("x"),
            op("side", "x:0"),
            op("conv", "x:0"),
            op("end", "conv:0", "side:0"),
        )
    )
    waits = (Narrowed(tensor="x:0", readers=("side",), dtype="bfloat16"),)
    order = ("x", "conv", "side", "end")
    found = planned_graph(
        traced, SwapPlan(planner="budget", order=order, narrowed=waits)
    )
    assert names(found) == ["x", "conv", "narrow/x/0", "wide/x/0", "side", "end"]
