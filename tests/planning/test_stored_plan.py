"""Stored plans: obeyed as they are, or refused with op, rule and next step."""

from dataclasses import replace
from pathlib import Path

import pytest

from lms.errors import BudgetError, PlanError
from lms.ir.graph import GraphView
from lms.ir.plan import SwapPlan
from lms.ir.recompute import Recomputed
from lms.machine.hardware import PRESETS, roofline
from lms.planning.problem import UNLIMITED, MemoryBudget, PlannedStep, Reason, Speeds
from lms.planning.select import plan_step, workload_of
from lms.planning.settings import Settings, read_plan
from lms.units import MIB
from tests.graphs import graph_of, make_op


def skip(size: int = MIB, first: str = "a") -> GraphView:
    """Plainly 3.2 sizes at c, or 2 where a is away meanwhile.

    a (1.2) ─> b (1) ─> c (1) ─> d (0.1) ─> e (0.1)
     └───────────────────────────────────────┘
    """
    return graph_of(
        make_op(first, size + size // 5),
        make_op("b", size, first),
        make_op("c", size, "b"),
        make_op("d", size // 10, "c"),
        make_op("e", size // 10, "d", first),
    )


ROOMY = 8 * MIB
TIGHT = 5 * MIB // 2


def planned(graph: GraphView, total: int, plan: SwapPlan | None = None) -> PlannedStep:
    hardware = PRESETS["v100-pcie"]
    speeds = Speeds(costs=roofline(graph, hardware), hardware=hardware)
    budget = MemoryBudget(total=total, margin=0, persistent=0)
    workload = workload_of(graph, graph, lambda: speeds)
    return plan_step(workload, Settings(budget=total, plan=plan), budget, UNLIMITED)


@pytest.fixture(scope="module")
def made() -> PlannedStep:
    found = planned(skip(), TIGHT)
    assert found.plan.swaps
    return found


def test_a_stored_plan_is_planned_again_with_its_peak(
    made: PlannedStep, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(made.plan.to_json(indent=1))
    for total in (TIGHT, ROOMY):  # obeyed where it would fit plainly, too
        again = planned(skip(), total, read_plan(path))
        assert (again.plan, again.reason) == (made.plan, Reason.PLANNED)
        assert again.memory == made.memory


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (skip(first="x"), "got one without op 'x'"),
        (GraphView(ops=skip().ops[:4]), "got one with an unknown op 'e'"),
        (skip(2 * MIB), "size of 'a:0' must be"),
    ],
)
def test_the_plan_of_another_step_is_refused_by_op(
    graph: GraphView, words: str, made: PlannedStep
) -> None:
    with pytest.raises(PlanError, match=f"^`plan` must be .*{words}.* again: python"):
        planned(graph, ROOMY, made.plan)


def test_an_op_that_a_plan_recomputes_must_be_there(made: PlannedStep) -> None:
    again = Recomputed(op="conv9", readers=("e",))
    with pytest.raises(PlanError, match="'conv9' must be one that may be recomputed"):
        planned(skip(), ROOMY, replace(made.plan, recomputed=(again,)))


def test_a_budget_below_a_stored_plan_s_peak_is_said_with_the_peak(
    made: PlannedStep,
) -> None:
    words = (
        r"must be at least .* for the stored `plan`, whose predicted peak is .*Leave"
    )
    with pytest.raises(BudgetError, match=words) as no:
        planned(skip(), MIB, made.plan)
    least = no.value.least_bytes
    assert least is not None
    assert planned(skip(), least, made.plan).plan == made.plan
    with pytest.raises(BudgetError, match=words):
        planned(skip(), least - least // 256, made.plan)


def test_a_stored_plan_without_swaps_is_judged_like_any_other() -> None:
    plain = planned(skip(), ROOMY).plan
    assert not plain.swaps
    assert planned(skip(), ROOMY, plain).plan == plain
    with pytest.raises(BudgetError, match="for the stored `plan`, whose"):
        planned(skip(), TIGHT, plain)
    with pytest.raises(PlanError, match="got one without op 'x'"):
        planned(skip(first="x"), ROOMY, plain)
