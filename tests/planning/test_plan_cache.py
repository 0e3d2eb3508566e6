"""A plan that was kept answers the same question, and no other."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lms.machine.hardware import PRESETS, roofline
from lms.planning import select
from lms.planning.problem import FittedPlan, MemoryBudget, Speeds, budget_in
from lms.planning.select import choose_plan, choose_plan_once, workload_of
from lms.planning.settings import Settings, Thresholds
from lms.storage.cache import VARIABLE
from lms.units import MIB
from tests.planning.stored import read_step

BUDGET = budget_in(190 * MIB, asked=None, persistent=4 * MIB)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path / "plans"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[MemoryBudget]:
    """The budgets for which a plan was made, and not found."""
    found: list[MemoryBudget] = []

    def choose(*args: Any, is_first: bool) -> FittedPlan:
        found.append(args[2])
        return choose_plan(*args, is_first=is_first)

    monkeypatch.setattr(select, "choose_plan", choose)
    return found


def asked(
    budget: MemoryBudget = BUDGET,
    *,
    link: float = 1.0,
    settings: Settings | None = None,
    replan: bool = False,
) -> FittedPlan:
    graph, hardware = read_step("by_hand_twice").graph, PRESETS["v100-pcie"]
    hardware = replace(hardware, h2d=hardware.h2d * link)
    speeds = Speeds(costs=roofline(graph, hardware), hardware=hardware)
    workload = workload_of(graph, graph, lambda: speeds)
    settings = replace(settings or Settings(), replan=replan)
    return choose_plan_once(workload, settings, budget)


def test_the_same_question_is_answered_from_the_disk(made: list[MemoryBudget]) -> None:
    first = asked()
    assert first.plan.swaps
    assert asked() == first
    assert len(made) == 1


def test_a_first_plan_is_not_kept_and_a_kept_plan_comes_before(
    folder: Path, made: list[MemoryBudget]
) -> None:
    asked(replan=True)
    assert not folder.exists()
    kept = asked()
    assert asked(replan=True) == kept
    assert len(made) == 2


def test_another_question_is_not(made: list[MemoryBudget]) -> None:
    asked()
    asked(link=0.5)
    asked(settings=Settings(recompute=False))
    asked(budget_in(180 * MIB, asked=None, persistent=4 * MIB))
    assert len(made) == 4


def test_a_little_more_room_is_the_same_question_and_less_is_not(
    made: list[MemoryBudget],
) -> None:
    first = asked()
    assert asked(replace(BUDGET, persistent=2 * MIB)) == first
    assert len(made) == 1
    asked(replace(BUDGET, persistent=5 * MIB))
    asked(replace(BUDGET, persistent=-20 * MIB))
    assert len(made) == 3


def test_what_fits_and_what_a_rule_says_is_not_kept(folder: Path) -> None:
    asked(budget_in(64 * 1024 * MIB, asked=None, persistent=0))
    asked(settings=Settings(thresholds=Thresholds()))
    assert not folder.exists()


@pytest.mark.parametrize("what", ["order", "size", "tensor"])
def test_a_plan_that_cannot_be_obeyed_is_left_out_aloud(
    what: str, folder: Path, made: list[MemoryBudget], caplog: pytest.LogCaptureFixture
) -> None:
    first = asked()
    (path,) = folder.iterdir()
    kept = json.loads(path.read_text())
    plan = kept["fitted"]["plan"]
    if what == "order":
        plan["order"].reverse()
    else:
        plan["swaps"][0][what] = {"size": 1, "tensor": "nothing:0"}[what]
    path.write_text(json.dumps(kept))
    with caplog.at_level(logging.WARNING, "lms"):
        assert asked() == first
    assert "Ignored a cached plan" in caplog.text
    assert len(made) == 2
    assert asked() == first  # the damaged one was replaced
    assert len(made) == 2
