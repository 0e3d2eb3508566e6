"""What the workers run: trainings with and without large model support."""

import gc
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lms import LMSCallback
from lms.errors import BudgetError
from tests.models import CASES, SILENT, Case

__all__ = ["same_numbers"]

_DEVICE = "CPU:0"

# Persistent bytes differ a little from one training to the next.
_SLACK = 64 * 1024


def same_numbers(name: str) -> dict[str, Any]:
    """Train a case plainly and planned into a share of its memory, and compare."""
    tf.config.experimental.enable_op_determinism()
    case = CASES[name]
    keras.config.set_dtype_policy(case.policy)
    try:
        return _compared(case)
    finally:
        keras.config.set_dtype_policy("float32")


def _compared(case: Case) -> dict[str, Any]:
    plain, peak, held = _train(case, [])
    budget = _memory("current") + held + int(case.share * (peak - held))
    callback = LMSCallback(budget=budget, verbose=0)
    try:
        planned, _, _ = _train(case, [callback])
    except BudgetError as error:  # small models: a share of it can be too little
        least = (error.least_bytes or budget) + _SLACK
        callback = LMSCallback(budget=least, verbose=0)
        planned, _, _ = _train(case, [callback])
    different = _different(plain, planned)
    return {
        "compared": len(plain),
        "different": different,
        # Where training differs from itself, a difference says nothing.
        "repeatable": not different or not _different(plain, _train(case, [])[0]),
        "peak": peak,
        "reports": [
            {
                "kind": report.kind,
                "signature": report.signature,
                "swaps": report.swap_count,
                "budget": report.budget_bytes,
                "predicted": report.predicted_peak_bytes,
                "measured": report.measured_peak_bytes,
                "unplanned": report.unplanned_peak_bytes,
                "persistent": report.persistent_bytes,
                "seconds": report.planning_seconds,
            }
            for report in callback.report
        ],
    }


def _train(
    case: Case, callbacks: Sequence[Any]
) -> tuple[dict[str, np.ndarray], int, int]:
    """Train from the same seed.

    Returns:
        All numbers that the training ends with, by name; the allocator's peak; and what
        the model holds without a step.
    """
    keras.backend.clear_session()
    start = _memory("current")
    keras.utils.set_random_seed(7)
    tf.config.experimental.reset_memory_stats(_DEVICE)
    model = case.build()
    numbers: dict[str, np.ndarray] = {}
    for fit in range(case.fits):
        history = model.fit(
            **case.fit, epochs=case.epochs, verbose=SILENT, callbacks=list(callbacks)
        )
        for name, values in history.history.items():
            numbers[f"{name} of fit {fit}"] = np.array(values)
    peak = _memory("peak") - start
    held = _memory("current") - start
    for variable in (*model.variables, *model.optimizer.variables):
        numbers[variable.path] = np.array(variable)
    return numbers, peak, held


def _memory(which: str) -> int:
    gc.collect()
    return tf.config.experimental.get_memory_info(_DEVICE)[which]


def _different(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> list[str]:
    """Names of the numbers that differ in any bit."""
    assert one.keys() == other.keys()
    return [name for name in one if one[name].tobytes() != other[name].tobytes()]
