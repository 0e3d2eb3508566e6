"""Work of the test processes: budgets below what one op needs, and what they name."""

from typing import Any
from unittest.mock import patch

import tensorflow as tf

from lms import LMSCallback
from lms.errors import BudgetError
from lms.tf.offers import floor_of
from lms.tf.prepare import Captured
from lms.units import KIB
from tests.models import CASES
from tests.tf.training import train

__all__ = ["hopeless"]


def hopeless(name: str) -> dict[str, Any]:
    """Train a case far below the floor of its step, then near it."""
    tf.config.experimental.enable_op_determinism()
    floors, tried = list[int](), list[bool]()
    above, plan = Captured.above_floor, Captured.plan

    def noted(step: Captured) -> Captured:
        floors.append(floor_of(step.step)[0])
        return above(step)

    def counted(step: Captured, attempt: Any) -> Any:
        tried.append(step.held_back is None)
        return plan(step, attempt)

    with patch.multiple(Captured, above_floor=noted, plan=counted):
        far = _refused(name, 64 * KIB) | {"plans": sum(tried)}
        near = _refused(name, int(0.6 * max(floors)))
    return {"far": far, "near": near | {"plans": sum(tried)}, "floor": max(floors)}


def _refused(name: str, budget: int) -> dict[str, Any]:
    case = CASES[name]
    callback = LMSCallback(budget=budget, verbose=0, **case.knobs)
    try:
        train(case, [callback])
    except BudgetError as error:
        return {"said": str(error), "least": error.least_bytes}
    raise AssertionError(f"{budget} bytes were enough")
