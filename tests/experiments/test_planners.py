"""A bound that no plan goes below: by hand, against all plans, and over drawn steps."""

import itertools
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.drawn_steps import drawn_step
from experiments.least_seconds import Step, least_seconds, step_of
from experiments.planners import answer, measure
from experiments.runner import Book
from lms.errors import PlanError
from lms.ir.graph import GraphView
from lms.ir.plan import Swap, SwapIn, SwapPlan, validate_plan
from lms.ir.recompute import Recomputed, with_recomputed
from lms.machine.hardware import Hardware, roofline
from lms.simulation.executor import simulate
from lms.simulation.memory import simulate_memory
from lms.units import MIB


def skip(*, again: bool, rate: int) -> Step:
    """a ─> b ─> c ─> d ─> e, which reads a too: 4 MiB and 1 s each, nothing for e."""
    return Step(
        seconds=(1.0,) * 5,
        sizes=(4 * MIB,) * 4 + (0,),
        scratch=(0,) * 5,
        reads=((), (0,), (1,), (2,), (3, 0)),
        again=(again,) * 4 + (False,),
        h2d=rate * MIB,
        d2h=rate * MIB,
    )


@pytest.mark.parametrize(
    ("again", "rate", "memory", "seconds"),
    [
        (True, 1, 12, 5.0),  # a stays
        (True, 1, 8, 6.0),  # a runs again: moving it takes 4 s each way
        (True, 8, 8, 5.5),  # a moves: out beside b, back in 0.5 s between d and e
        (False, 1, 8, 12.0),  # out: 1 s beside b and 3 s before c; back: 4 s before e
    ],
)
def test_the_least_seconds_worked_out_by_hand(
    *, again: bool, rate: int, memory: int, seconds: float
) -> None:
    step = skip(again=again, rate=rate)
    assert least_seconds(step, memory * MIB, limit=20) == (pytest.approx(seconds), True)


def test_no_solution_where_an_op_alone_does_not_fit() -> None:
    with pytest.raises(ValueError, match="must have a solution"):
        least_seconds(skip(again=True, rate=1), 7 * MIB, limit=20)


@pytest.mark.parametrize("seed", range(4))
def test_no_plan_of_a_tiny_step_is_faster_than_the_bound(seed: int) -> None:
    graph = drawn_step(seed, 7)
    hardware = Hardware(
        name="", memory=1, flops=14e12, memory_bandwidth=9e11, h2d=3e10, d2h=3e10
    )
    costs = roofline(graph, hardware)
    step = step_of(graph, costs, hardware)
    fastest: dict[int, float] = {}
    for planned, plan in all_plans(graph):
        memory = simulate_memory(planned, plan).device_peak
        seconds = simulate(planned, plan, costs, hardware).seconds
        fastest[memory] = min(seconds, fastest.get(memory, seconds))
    assert len(fastest) > 1
    for memory, seconds in fastest.items():
        assert least_seconds(step, memory, limit=20)[0] <= seconds * (1 + 1e-9)


def all_plans(graph: GraphView) -> Iterator[tuple[GraphView, SwapPlan]]:
    """Every choice of one tensor or two that move, and of one op that runs again."""
    choices = [()] + [
        (Recomputed(op=op.name, readers=(reader.name,)),)
        for op in graph.ops
        if op.repeatable
        for reader in graph.consumers[op.outputs[0].name][-1:]
    ]
    for items in choices:
        planned = with_recomputed(graph, items)
        names = tuple(op.name for op in planned.ops)
        moves = list(all_swaps(planned))
        pairs = itertools.combinations(moves, 2)
        for swaps in [(), *((move,) for move in moves), *pairs]:
            known: dict[str, Any] = {"order": names, "chain": names}
            plan = SwapPlan(planner="", swaps=swaps, recomputed=items, **known)
            try:
                validate_plan(planned, plan)
            except PlanError:
                continue
            yield planned, plan


def all_swaps(graph: GraphView) -> Iterator[Swap]:
    names = [op.name for op in graph.ops]
    for made, op in enumerate(graph.ops):
        readers = graph.consumers[op.outputs[0].name]
        if op.persistent or not readers:
            continue
        tensor, last = op.outputs[0], names.index(readers[-1].name)
        for release in range(made + 1, last + 1):
            for trigger in range(release - 1, last):
                back = SwapIn(trigger=names[trigger], readers=(names[last],))
                moved = {"tensor": tensor.name, "size": tensor.size}
                yield Swap(**moved, release=names[release], swap_ins=(back,))


def row(seconds: float, taken: float, budget: float) -> dict[str, Any]:
    found = {"taken_seconds": taken, "taken_solved": True, "rule_seconds": None}
    found |= {"budget_seconds": budget, "budget_solved": False}
    return {"kind": "drawn", "plan_seconds": seconds, **found}


def test_the_answer_is_computed_from_the_rows() -> None:
    rows = [row(3.0, 2.0, 1.0), row(2.0, 2.0, 2.0), row(2.4, 2.0, 1.0)]
    rows.append({"kind": "drawn", "error": "no"})
    found = answer(rows)
    assert found.table[2][0][2:] == ["3", "3", "1.20", "1.44", "1.50"]
    assert found.table[2][1][2:] == ["3", "0", "2.40", "2.88", "3.00"]
    assert [holds for holds, _ in found.verdicts] == [False, False]
    text = "3 drawn steps of at most 24 ops take 1.20 times the least possible seconds"
    assert text in found.verdicts[0][1]


def test_drawn_steps_are_planned_and_judged(tmp_path: Path) -> None:
    book = Book(path=tmp_path / "planners.jsonl")
    for seed in range(2):
        measure(book, seed, Namespace(limit=5.0))
    rows = [r for r in book.rows if not r["error"]]
    assert rows
    assert all(r["taken_seconds"] >= r["budget_seconds"] - 1e-9 for r in rows)
    assert all(r["plan_seconds"] >= r["taken_seconds"] * (1 - 1e-6) for r in rows)
    assert all(r["taken_bytes"] <= r["budget_bytes"] < r["plain_bytes"] for r in rows)
