"""Recomputed ops in a graph: by hand on graphs of at most six ops."""

import pytest

from lms.errors import PlanError
from lms.ir.graph import GraphView, Op, Tensor
from lms.ir.plan import SwapPlan, validate_plan
from lms.ir.recompute import Recomputed, with_recomputed
from tests.graphs import graph_of


def op(name: str, *inputs: str, size: int = 8, **others: object) -> Op:
    outputs = (Tensor(name=f"{name}:0", size=size),)
    options = {"repeatable": True, **others}
    return Op(name=name, type="T", inputs=inputs, outputs=outputs, **options)


def names(found: GraphView) -> list[str]:
    return [op.name.replace("lms/again/", "again ") for op in found.ops]


def rerun(op: str, *readers: str) -> Recomputed:
    return Recomputed(op=op, readers=readers)


CHAIN = graph_of(
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
    found = with_recomputed(CHAIN, [rerun("relu", "grad")])
    assert names(found) == ["conv", "mul", "relu", "next", "again relu", "grad", "end"]
    assert found.by_name["grad"].inputs == ("next:0", "lms/again/relu:0")
    assert found.by_name["next"].inputs == ("relu:0",)


def test_what_is_made_again_reads_what_is_made_again() -> None:
    again = [rerun("mul", "lms/again/relu"), rerun("relu", "grad")]
    found = with_recomputed(CHAIN, again)
    assert names(found)[4:6] == ["again mul", "again relu"]
    assert found.by_name["lms/again/relu"].inputs == ("lms/again/mul:0",)
    assert found.by_name["lms/again/mul"].inputs == ("conv:0",)
    assert found.by_name["relu"].inputs == ("mul:0",)


def test_a_second_run_may_have_a_copy_too() -> None:
    again = [rerun("relu", "grad", "end"), rerun("lms/again/relu", "end")]
    ops = (*CHAIN.ops[:-1], op("end", "grad:0", "relu:0"))
    found = with_recomputed(graph_of(*ops), again)
    assert names(found)[4:] == ["again relu", "grad", "again again relu", "end"]
    assert found.by_name["grad"].inputs == ("next:0", "lms/again/relu:0")
    assert found.by_name["end"].inputs == ("grad:0", "lms/again/lms/again/relu:0")
    assert found.by_name["lms/again/lms/again/relu"].inputs == ("mul:0",)


def test_a_chain_may_be_longer_than_calls_nest() -> None:
    ops = [op("0"), *(op(f"{i}", f"{i - 1}:0") for i in range(1, 2000))]
    again = [rerun(f"{i}", f"lms/again/{i + 1}") for i in range(1998)]
    found = with_recomputed(graph_of(*ops), [*again, rerun("1998", "1999")])
    assert names(found)[1999:] == [*(f"again {i}" for i in range(1999)), "1999"]


def test_an_alias_of_a_second_run_shares_its_buffer() -> None:
    ops = (op("a"), op("f", "a:0", alias="a:0"), op("b", "f:0"), op("c", "b:0", "f:0"))
    again = [rerun("a", "lms/again/f"), rerun("f", "c")]
    found = with_recomputed(graph_of(*ops), again)
    assert found.roots["lms/again/f:0"] == "lms/again/a:0"
    assert found.roots["f:0"] == "a:0"


def test_a_second_run_waits_for_no_op_that_the_first_one_waited_for() -> None:
    ops = (op("a"), op("b", controls=("a",)), op("c", "b:0"), op("d", "c:0", "b:0"))
    found = with_recomputed(graph_of(*ops), [rerun("b", "d")])
    assert found.by_name["lms/again/b"].controls == ()


@pytest.mark.parametrize(
    ("again", "rule"),
    [
        (rerun("conv", "end"), "'conv' must be one that may be recomputed"),
        (rerun("none", "end"), "'none' must be one that may be recomputed"),
        (rerun("relu"), "must have readers"),
        (rerun("relu", "end"), "'end' must read op 'relu'"),
        (rerun("mul", "lms/again/relu"), "must be read by the step"),
        (rerun("lms/again/relu", "grad"), "must run before"),
    ],
)
def test_what_cannot_be_run_again_is_named(again: Recomputed, rule: str) -> None:
    with pytest.raises(PlanError, match=rule):
        with_recomputed(CHAIN, [again])


def test_what_has_a_shape_that_depends_on_values_is_not_run_again() -> None:
    ops = (op("a"), op("b", "a:0", varies=True), op("c", "b:0"), op("d", "b:0", "c:0"))
    with pytest.raises(PlanError, match="'b' must be one that may be recomputed"):
        with_recomputed(graph_of(*ops), [rerun("b", "d")])


def test_a_reader_in_a_loop_reads_no_second_run() -> None:
    looped = graph_of(op("a"), op("b", "a:0"), op("c", "b:0", "a:0", fixed=True))
    with pytest.raises(PlanError, match="loop or branch"):
        with_recomputed(looped, [rerun("a", "c")])


def test_a_plan_with_second_runs_is_one_for_the_graph_that_has_them() -> None:
    again = (rerun("relu", "grad"),)
    found = with_recomputed(CHAIN, again)
    order = tuple(op.name for op in found.ops)
    plan = SwapPlan(planner="budget", order=order, recomputed=again)
    assert SwapPlan.from_json(plan.to_json()) == plan
    validate_plan(found, plan)
    with pytest.raises(PlanError, match="list exactly"):
        validate_plan(CHAIN, plan)
