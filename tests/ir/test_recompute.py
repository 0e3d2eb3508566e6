"""Recomputed ops in a graph: by hand on graphs of at most six ops."""

import pytest

from lms.errors import PlanError
from lms.ir.graph import GraphView, Op, Tensor
from lms.ir.plan import SwapPlan, validate_plan
from lms.ir.recompute import Recomputed, with_recomputed


def op(name: str, *inputs: str, size: int = 8, **others: object) -> Op:
    outputs = (Tensor(name=f"{name}:0", size=size),)
    options = {"repeatable": True, **others}
    return Op(name=name, type="T", inputs=inputs, outputs=outputs, **options)


def graph(*ops: Op) -> GraphView:
    return GraphView(ops=ops)


def names(found: GraphView) -> list[str]:
    return [op.name.replace("lms/again/", "again ") for op in found.ops]


CHAIN = graph(
    op("conv", repeatable=False),
    op("mul", "conv:0"),
    op("relu", "mul:0"),
    op("next", "relu:0"),
    op("grad", "next:0", "relu:0"),
    op("end", "grad:0", "conv:0"),
)


def test_nothing_to_run_again_is_the_same_graph() -> None:
    assert with_recomputed(CHAIN, ()) is CHAIN


def test_a_second_run_comes_just_before_its_first_reader() -> None:
    found = with_recomputed(CHAIN, [Recomputed(op="relu", readers=("grad",))])
    assert names(found) == ["conv", "mul", "relu", "next", "again relu", "grad", "end"]
    assert found.by_name["grad"].inputs == ("next:0", "lms/again/relu:0")
    assert found.by_name["next"].inputs == ("relu:0",)


def test_what_is_made_again_reads_what_is_made_again() -> None:
    again = [
        Recomputed(op="mul", readers=("lms/again/relu",)),
        Recomputed(op="relu", readers=("grad",)),
    ]
    found = with_recomputed(CHAIN, again)
    assert names(found)[4:6] == ["again mul", "again relu"]
    assert found.by_name["lms/again/relu"].inputs == ("lms/again/mul:0",)
    assert found.by_name["lms/again/mul"].inputs == ("conv:0",)
    assert found.by_name["relu"].inputs == ("mul:0",)


def test_a_second_run_may_have_a_copy_too() -> None:
    again = [
        Recomputed(op="relu", readers=("grad", "end")),
        Recomputed(op="lms/again/relu", readers=("end",)),
    ]
    ops = (*CHAIN.ops[:-1], op("end", "grad:0", "relu:0"))
    found = with_recomputed(graph(*ops), again)
    assert names(found)[4:] == ["again relu", "grad", "again again relu", "end"]
    assert found.by_name["grad"].inputs == ("next:0", "lms/again/relu:0")
    assert found.by_name["end"].inputs == ("grad:0", "lms/again/lms/again/relu:0")
    assert found.by_name["lms/again/lms/again/relu"].inputs == ("mul:0",)


def test_an_alias_of_a_second_run_shares_its_buffer() -> None:
    ops = (
        op("a"),
        op("flat", "a:0", alias="a:0"),
        op("b", "flat:0"),
        op("c", "b:0", "flat:0"),
    )
    again = [
        Recomputed(op="a", readers=("lms/again/flat",)),
        Recomputed(op="flat", readers=("c",)),
    ]
    found = with_recomputed(graph(*ops), again)
    assert found.roots["lms/again/flat:0"] == "lms/again/a:0"
    assert found.roots["flat:0"] == "a:0"


def test_a_second_run_waits_for_no_op_that_the_first_one_waited_for() -> None:
    ops = (op("a"), op("b", controls=("a",)), op("c", "b:0"), op("d", "c:0", "b:0"))
    found = with_recomputed(graph(*ops), [Recomputed(op="b", readers=("d",))])
    assert found.by_name["lms/again/b"].controls == ()


@pytest.mark.parametrize(
    ("again", "rule"),
    [
        (
            Recomputed(op="conv", readers=("end",)),
            "'conv' must be one that may be recomputed",
        ),
        (
            Recomputed(op="none", readers=("end",)),
            "'none' must be one that may be recomputed",
        ),
        (Recomputed(op="relu", readers=()), "must have readers"),
        (Recomputed(op="relu", readers=("end",)), "'end' must read op 'relu'"),
        (Recomputed(op="mul", readers=("lms/again/relu",)), "must be read by the step"),
        (Recomputed(op="lms/again/relu", readers=("grad",)), "must run before"),
    ],
)
def test_what_cannot_be_run_again_is_named(again: Recomputed, rule: str) -> None:
    with pytest.raises(PlanError, match=rule):
        with_recomputed(CHAIN, [again])


def test_what_has_a_shape_that_depends_on_values_is_not_run_again() -> None:
    ops = (op("a"), op("b", "a:0", varies=True), op("c", "b:0"), op("d", "b:0", "c:0"))
    with pytest.raises(PlanError, match="'b' must be one that may be recomputed"):
        with_recomputed(graph(*ops), [Recomputed(op="b", readers=("d",))])


def test_a_reader_in_a_loop_reads_no_second_run() -> None:
    looped = graph(op("a"), op("b", "a:0"), op("c", "b:0", "a:0", fixed=True))
    with pytest.raises(PlanError, match="loop or branch"):
        with_recomputed(looped, [Recomputed(op="a", readers=("c",))])


def test_a_plan_with_second_runs_is_one_for_the_graph_that_has_them() -> None:
    again = (Recomputed(op="relu", readers=("grad",)),)
    found = with_recomputed(CHAIN, again)
    order = tuple(op.name for op in found.ops)
    plan = SwapPlan(planner="budget", order=order, recomputed=again)
    assert SwapPlan.from_json(plan.to_json()) == plan
    validate_plan(found, plan)
    with pytest.raises(PlanError, match="list exactly"):
        validate_plan(CHAIN, plan)
