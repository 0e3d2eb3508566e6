"""Questions about stored steps, and the answers that planners gave when recorded.

One line of `recorded/plans.jsonl` is one question with its answer.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.planning.stored import FOLDER

__all__ = ["Answer", "Question", "read_plans", "write_plans"]

_PLANS = FOLDER / "plans.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request for a plan.

    Args:
        step: Name of a stored step.
        case: What tells it from others about that step.
        hardware: A preset.
        memory: Bytes of the device; None for the preset's.
        holes: Free chunks that are not one piece with the others.
        unsealed: Why the step cannot be sealed, as in `MemoryBudget`.
        knobs: As for `read_settings`.
    """

    step: str
    case: str
    hardware: str
    memory: int | None = None
    holes: tuple[int, ...] = ()
    unsealed: str = ""
    knobs: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __str__(self) -> str:
        return f"{self.step}: {self.case}"


# By field: numbers of a plan, or the words of a refusal.
Answer = dict[str, Any]


def write_plans(plans: Iterable[tuple[Question, Answer]]) -> None:
    """Record answers, one a line so that a difference can be read."""
    rows = (json.dumps(asdict(question) | {"answer": got}) for question, got in plans)
    _PLANS.write_text("\n".join(rows) + "\n")


def read_plans() -> list[tuple[Question, Answer]]:
    """Return the recorded questions and answers."""
    return [_plan(json.loads(line)) for line in _PLANS.read_text().splitlines()]


def _plan(row: dict[str, Any]) -> tuple[Question, Answer]:
    recorded, holes = row.pop("answer"), tuple(row.pop("holes"))
    return Question(holes=holes, **row), recorded
