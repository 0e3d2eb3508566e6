"""Rows of the table of attempts; TensorFlow is not needed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from lms.errors import (
    BudgetError,
    HostMemoryError,
    LMSError,
    PlanError,
    UnsupportedError,
)
from lms.ir.plan import SwapPlan
from lms.planning.problem import MemoryBudget
from lms.planning.settings import Settings
from lms.tf.attempts import (
    NOTHING,
    Attempt,
    Offers,
    Outcome,
    UnprovedError,
    first_plan,
    refusal,
)

ROOM = MemoryBudget(total=1000, margin=0, persistent=0)
SPLIT = tuple(SimpleNamespace(most=each) for each in (40, 20))
MOVE = (("slot", 100), ("kernel", 100), ("bias", 200))
SMALL, LARGE = 90, 600  # the largest op needs so much


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step whose plans and refusals are given, one for each attempt."""

    offered: Offers
    answers: list[Any]
    rewrites: Any = NOTHING
    budget: MemoryBudget = ROOM

    def offers(self, op_size: Any) -> Offers:
        done, moves = self.rewrites, self.offered.variables
        return replace(
            self.offered,
            lists=() if done.lists else self.offered.lists,
            variables=[each for each in moves if each[0] not in done.handles],
            op_sizes=[
                each
                for each in self.offered.op_sizes
                if op_size is None or each.most < op_size.most
            ],
        )

    def rewritten(self, rewrites: Any) -> "Step":
        return replace(self, rewrites=rewrites)

    def plan(self, attempt: Attempt) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, int):
            raise BudgetError("too little", least_bytes=answer)
        if isinstance(answer, LMSError):
            raise answer
        return _planned(answer), 0.0


def _planned(plan: str) -> Any:
    known = SimpleNamespace(name=plan, is_empty=plan == "plain")
    return SimpleNamespace(plan=known, budget=ROOM, step_bytes=800, sealed=False)


def ran_out(plan: str = "A", **how: Any) -> tuple[Outcome, ...]:
    failed = Attempt(**how)
    return (Outcome(attempt=failed, planned=_planned(plan), failure="OOM"),)


def said(attempt: Attempt | None, before: Attempt) -> str:
    """The attempt in words, as far as it differs from the one before."""
    if attempt is None or not attempt.planned:
        return "none" if attempt is None else "unplanned"
    now, was = attempt.rewrites, before.rewrites
    words = [str(attempt.budget(ROOM).total)]
    words += ["guess"] * (now.guesses and not was.guesses)
    words += [f"lists={','.join(now.lists)}"] * (now.lists != was.lists)
    words += [f"move={','.join(now.handles)}"] * (now.handles != was.handles)
    size = now.op_size and now.op_size.most
    words += [f"split={size}"] * (now.op_size is not was.op_size)
    words += [f"recompute={attempt.recompute}"] * (attempt.recompute is not None)
    return " ".join(words)


ALL = Offers(lists=("loop",), variables=MOVE, op_sizes=SPLIT, largest_op=SMALL)
HEAVY = Offers(variables=MOVE, op_sizes=SPLIT, largest_op=LARGE)
LESS = "704; 752; 784; 880; 940; 980"  # 88, 94 and 98 % of 800 and of 1000
WAYS = "1000 recompute=True; 1000 recompute=False"
OTHERS = "1000; 880; 940; 1000 recompute=False"
UNPROVED, FAULT = UnprovedError("a value"), UnprovedError("the proof ended")
FAULT.is_fault = True
OPEN_SIZE = UnsupportedError("open")
INVALID = PlanError("'x' must be one that may be recomputed")
UNPLANNED = ran_out("plain", planned=False)
OPEN = Offers(is_open=True, variables=MOVE[:1])


def row(
    course: str, *answers: Any, tried: Any = (), offers: Any = None, **knobs: Any
) -> Any:
    """A row: the attempts that must follow, and what each is answered."""
    return course, answers, tried, offers or Offers(), Settings(**knobs)


GUESSED = (Outcome(attempt=Attempt(rewrites=replace(NOTHING, guesses=True))),)
ROWS = {
    "lists, then variables: a quarter at least": row(
        "1000; 1000 lists=loop; 1000 move=slot; 1000 move=slot,kernel",
        *(1100, 1050, 1001, "B"),
        offers=ALL,
    ),
    "what is missing moves at once": row(
        "1000; 1000 lists=loop; 1000 move=slot,kernel", 1300, 1150, "B", offers=ALL
    ),
    "a heavy op is split first": row(
        "1000; 1000 split=40; 1000 split=20; 1000 move=slot",
        *(1100, 1090, 1080, "B"),
        offers=HEAVY,
    ),
    "a split that raised the need is left out": row(
        "1000; 1000 split=40; 1000 move=slot split=None",
        *(1100, 1200, "B"),
        offers=replace(HEAVY, op_sizes=SPLIT[:1]),
    ),
    "knobs forbid rewrites": row(
        "1000; unplanned", 1100, offers=HEAVY, state="device", slices="none"
    ),
    "who asked for a plan is refused": row("1000; none", 1100, budget=1000),
    "less, then other plans, then rewrites": row(
        f"{LESS}; {WAYS}; 880 lists=loop; 880 move=slot,kernel,bias",
        *("A",) * 8,
        *(1100, "B"),
        tried=ran_out(),
        offers=ALL,
    ),
    "less than the least is not tried": row("704; 940", 1000, "B", tried=ran_out()),
    "the user's choice to recompute is kept": row(
        f"{LESS}; unplanned", *("A",) * 6, tried=ran_out(), recompute=False
    ),
    "a way to recompute is tried once": row(
        f"{LESS}; 1000 recompute=False; unplanned",
        *("A",) * 7,
        tried=ran_out(recompute=True) + ran_out(),
    ),
    "six plans are enough": row("unplanned", tried=ran_out() * 7),
    "an unplanned step is not repeated unplanned": row(
        f"{LESS}; {WAYS}; none", *("plain",) * 8, tried=ran_out("plain")
    ),
    "a full host ends it": row("704; none", HostMemoryError("full"), tried=ran_out()),
    "a plan that is not valid is followed by others": row(
        "1000; 1000 recompute=False; 1000 lists=loop; 1000 recompute=False",
        *(INVALID, INVALID, INVALID, "B"),
        offers=ALL,
    ),
    "a stored plan that is not valid is refused": row(
        "1000; none", INVALID, offers=ALL, plan=SwapPlan(planner="budget", order=())
    ),
    "plans that are not valid leave the step unplanned": row(
        "1000; 1000 recompute=False; unplanned", INVALID, INVALID
    ),
    "what cannot be planned runs unplanned": row("1000; unplanned", OPEN_SIZE),
    "sizes are guessed when memory runs out": row(
        "1000 guess; 1000 move=slot; none", 1100, 1050, tried=UNPLANNED, offers=OPEN
    ),
    "a plan that is not proved gives way to another": row(
        "1000; 880; 940", UNPROVED, 1100, "B"
    ),
    "what the validator refused is not asked for again": row(
        "1000; 1000 recompute=False; 880 recompute=False; 940 recompute=False",
        *(INVALID, UNPROVED, UNPROVED, "B"),
    ),
    "no plan is proved": row(f"{OTHERS}; unplanned", *(UNPROVED,) * 4),
    "no plan that was asked for is proved": row(
        f"{OTHERS}; none", UNPROVED, 1100, UNPROVED, 1100, budget=1000
    ),
    "a fault of the proof refuses no step": row(
        "1000; 880; 940; unplanned", *(FAULT,) * 3, budget=1000, recompute=True
    ),
    "less is proved after memory ran out": row(
        "704; 752", UNPROVED, "B", tried=ran_out()
    ),
    "sizes are guessed once": row("none", tried=GUESSED + UNPLANNED, offers=OPEN),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_what_is_tried_next(row: Any) -> None:
    course, answers, known, offers, settings = row
    step = Step(offered=offers, answers=list(answers))
    tried = [replace(each, step=step) for each in known]
    found = first_plan(step, tried, settings)
    made = [each.attempt for each in tried[len(known) :]]
    pairs = zip([*made, found and found.attempt], [Attempt(), *made], strict=True)
    assert "; ".join(said(*each) for each in pairs) == course


def test_the_least_of_all_refusals_is_named() -> None:
    tried = list[Outcome]()
    offers = Offers(variables=MOVE[:1])
    first_plan(Step(offered=offers, answers=[1100, 1300]), tried, Settings())
    assert getattr(refusal(tried), "least_bytes", 0) == 1100


def test_no_least_budget_is_searched_to_its_end_before_a_plan_is_found() -> None:
    def searched(low: int, high: int) -> BudgetError:
        def bounds() -> Iterator[tuple[int, int]]:
            yield 1000, 9000
            yield low, high
            raise AssertionError("nobody asked for more")

        return BudgetError("too little".format, bounds=bounds())

    answers = [searched(1060, 1090), searched(1010, 1090), "B"]
    tried, offers = list[Outcome](), Offers(variables=MOVE, largest_op=SMALL)
    found = first_plan(Step(offered=offers, answers=answers), tried, Settings())
    assert found is not None
    assert found.attempt.rewrites.handles == ("slot", "kernel")
    assert found.planned is not None


def test_a_refusal_comes_before_a_plan_that_is_not_valid() -> None:
    tried = list[Outcome]()
    step = Step(offered=Offers(variables=MOVE[:1]), answers=[1100, INVALID, INVALID])
    first_plan(step, tried, Settings())
    assert getattr(refusal(tried), "least_bytes", 0) == 1100


def test_what_is_not_proved_is_named_before_a_budget_that_is_too_small() -> None:
    tried, answers = list[Outcome](), [UNPROVED, 1100, 1100, 1100]
    first_plan(Step(offered=Offers(), answers=answers), tried, Settings(budget=1000))
    assert refusal(tried) is UNPROVED
